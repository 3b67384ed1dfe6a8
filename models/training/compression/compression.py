"""What makes a model smaller while it is trained: pruning, and training with rounded numbers.

In the last part of quantization-aware training the network sees weights and activations rounded.
Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference": the forward pass rounds as the int8 model will, gradients pass
straight through, and the range of activations is a moving average of the batches'. The rounding is
that of `millrace.export.onnx.conversions.int8_static`: uint8 activations with one scale, int8
weights of 7 bits with a scale for each output channel. A batch norm that is folded into a
convolution only changes these scales, so the weights are rounded as they are.

`torch.ao.quantization` is deprecated; the operators below are torch's own.
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
"""Largest integer of a weight: ONNX Runtime's int8 with `reduce_range`."""
ACTIVATION_LEVELS = 255
_TINY = torch.finfo(torch.float32).tiny
_CALLS = (functional.linear, functional.conv1d, functional.conv2d, functional.conv3d)


class Range:
    """Smallest and largest activation that one layer reads, as a moving average.

    Attributes:
        ends: float32 `[2]`, around zero; not a number as long as nothing was seen.
    """

    def __init__(self, device: torch.device) -> None:
        self.ends = torch.full((2,), torch.nan, device=device)
        self.is_known = False

    def see(self, inputs: Tensor, share: float) -> None:
        """Take in a batch, as `share` of the range."""
        ends = torch.stack([inputs.min().clamp(max=0), inputs.max().clamp(min=0)]).float()
        self.ends = torch.lerp(self.ends, ends, share) if self.is_known else ends
        self.is_known = True

    def rounded(self, inputs: Tensor) -> Tensor:
        """Return what is left of the inputs in uint8, as float32."""
        low, high = self.ends
        scale = ((high - low) / ACTIVATION_LEVELS).clamp(min=_TINY)
        zero_point = (-low / scale).round().to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(
            inputs.float(), scale, zero_point, 0, ACTIVATION_LEVELS
        )


def round_weight(weight: Tensor) -> Tensor:
    """Return what is left of `[outputs, …]` weights in 7 bits, symmetric, per output."""
    largest = weight.detach().float().abs().flatten(1).amax(dim=1)
    scale = (largest / WEIGHT_LEVELS).clamp(min=_TINY)
    zero_points = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(
        weight.float(), scale, zero_points, 0, -WEIGHT_LEVELS, WEIGHT_LEVELS
    )


class FakeQuantization(TorchFunctionMode):
    """Within it the layers of one network read rounded inputs and weights, once it has begun.

    The network itself stays as it is, and so do its checkpoints and what is exported.

    Args:
        spec: when to begin.
        network: whose linear and convolution layers are meant.
        epochs: of the whole training.

    Raises:
        InputError: the network has no such layer.
    """

    def __init__(self, spec: QuantizationAwareSpec, network: Network, epochs: int) -> None:
        super().__init__()
        self._spec, self._network, self._epochs = spec, network, epochs
        layers = [each for each in network.net.modules() if isinstance(each, LAYERS)]
        if not layers:
            raise InputError(
                f"{type(network.net).__name__} has nothing that can be quantized",
                valid="nn.Linear or nn.Conv layers",
                hint="leave training.quantization_aware out, or choose another family",
            )
        self._ranges = {id(each.weight): Range(each.weight.device) for each in layers}
        self._active = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Round what a layer reads; leave every other call of torch alone."""
        if self._active and func in _CALLS and len(args) > 1 and id(args[1]) in self._ranges:
            inputs, weight, *others = args
            kept = self._ranges[id(weight)]
            if self._network.training or not kept.is_known:
                kept.see(inputs.detach(), self._spec.averaging_constant)
            args = (kept.rounded(inputs), round_weight(weight), *others)
        return func(*args, **(kwargs or {}))

    def begin_epoch(self, epoch: int) -> None:
        """Begin, if the share of training before it is over; `epoch` is counted from 0."""
        self._active = epoch >= self._spec.start * self._epochs

    def after_step(self) -> None:
        """Do nothing: the weights are rounded when they are read."""

    def end_epoch(self) -> dict[str, float]:
        """Give every worker the ranges of rank 0, and return whether there was rounding."""
        if self._active and torch.distributed.is_initialized():
            for each in self._ranges.values():
                torch.distributed.broadcast(each.ends, src=0)
        return {"quantized": float(self._active)}

    def state_dict(self) -> dict[str, Any]:
        """Return the ranges, layer by layer."""
        return {"ranges": [each.ends for each in self._ranges.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the ranges of a checkpoint."""
        for each, ends in zip(self._ranges.values(), state["ranges"], strict=True):
            each.ends.copy_(ends)
            each.is_known = not bool(ends.isnan().any())


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
