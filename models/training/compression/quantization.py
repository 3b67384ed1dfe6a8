"""Quantization-aware training: the last part of it sees weights and activations rounded.

Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference": the forward pass rounds as the int8 model will, gradients pass
straight through, and the range of activations is a moving average of the batches'. The rounding is
that of `millrace.export.onnx.conversions.int8_static`: uint8 activations with one scale, int8
weights of 7 bits with a scale for each output channel. A batch norm that is folded into a
convolution only changes these scales, so the weights are rounded as they are.

`torch.ao.quantization` is deprecated; the operators below are torch's own.
"""

from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import QuantizationAwareSpec
from millrace.models.families.network import Network
from millrace.models.families.units import LAYERS

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
