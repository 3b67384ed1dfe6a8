"""What a network costs by its own operations, counted once on two rows of input.

The network runs forward and backward; torch says which operations it does and which tensors it
keeps. So every family counts in the same way, a user's own class too. On the device `meta` it takes
no memory and no time, so that a network is counted which does not fit into memory.
"""

import math

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from millrace.models.common.arrays import Array
from millrace.models.planner.network_cost import NetworkCost

COUNTED_ROWS = 2
"""Rows of the counted batch: one row is refused by batch normalization."""


_aten = torch.ops.aten
WEIGHT_PRODUCTS = {_aten.mm, _aten.addmm, _aten.convolution, _aten.convolution_backward}
"""Products with weights; the others are of two activations, as attention's are."""
FUNCTIONS = {
    *(_aten._softmax, _aten._safe_softmax, _aten._log_softmax),
    *(_aten.native_layer_norm, _aten.native_group_norm),
    *(_aten._fused_rms_norm, _aten.gelu, _aten.silu, _aten.mish, _aten.elu, _aten.softplus),
    *(_aten.sigmoid, _aten.tanh, _aten.erf, _aten.exp, _aten.log, _aten.sin, _aten.cos),
    *(_aten.pow, _aten.sqrt, _aten.rsqrt),
}
"""Functions of an element that take several operations each. A batch normalization is none: the
export folds it into the weights."""
ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *shapes, **_: sdpa_flop_count(*shapes[:3])  # type: ignore[no-untyped-call]
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])  # type: ignore[no-untyped-call]
    ),
}
"""A whole attention on the CPU, with its softmax inside, whose operations torch does not count."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch starts, and the elements of functions; views start none.

    A tensor on `meta` has no value, but the mask of a text asks whether all tokens are real ones.
    They are in the counted rows, so a truth value that is asked for is true.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not func.is_view:
            self.count += 1
        is_asked = func is torch.ops.aten._local_scalar_dense.default
        if is_asked and args[0].is_meta and args[0].dtype == torch.bool:
            return True
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in FUNCTIONS:
            self.elements += (result if isinstance(result, Tensor) else result[0]).numel()
        elif func.overloadpacket in ATTENTION:
            queries, keys = args[0], args[1]
            self.elements += math.prod(queries.shape[:-1]) * keys.shape[-2]
        return result


def count_network(network: nn.Module, example: Array) -> NetworkCost:
    """Count a network's operations, parameters and kept bytes.

    Args:
        network: a module on the CPU or on `meta`; its state is the same afterwards.
        example: `COUNTED_ROWS` rows of input.
    """
    parameters = list(network.parameters())
    rows = torch.from_numpy(example).to(parameters[0].device)
    was_training, forward = network.training, _counter()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    network.eval()
    operations = _Operations()
    with torch.no_grad(), forward, operations:
        network(rows)
    network.train()
    saved: dict[int, int] = {}
    own = {identity_of(each.untyped_storage()) for each in parameters}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if identity_of(storage) not in own:
            saved[identity_of(storage)] = storage.nbytes()
        return tensor

    both, all_operations = _counter(), _Operations()
    with torch.random.fork_rng(devices=[]), both, all_operations:
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
        activation_flops=_between_activations(forward) / len(rows),
        function_elements=operations.elements / len(rows),
        training_flops=both.get_total_flops() / len(rows),
        saved_bytes=sum(saved.values()) / len(rows),
        forward_kernels=operations.count,
        training_kernels=all_operations.count,
        input_bytes=example.nbytes / len(rows),
    )


def _counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=ATTENTION)


def _between_activations(counter: FlopCounterMode) -> int:
    """Return the operations of products of two activations."""
    found = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in found.items() if operation not in WEIGHT_PRODUCTS)


def identity_of(storage: torch.UntypedStorage) -> int:
    """Return what tells storages apart that are alive; on `meta` they have no address."""
    return int(StorageWeakRef(storage).cdata)  # type: ignore[no-untyped-call]
