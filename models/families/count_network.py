"""What a network costs by its own operations, counted once on two rows of input.

The network runs forward and backward on the CPU; torch says which operations it does and which
tensors it keeps. So every family counts in the same way, a user's own class too.
"""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from millrace.models.common.arrays import Array
from millrace.models.planner.network_cost import NetworkCost

COUNTED_ROWS = 2
"""Rows of the counted batch: one row is refused by batch normalization."""


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch starts; views start none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not func.is_view:
            self.count += 1
        return func(*args, **(kwargs or {}))


def count_network(network: nn.Module, example: Array) -> NetworkCost:
    """Count a network's operations, parameters and kept bytes.

    Args:
        network: a module on the CPU; its state is the same afterwards.
        example: `COUNTED_ROWS` rows of input.
    """
    rows = torch.from_numpy(example)
    was_training, forward = network.training, FlopCounterMode(display=False)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    network.eval()
    kernels = _Kernels()
    with torch.no_grad(), forward, kernels:
        network(rows)
    network.train()
    saved: dict[int, int] = {}
    own = {each.untyped_storage().data_ptr() for each in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    both, all_kernels = FlopCounterMode(display=False), _Kernels()
    with torch.random.fork_rng(devices=[]), both, all_kernels:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network(rows).float().square().mean()
        loss.backward()
    network.zero_grad(set_to_none=True)
    network.load_state_dict(state)
    network.train(was_training)
    parameters = list(network.parameters())
    return NetworkCost(
        parameters=sum(each.numel() for each in parameters),
        trained=sum(each.numel() for each in parameters if each.requires_grad),
        forward_flops=forward.get_total_flops() / len(rows),
        training_flops=both.get_total_flops() / len(rows),
        saved_bytes=sum(saved.values()) / len(rows),
        forward_kernels=kernels.count,
        training_kernels=all_kernels.count,
        input_bytes=example.nbytes / len(rows),
    )
