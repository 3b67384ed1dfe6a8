"""The optimizers of a decoder (AdamW, Muon), its learning-rate schedule and gradient clipping."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from millrace.models.common.errors import InputError
from millrace.models.language.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel
import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def grad_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Return the Euclidean norm of all gradients, over all shards.

    torch's `clip_grad_norm_` does not support a mixture of sharded and whole gradients, which
    tensor parallelism has. Whole gradients are the same on every worker and are counted once.
    """
    grads = [each.grad for each in parameters if each.grad is not None]
    whole = _squares(_local(each) for each in grads if not is_sharded(each))
    shards = _squares(_local(each) for each in grads if is_sharded(each))
    if any(is_sharded(each) for each in grads):
        dist.all_reduce(shards)
    return float((whole + shards).sqrt())


def clip(parameters: Iterable[nn.Parameter], norm: float, most: float) -> None:
    """Multiply the gradients by `most / norm` if `norm`, their norm, is larger than `most`."""
    if norm <= most:
        return
    for each in parameters:
        if each.grad is not None:
            _local(each.grad).mul_(most / norm)


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over the workers."""
    return isinstance(tensor, DTensor) and any(
        # a strided shard comes from several axes of a device mesh, or from a fused matrix
        isinstance(each, Shard) or type(each).__name__ == "_StridedShard"
        for each in tensor.placements
    )


def _squares(tensors: Iterable[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in tensors]
    # in float64, because many squares are summed
    return torch.stack(norms).double().square().sum() if norms else torch.zeros(()).double()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


BETAS = (0.9, 0.95)
"""AdamW's betas, from Brown et al. 2020 and Touvron et al. 2023."""


def optimizers_of(decoder: "PreTrainedModel", recipe: Recipe) -> tuple[Optimizer, ...]:
    """Return the optimizers of a decoder; each trained parameter is in exactly one of them.

    Muon (Jordan et al. 2024) makes the update of a matrix orthogonal. The update is scaled to the
    size of AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so both use the same
    learning rate. As in Liu et al., AdamW updates embeddings, the head, norms and biases.

    Raises:
        InputError: Muon is chosen with a strategy that shards or splits matrices.
    """
    trained = [each for each in decoder.parameters() if each.requires_grad]
    if recipe.optimizer == "adamw":
        return (AdamW(groups_of(trained, recipe.weight_decay), lr=0.0, betas=BETAS),)
    if recipe.parallel != "ddp":
        raise InputError(
            "training.optimizer: muon needs whole matrices on every worker",
            seen=f"training.parallel: {recipe.parallel}",
            valid="training.parallel: ddp",
            hint="set training.optimizer: adamw, or training.parallel: ddp",
        )
    head = decoder.get_output_embeddings()  # type: ignore[no-untyped-call]
    edges = (decoder.get_input_embeddings(), head)
    outside = {id(each.weight) for each in edges if each is not None}
    inside = [each for each in trained if each.ndim == 2 and id(each) not in outside]
    matrices = {id(each) for each in inside}
    rest = [each for each in trained if id(each) not in matrices]
    found: list[Optimizer] = []
    if inside:
        decay = recipe.weight_decay
        found.append(Muon(inside, lr=0.0, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    if rest:
        found.append(AdamW(groups_of(rest, recipe.weight_decay), lr=0.0, betas=BETAS))
    return tuple(found)


def groups_of(trained: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for AdamW.

    Matrices have weight decay, biases and norms do not. Sharded and whole tensors are in different
    groups, because one optimizer call cannot mix them.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for each in trained:
        groups.setdefault((each.ndim > 1, is_sharded(each)), []).append(each)
    return [
        {"params": found, "weight_decay": weight_decay if decays else 0.0}
        for (decays, _), found in groups.items()
    ]


def moments_of(optimizers: Sequence[Optimizer]) -> float:
    """Return how many numbers the optimizers keep per weight on average: Muon 1, AdamW 2."""
    weights = moments = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            some = sum(each.numel() for each in group["params"])
            weights += some
            moments += some * (1 if isinstance(optimizer, Muon) else 2)
    return moments / max(1, weights)


def rate_at(progress: float, peak: float, warmup_ratio: float) -> float:
    """Return the learning rate: a linear warm-up, then a cosine decay to zero.

    From Loshchilov & Hutter 2017, "SGDR", without restarts.

    Args:
        progress: share of the run that is done, 0 to 1.
        peak: the highest learning rate.
        warmup_ratio: share of the run with the warm-up.
    """
    if progress < warmup_ratio:
        return peak * progress / warmup_ratio
    left = (progress - warmup_ratio) / max(1.0 - warmup_ratio, 1e-12)
    return peak * 0.5 * (1.0 + math.cos(math.pi * left))
