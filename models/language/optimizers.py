"""The optimizers of a decoder, AdamW or Muon; the learning rate; clipping by the norm."""

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


BETAS = (0.9, 0.95)
"""Of AdamW, as Brown et al. 2020 and Touvron et al. 2023 train."""


def optimizers_of(decoder: "PreTrainedModel", recipe: Recipe) -> tuple[Optimizer, ...]:
    """Return what steps a decoder; together they have all that is trained, each once.

    Muon (Jordan et al. 2024) makes the step of a matrix orthogonal. Its rate is scaled such that
    the step is as large as AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so both
    go by one learning rate. Embeddings, the head, norms and biases are AdamW's, as there.

    Raises:
        InputError: Muon is to step matrices that are not whole on a worker.
    """
    trained = [each for each in decoder.parameters() if each.requires_grad]
    if recipe.optimizer == "adamw":
        return (AdamW(groups_of(trained, recipe.weight_decay), lr=0.0, betas=BETAS),)
    if recipe.parallel != "ddp":
        raise InputError(
            "training.optimizer: muon takes whole matrices",
            seen=f"training.parallel: {recipe.parallel}",
            valid="training.parallel: ddp",
            hint="use adamw, or ddp",
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
    """Return parameters in groups that AdamW treats alike.

    Matrices decay, biases and norms do not; and shards are apart from whole tensors, as one call
    takes only one kind.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for each in trained:
        groups.setdefault((each.ndim > 1, is_sharded(each)), []).append(each)
    return [
        {"params": found, "weight_decay": weight_decay if decays else 0.0}
        for (decays, _), found in groups.items()
    ]


def moments_of(optimizers: Sequence[Optimizer]) -> float:
    """Return how many numbers they keep for a weight, on average: Muon one, AdamW two."""
    weights = moments = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            some = sum(each.numel() for each in group["params"])
            weights += some
            moments += some * (1 if isinstance(optimizer, Muon) else 2)
    return moments / max(1, weights)


def rate_at(progress: float, peak: float, warmup_ratio: float) -> float:
    """Return the learning rate: a linear warm-up, then a cosine to zero.

    After Loshchilov & Hutter 2017, "SGDR", without restarts.

    Args:
        progress: share of the run that is done, 0 to 1.
        peak: the highest rate.
        warmup_ratio: share of the run that warms up.
    """
    if progress < warmup_ratio:
        return peak * progress / warmup_ratio
    left = (progress - warmup_ratio) / max(1.0 - warmup_ratio, 1e-12)
    return peak * 0.5 * (1.0 + math.cos(math.pi * left))
