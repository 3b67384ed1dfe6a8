"""Neurons and channels that structured pruning can remove from a network.

A family, or a user's own class, lists these units in a method `removable_units()`. A unit whose
weights, bias and batch norm are zero outputs zero, so removing it changes no output of the network.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(frozen=True)
class Units:
    """The outputs of one layer, all of which only one other layer reads.

    Between the two layers there may be elementwise functions that map zero to zero: ReLU, dropout.

    Attributes:
        producer: the layer whose outputs are the units; its `groups` must be 1.
        consumer: the layer that reads each unit as one input; its `groups` must be 1.
        norm: the batch norm after the producer, if there is one.
    """

    producer: Layer
    consumer: Layer
    norm: Norm | None = None

    def scores(self) -> Tensor:
        """Return the L1 norm of each unit's weights, float32 `[units]`.

        Li, Kadav, Durdanovic, Samet, Graf 2017, "Pruning Filters for Efficient ConvNets".
        """
        return self.producer.weight.detach().float().abs().flatten(1).sum(dim=1)

    def keep(self, mask: Tensor) -> None:
        """Set all units outside `mask`, bool `[units]`, to zero."""
        for parameter in self._by_unit():
            parameter[~mask] = 0

    def live(self) -> Tensor:
        """Return which units have a parameter other than zero, bool `[units]`."""
        values = [each.flatten(1) if each.dim() > 1 else each[:, None] for each in self._by_unit()]
        return torch.cat(values, dim=1).ne(0).any(dim=1)

    def remove(self, kept: Tensor) -> None:
        """Remove all units but those in `kept`, bool `[units]`, from both layers and the norm."""
        self.producer.weight = nn.Parameter(self.producer.weight.detach()[kept])
        if self.producer.bias is not None:
            self.producer.bias = nn.Parameter(self.producer.bias.detach()[kept])
        self.consumer.weight = nn.Parameter(self.consumer.weight.detach()[:, kept])
        count = int(kept.sum())
        _set_width(self.producer, "out", count)
        _set_width(self.consumer, "in", count)
        if self.norm is not None:
            self._remove_from(self.norm, kept, count)

    @staticmethod
    def _remove_from(norm: Norm, kept: Tensor, count: int) -> None:
        norm.num_features = count
        for name, parameter in list(norm.named_parameters(recurse=False)):
            setattr(norm, name, nn.Parameter(parameter.detach()[kept]))
        for name, buffer in list(norm.named_buffers(recurse=False)):
            if buffer.dim() == 1:  # not num_batches_tracked
                setattr(norm, name, buffer[kept])

    def _by_unit(self) -> list[Tensor]:
        """Return the parameters of the units, each `[units, …]`, detached."""
        parameters = [self.producer.weight, self.producer.bias]
        if self.norm is not None:
            parameters += [self.norm.weight, self.norm.bias]
        return [each.detach() for each in parameters if each is not None]


def _set_width(layer: Layer, side: str, count: int) -> None:
    setattr(
        layer, f"{side}_features" if isinstance(layer, nn.Linear) else f"{side}_channels", count
    )


@runtime_checkable
class HasUnits(Protocol):
    """A module that lists its removable units."""

    def removable_units(self) -> Sequence[Units]:
        """Return the module's removable units, layer by layer."""


@torch.no_grad()
def shrink(net: HasUnits) -> None:
    """Remove every unit that always outputs zero; keep at least one unit in each layer."""
    for units in net.removable_units():
        kept = units.live()
        kept[0] |= not kept.any()
        units.remove(kept)


@torch.no_grad()
def can_shrink(net: nn.Module, rows: Tensor) -> bool:
    """Return whether removing units that are zero leaves the outputs for `rows` unchanged.

    Every second unit of a copy is set to zero and removed. If the copy fails, the result is False.

    Args:
        net: a module with units, on the CPU.
        rows: its input, `[rows, in_features]`.
    """
    trial = copy.deepcopy(net).eval()
    try:
        has_units = cast(HasUnits, trial)
        for units in has_units.removable_units():
            units.keep(torch.arange(len(units.scores())) % 2 == 0)
        before = trial(rows)
        shrink(has_units)
        return torch.allclose(before, trial(rows), rtol=1e-4, atol=1e-5)
    except Exception:  # a user's own module may raise anything
        return False
