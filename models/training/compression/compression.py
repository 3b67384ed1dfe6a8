"""What makes a model smaller while it is trained, as the training loop sees it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.network import Network
from millrace.models.families.units import HasUnits, can_shrink, shrink
from millrace.models.inference.model_input import ModelInput
from millrace.models.training.compression.pruning import Pruner
from millrace.models.training.compression.quantization import FakeQuantization


class Compression:
    """What the pipeline asks for, on one network; nothing, where it asks for nothing.

    Args:
        spec: how the network is trained.
        network: on the device where it is trained.
        steps: of an epoch.

    Raises:
        InputError: the network cannot be compressed so.
    """

    def __init__(self, spec: TrainingSpec, network: Network, steps: int) -> None:
        self._members: dict[str, Pruner | FakeQuantization] = {}
        self._rounding: AbstractContextManager[object] = nullcontext()
        if spec.pruning is not None:
            self._members["pruning"] = Pruner(spec.pruning, network, spec.epochs, steps)
        if spec.quantization_aware is not None:
            rounding = FakeQuantization(spec.quantization_aware, network, spec.epochs)
            self._members["quantization_aware"] = self._rounding = rounding

    def begin_epoch(self, epoch: int) -> None:
        """Take note that this epoch, counted from 0, begins."""
        for member in self._members.values():
            member.begin_epoch(epoch)

    def forward(self) -> AbstractContextManager[object]:
        """Return the context that the network runs in, in training and in validation."""
        return self._rounding

    def after_step(self) -> None:
        """Do what belongs after a step of the optimizer."""
        for member in self._members.values():
            member.after_step()

    def end_epoch(self) -> dict[str, float]:
        """Do what belongs before validation, and return what is to be logged."""
        found = [member.end_epoch() for member in self._members.values()]
        return {name: value for each in found for name, value in each.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: tensors and plain values, the same on all ranks."""
        return {name: member.state_dict() for name, member in self._members.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, member in self._members.items():
            member.load_state_dict(state[name])


def require_compressible(spec: TrainingSpec, network: Network, read: ModelInput) -> None:
    """Refuse what training or the export would stumble over.

    Args:
        spec: how the network is to be trained.
        network: on the CPU.
        read: what it reads.

    Raises:
        InputError: the network cannot be compressed as the pipeline asks for.
    """
    Compression(spec, network, steps=1)
    if not _removes_units(spec):
        return
    rows = torch.from_numpy(read.example(4))
    if rows.is_floating_point():
        rows = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    if not can_shrink(network.net, network.preprocess(rows)):
        name = type(network.net).__name__
        raise InputError(
            f"units that {name}.removable_units() names cannot be removed",
            seen="with every second one at zero, taking these out changes the answers or fails",
            valid="units that go from producer to consumer through what maps zero to zero",
            hint="fix that method, or set training.pruning.kind: magnitude",
        )


def remove_pruned(spec: TrainingSpec, network: Network) -> None:
    """Take the units that were pruned out of a trained network, so that it is smaller."""
    if _removes_units(spec) and isinstance(network.net, HasUnits):
        shrink(network.net)


def _removes_units(spec: TrainingSpec) -> bool:
    return spec.pruning is not None and spec.pruning.kind == "structured"
