"""What a network costs by its own operations, counted once on two rows of input.

The network runs forward and backward; torch says which operations it does and which tensors it
keeps. So every family counts in the same way, a user's own class too. On the device `meta` it takes
no memory and no time, so that a network is counted which does not fit into memory.
"""

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from millrace.models.common.arrays import Array
from millrace.models.planner.network_cost import NetworkCost

COUNTED_ROWS = 2
"""Rows of the counted batch: one row is refused by batch normalization."""


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch starts; views start none.

    A tensor on `meta` has no value, but the mask of a text asks whether all tokens are real ones.
    They are in the counted rows, so a truth value that is asked for is true.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not func.is_view:
            self.count += 1
        is_asked = func is torch.ops.aten._local_scalar_dense.default
        if is_asked and args[0].is_meta and args[0].dtype == torch.bool:
            return True
        return func(*args, **(kwargs or {}))


def count_network(network: nn.Module, example: Array) -> NetworkCost:
    """Count a network's operations, parameters and kept bytes.

    Args:
        network: a module on the CPU or on `meta`; its state is the same afterwards.
        example: `COUNTED_ROWS` rows of input.
    """
    parameters = list(network.parameters())
    rows = torch.from_numpy(example).to(parameters[0].device)
    was_training, forward = network.training, FlopCounterMode(display=False)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    network.eval()
    kernels = _Kernels()
    with torch.no_grad(), forward, kernels:
        network(rows)
    network.train()
    saved: dict[int, int] = {}
    own = {identity_of(each.untyped_storage()) for each in parameters}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if identity_of(storage) not in own:
            saved[identity_of(storage)] = storage.nbytes()
        return tensor

    both, all_kernels = FlopCounterMode(display=False), _Kernels()
    with torch.random.fork_rng(devices=[]), both, all_kernels:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network(rows).float().square().mean()
        loss.backward()
    network.zero_grad(set_to_none=True)
    network.load_state_dict(state)
    network.train(was_training)
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


def identity_of(storage: torch.UntypedStorage) -> int:
    """Return what tells storages apart that are alive; on `meta` they have no address."""
    return int(StorageWeakRef(storage).cdata)  # type: ignore[no-untyped-call]
