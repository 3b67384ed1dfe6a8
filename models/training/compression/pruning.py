"""Pruning during training: the smallest weights or units are set to zero, more and more of them.

Magnitude pruning of weights and its schedule: Zhu & Gupta 2017, "To prune, or not to prune".
Structured pruning removes whole units (neurons, channels) by their L1 norm (Li et al. 2017,
"Pruning Filters for Efficient ConvNets"), here on the same schedule. The exported network is
smaller by these units.
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
    """A group of elements to prune: the weights of a layer, or units."""

    def scores(self) -> Tensor:
        """Return the importance of each element, float32 `[elements]`, 0 or more."""
        ...

    def keep(self, mask: Tensor) -> None:
        """Set all elements to zero for which `mask`, bool `[elements]`, is false."""
        ...


@dataclass(frozen=True)
class Weights:
    """The weights of one layer as elements to prune; the score of a weight is its magnitude."""

    values: Tensor

    def scores(self) -> Tensor:
        """Return the magnitudes of the weights, float32 `[weights]`."""
        return self.values.float().abs().flatten()

    def keep(self, mask: Tensor) -> None:
        """Set all weights to zero for which `mask`, bool `[weights]`, is false."""
        self.values[~mask.view_as(self.values)] = 0


def sparsity_at(progress: float, spec: PruningSpec) -> float:
    """Return the share to prune at a progress of 0 to 1, by the cubic equation 1 of Zhu & Gupta."""
    done = min(max((progress - spec.start) / (spec.end - spec.start), 0.0), 1.0)
    return spec.sparsity * (1 - (1 - done) ** 3)


def select_kept(scores: Sequence[Tensor], masks: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """Return new masks that prune the elements with the lowest scores, over all prunables.

    Elements that are pruned already stay pruned.

    Args:
        scores: float32 `[elements]` of each prunable.
        masks: bool `[elements]` of each prunable, false for elements that are pruned already.
        sparsity: share of all elements to prune, rounded down.
    """
    # Scores are 0 or more, so pruned elements (-1) are ranked first and stay pruned.
    ranked = torch.cat([s.masked_fill(~m, -1.0) for s, m in zip(scores, masks, strict=True)])
    kept = torch.ones_like(ranked, dtype=torch.bool)
    kept[ranked.argsort(stable=True)[: int(sparsity * len(ranked))]] = False
    return list(torch.split(kept, [len(mask) for mask in masks]))


class Pruner:
    """Prunes the weights or units of one network on a schedule.

    Args:
        spec: pruning settings.
        network: the network; its parameters change in place.
        epochs: number of epochs of the whole training.
        steps: number of steps of an epoch.

    Raises:
        InputError: the network has no weights or units for this kind of pruning.
    """

    def __init__(self, spec: PruningSpec, network: Network, epochs: int, steps: int) -> None:
        self._spec, self._epochs, self._steps = spec, epochs, steps
        self._prunable = _prunable(spec, network)
        self._masks = [torch.ones_like(p.scores(), dtype=torch.bool) for p in self._prunable]
        self._epoch = self._step = 0
        self._wanted = 0.0

    @property
    def sparsity(self) -> float:
        """Share of all elements that is pruned."""
        kept = torch.cat(self._masks)
        return 1 - float(kept.sum()) / len(kept)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch, whose number counts from 0: restart the count of steps."""
        self._epoch, self._step = epoch, 0

    @torch.no_grad()
    def after_step(self) -> None:
        """Prune more every `frequency` steps, and set all pruned elements to zero again.

        An optimizer step may change pruned elements.
        """
        self._step += 1
        if self._step % self._spec.frequency == 0:
            self._prune_until(self._epoch + min(self._step / self._steps, 1.0))
        self._apply()

    @torch.no_grad()
    def end_epoch(self) -> dict[str, float]:
        """Prune to the sparsity of the epoch's end, and return the sparsity as a metric."""
        self._prune_until(self._epoch + 1.0)
        self._apply()
        return {"sparsity": self.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """Return the masks."""
        return {"masks": self._masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the masks of a checkpoint."""
        for mask, known in zip(self._masks, state["masks"], strict=True):
            mask.copy_(known)

    def _prune_until(self, epochs: float) -> None:
        wanted = sparsity_at(epochs / self._epochs, self._spec)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        scores = [each.scores() for each in self._prunable]
        if self._spec.scope == "global":
            masks = select_kept(scores, self._masks, wanted)
        else:
            pairs = zip(scores, self._masks, strict=True)
            masks = [select_kept([s], [m], wanted)[0] for s, m in pairs]
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
            f"{type(network.net).__name__} has no layers that {spec.kind} pruning can prune",
            valid="nn.Linear or nn.Conv layers; for structured pruning, one after another",
            hint="remove training.pruning, or choose another model.family",
        )
    return found


def _units(net: nn.Module) -> Sequence[Units]:
    named = _require_units(net)
    try:
        return named.removable_units()
    except Exception as error:  # a user's own method may raise anything
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
        f"{type(net).__name__} has no method removable_units(), which structured pruning needs",
        valid="mlp, cnn, or a class with a method "
        "removable_units() -> list[millrace.models.families.units.Units]",
        hint="add that method, or set training.pruning.kind: magnitude",
    )


def _of_rank_0(mask: Tensor) -> Tensor:
    """Return rank 0's mask, because weights may differ in the last bit between ranks."""
    if not torch.distributed.is_initialized():
        return mask
    shared = mask.to(torch.uint8)
    torch.distributed.broadcast(shared, src=0)
    return shared.bool()
