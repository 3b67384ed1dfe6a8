"""Compression of a model during training: pruning and quantization-aware training.

In the last part of quantization-aware training, weights and activations are rounded in the forward
pass. Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference": the forward pass rounds as the int8 model will, gradients pass
straight through, and the range of activations is a moving average over batches. The rounding is
that of `millrace.export.onnx.conversions.int8_static`: uint8 activations with one scale, and 7-bit
weights in int8 with one scale per output channel. Export may fold a batch norm into a convolution.
The folding changes only the weights' scales, so training rounds the weights before the folding.

The fake-quantization operators are torch's own, because `torch.ao.quantization` is deprecated.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import QuantizationAwareSpec
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.network import Network
from millrace.models.families.units import LAYERS, HasUnits, can_shrink, shrink
from millrace.models.inference.model_input import ModelInput
from millrace.models.training.compression.pruning import Pruner

WEIGHT_LEVELS = 64
"""Largest integer of a quantized weight, as in ONNX Runtime's int8 with `reduce_range`."""
ACTIVATION_LEVELS = 255
_TINY = torch.finfo(torch.float32).tiny
_CALLS = (functional.linear, functional.conv1d, functional.conv2d, functional.conv3d)


class Range:
    """The moving average of the smallest and largest input of one layer.

    Attributes:
        ends: float32 `[2]`, smallest and largest, with zero between them; NaN before the first
            batch.
        is_known: whether a batch was seen.
    """

    def __init__(self, device: torch.device) -> None:
        self.ends = torch.full((2,), torch.nan, device=device)
        self.is_known = False

    def see(self, inputs: Tensor, share: float) -> None:
        """Move the range by `share` towards the range of a batch."""
        ends = torch.stack([inputs.min().clamp(max=0), inputs.max().clamp(min=0)]).float()
        self.ends = torch.lerp(self.ends, ends, share) if self.is_known else ends
        self.is_known = True

    def rounded(self, inputs: Tensor) -> Tensor:
        """Return the inputs rounded to uint8 levels, as float32."""
        low, high = self.ends
        scale = ((high - low) / ACTIVATION_LEVELS).clamp(min=_TINY)
        zero_point = (-low / scale).round().to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(
            inputs.float(), scale, zero_point, 0, ACTIVATION_LEVELS
        )


def round_weight(weight: Tensor) -> Tensor:
    """Return `[outputs, …]` weights rounded to 7 bits, symmetric, with one scale per output."""
    largest = weight.detach().float().abs().flatten(1).amax(dim=1)
    scale = (largest / WEIGHT_LEVELS).clamp(min=_TINY)
    zero_points = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(
        weight.float(), scale, zero_points, 0, -WEIGHT_LEVELS, WEIGHT_LEVELS
    )


class FakeQuantization(TorchFunctionMode):
    """Context in which the layers of a network compute with rounded inputs and weights.

    Rounding begins at the epoch that `spec` sets. The network's own weights stay unrounded,
    and so do the weights in checkpoints and in the export.

    Args:
        spec: settings of quantization-aware training.
        network: the network, whose linear and convolution layers are rounded.
        epochs: number of epochs of the whole training.

    Raises:
        InputError: the network has no linear or convolution layer.
    """

    def __init__(self, spec: QuantizationAwareSpec, network: Network, epochs: int) -> None:
        super().__init__()
        self._spec, self._network, self._epochs = spec, network, epochs
        layers = [each for each in network.net.modules() if isinstance(each, LAYERS)]
        if not layers:
            raise InputError(
                f"{type(network.net).__name__} has no layer that can be quantized",
                valid="nn.Linear or nn.Conv layers",
                hint="leave training.quantization_aware out, or choose another family",
            )
        self._ranges = {id(each.weight): Range(each.weight.device) for each in layers}
        self._active = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Round the inputs and weights of the network's layers; pass all other calls through."""
        if self._active and func in _CALLS and len(args) > 1 and id(args[1]) in self._ranges:
            inputs, weight, *others = args
            kept = self._ranges[id(weight)]
            if self._network.training or not kept.is_known:
                kept.see(inputs.detach(), self._spec.averaging_constant)
            args = (kept.rounded(inputs), round_weight(weight), *others)
        return func(*args, **(kwargs or {}))

    def begin_epoch(self, epoch: int) -> None:
        """Start rounding if this epoch, counted from 0, is in the last part of training."""
        self._active = epoch >= self._spec.start * self._epochs

    def after_step(self) -> None:
        """Do nothing, because the weights are rounded in the forward pass."""

    def end_epoch(self) -> dict[str, float]:
        """Broadcast rank 0's ranges to all workers, and return the metric `quantized`.

        The metric is 1 if rounding is on, else 0.
        """
        if self._active and torch.distributed.is_initialized():
            for each in self._ranges.values():
                torch.distributed.broadcast(each.ends, src=0)
        return {"quantized": float(self._active)}

    def state_dict(self) -> dict[str, Any]:
        """Return the ranges of all layers, in order."""
        return {"ranges": [each.ends for each in self._ranges.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the ranges of a checkpoint."""
        for each, ends in zip(self._ranges.values(), state["ranges"], strict=True):
            each.ends.copy_(ends)
            each.is_known = not bool(ends.isnan().any())


class Compression:
    """The compression that the pipeline sets for a network: pruning, rounding, both or none.

    Args:
        spec: training settings.
        network: the network, on the device where it is trained.
        steps: number of steps of an epoch.

    Raises:
        InputError: the network has no layers for this kind of compression.
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
        """Prepare for an epoch, counted from 0; call this before its first step."""
        for member in self._members.values():
            member.begin_epoch(epoch)

    def forward(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass, in training and in validation."""
        return self._rounding

    def after_step(self) -> None:
        """Update the compression; call this after every optimizer step."""
        for member in self._members.values():
            member.after_step()

    def end_epoch(self) -> dict[str, float]:
        """Update the compression before validation, and return metrics to log."""
        found = [member.end_epoch() for member in self._members.values()]
        return {name: value for each in found for name, value in each.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: tensors and plain values, the same on all ranks."""
        return {name: member.state_dict() for name, member in self._members.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        for name, member in self._members.items():
            member.load_state_dict(state[name])


def require_compressible(spec: TrainingSpec, network: Network, read: ModelInput) -> None:
    """Check, before training, that a network can be compressed as the pipeline sets.

    Args:
        spec: training settings.
        network: the network, on the CPU.
        read: the network's input.

    Raises:
        InputError: the network has no layers for this kind of compression, or its units cannot be
            removed.
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
            f"the units of {name}.removable_units() cannot be removed",
            seen="with every second unit set to zero, removing those units fails or changes the "
            "network's output",
            valid="units between two layers, where every function between the two layers maps zero "
            "to zero",
            hint="fix that method, or set training.pruning.kind: magnitude",
        )


def remove_pruned(spec: TrainingSpec, network: Network) -> None:
    """Remove the pruned units from a trained network, which makes it smaller."""
    if _removes_units(spec) and isinstance(network.net, HasUnits):
        shrink(network.net)


def _removes_units(spec: TrainingSpec) -> bool:
    return spec.pruning is not None and spec.pruning.kind == "structured"
