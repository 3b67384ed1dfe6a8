"""Pruning while training: what is least becomes zero, more and more of it, and stays zero.

Magnitude pruning of weights and its schedule: Zhu & Gupta 2017, "To prune, or not to prune". Whole
units go by their L1 norm (Li et al. 2017, "Pruning Filters for Efficient ConvNets"), here on the
same schedule, and are taken out of the network that is exported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor, nn

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import PruningSpec
from millrace.models.families.network import Network
from millrace.models.families.units import LAYERS, HasUnits, Units


class Prunable(Protocol):
    """What is pruned piece by piece."""

    def scores(self) -> Tensor:
        """Return how much each piece matters, float32 `[pieces]`, 0 or more."""
        ...

    def keep(self, mask: Tensor) -> None:
        """Set to zero what is not kept; `mask` is bool `[pieces]`."""
        ...


@dataclass(frozen=True)
class Weights:
    """The weights of one layer, each by its magnitude."""

    values: Tensor

    def scores(self) -> Tensor:
        """Return their magnitudes, float32 `[weights]`."""
        return self.values.float().abs().flatten()

    def keep(self, mask: Tensor) -> None:
        """Set to zero what is not kept; `mask` is bool `[weights]`."""
        self.values[~mask.view_as(self.values)] = 0


def sparsity_at(progress: float, spec: PruningSpec) -> float:
    """Return the share to prune after a share of training: cubic, equation 1 of Zhu & Gupta."""
    done = min(max((progress - spec.start) / (spec.end - spec.start), 0.0), 1.0)
    return spec.sparsity * (1 - (1 - done) ** 3)


def kept_of(scores: Sequence[Tensor], masks: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """Return new masks: of all pieces together the least are pruned, those of before first.

    Args:
        scores: float32 `[pieces]` of each prunable.
        masks: bool `[pieces]` likewise, false for what is pruned already.
        sparsity: share of all pieces to prune, rounded down.
    """
    # Scores are 0 or more, so that what is pruned comes first and stays pruned.
    ranked = torch.cat([s.masked_fill(~m, -1.0) for s, m in zip(scores, masks, strict=True)])
    kept = torch.ones_like(ranked, dtype=torch.bool)
    kept[ranked.argsort(stable=True)[: int(sparsity * len(ranked))]] = False
    return list(torch.split(kept, [len(mask) for mask in masks]))


class Pruner:
    """Masks of one network's weights or units, and when they grow.

    Args:
        spec: what to prune.
        network: whose parameters change in place.
        epochs: of the whole training.
        steps: of an epoch.

    Raises:
        InputError: there is nothing in the network to be pruned so.
    """

    def __init__(self, spec: PruningSpec, network: Network, epochs: int, steps: int) -> None:
        self._spec, self._epochs, self._steps = spec, epochs, steps
        self._prunable = _prunable(spec, network)
        self._masks = [torch.ones_like(p.scores(), dtype=torch.bool) for p in self._prunable]
        self._epoch = self._step = 0
        self._wanted = 0.0

    @property
    def sparsity(self) -> float:
        """Share of all pieces that is pruned."""
        kept = torch.cat(self._masks)
        return 1 - float(kept.sum()) / len(kept)

    def begin_epoch(self, epoch: int) -> None:
        """Count steps from here; `epoch` is counted from 0."""
        self._epoch, self._step = epoch, 0

    @torch.no_grad()
    def after_step(self) -> None:
        """Prune more when it is time to, and put what the step changed back to zero."""
        self._step += 1
        if self._step % self._spec.frequency == 0:
            self._prune_until(self._epoch + min(self._step / self._steps, 1.0))
        self._apply()

    @torch.no_grad()
    def end_epoch(self) -> dict[str, float]:
        """Come to the sparsity of the epoch's end, and return it."""
        self._prune_until(self._epoch + 1.0)
        self._apply()
        return {"sparsity": self.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """Return the masks."""
        return {"masks": self._masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the masks of a checkpoint."""
        for mask, known in zip(self._masks, state["masks"], strict=True):
            mask.copy_(known)

    def _prune_until(self, epochs: float) -> None:
        wanted = sparsity_at(epochs / self._epochs, self._spec)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        scores = [each.scores() for each in self._prunable]
        if self._spec.scope == "global":
            masks = kept_of(scores, self._masks, wanted)
        else:
            pairs = zip(scores, self._masks, strict=True)
            masks = [kept_of([s], [m], wanted)[0] for s, m in pairs]
        self._masks = [_of_rank_0(mask) for mask in masks]

    def _apply(self) -> None:
        for prunable, mask in zip(self._prunable, self._masks, strict=True):
            prunable.keep(mask)


def _prunable(spec: PruningSpec, network: Network) -> list[Prunable]:
    if spec.kind == "magnitude":
        layers = [each for each in network.net.modules() if isinstance(each, LAYERS)]
        tensors = {id(each.weight): each.weight.detach() for each in layers}  # tied ones once
        found: list[Prunable] = [Weights(each) for each in tensors.values()]
    else:
        found = list(_units(network.net))
    if not found:
        raise InputError(
            f"{type(network.net).__name__} has nothing that {spec.kind} pruning can prune",
            valid="nn.Linear or nn.Conv layers; for structured pruning, one after another",
            hint="leave training.pruning out, or choose another family",
        )
    return found


def _units(net: nn.Module) -> Sequence[Units]:
    named = _require_units(net)
    try:
        return named.removable_units()
    except Exception as error:  # whatever a user's own method raises
        raise InputError(
            f"{type(net).__name__}.removable_units() failed",
            seen=f"{type(error).__name__}: {error}",
            valid="a list of millrace.models.families.units.Units",
            hint="fix that method, or set training.pruning.kind: magnitude",
        ) from error


def _require_units(net: nn.Module) -> HasUnits:
    if isinstance(net, HasUnits):
        return net
    raise InputError(
        f"{type(net).__name__} does not say which of its units can be removed",
        valid="mlp, cnn, or a class with a method "
        "removable_units() -> list[millrace.models.families.units.Units]",
        hint="add that method, or set training.pruning.kind: magnitude",
    )


def _of_rank_0(mask: Tensor) -> Tensor:
    """Return rank 0's mask: weights that differ in a last bit must not part the ranks."""
    if not torch.distributed.is_initialized():
        return mask
    shared = mask.to(torch.uint8)
    torch.distributed.broadcast(shared, src=0)
    return shared.bool()
