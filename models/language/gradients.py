"""The norm of gradients that may be shards, and clipping by it."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard


def grad_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Return the Euclidean norm of all gradients, over all shards.

    torch's own `clip_grad_norm_` takes no mixture of sharded and whole gradients, as tensor
    parallelism has it. Whole ones are the same on every worker and are counted once.
    """
    grads = [each.grad for each in parameters if each.grad is not None]
    whole = _squares(_local(each) for each in grads if not is_sharded(each))
    shards = _squares(_local(each) for each in grads if is_sharded(each))
    if any(is_sharded(each) for each in grads):
        dist.all_reduce(shards)
    return float((whole + shards).sqrt())


def clip(parameters: Iterable[nn.Parameter], norm: float, most: float) -> None:
    """Scale gradients down whose norm is `norm`, so that it is `most`; leave smaller ones."""
    if norm <= most:
        return
    for each in parameters:
        if each.grad is not None:
            _local(each.grad).mul_(most / norm)


def is_sharded(tensor: Tensor) -> bool:
    """Return whether other workers hold other parts of it."""
    return isinstance(tensor, DTensor) and any(
        # a strided shard is one that several axes of a mesh, or a fused matrix, cut
        isinstance(each, Shard) or type(each).__name__ == "_StridedShard"
        for each in tensor.placements
    )


def _squares(tensors: Iterable[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in tensors]
    # float64: a sum of squares of many parts
    return torch.stack(norms).double().square().sum() if norms else torch.zeros(()).double()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
