"""Bytes that training keeps on a device: weights, gradients, optimizer, activations, checkpoint."""

from dataclasses import dataclass

from millrace.models.planner.decoder import Decoder
from millrace.models.planner.parallelism import Layout, Sharding

MIXED_WEIGHT, MIXED_GRADIENT, MIXED_OPTIMIZER = 2, 2, 12
"""Bytes of a parameter in mixed precision with Adam: a 16-bit weight, a 16-bit gradient, and in
float32 the weight and both moments (Rajbhandari et al. 2020, "ZeRO", 1910.02054, section 3.1)."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of a device for what a training keeps of each parameter.

    Attributes:
        weights: the weights.
        gradients: the gradients.
        optimizer: the optimizer's states, and a float32 copy of 16-bit weights.
    """

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    parameters: float,
    sharding: Sharding,
    data_parallel: int,
    *,
    weight: float = MIXED_WEIGHT,
    gradient: float = MIXED_GRADIENT,
    optimizer: float = MIXED_OPTIMIZER,
) -> StateBytes:
    """Return the bytes of weights, gradients and optimizer of a device.

    With Ψ parameters on N devices and K = 12: 16Ψ; zero1 4Ψ + 12Ψ/N; zero2 2Ψ + 14Ψ/N; zero3 16Ψ/N
    (ZeRO, 1910.02054, figure 1).

    Args:
        parameters: parameters of the device's part of the model.
        sharding: what the data parallel devices share.
        data_parallel: number of these devices.
        weight: bytes of a weight.
        gradient: bytes of a gradient.
        optimizer: bytes of the optimizer's states per parameter.
    """
    shared = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[sharding]

    def size(width: float, from_stage: int) -> float:
        return parameters * width / (data_parallel if shared >= from_stage else 1)

    return StateBytes(size(weight, 3), size(gradient, 2), size(optimizer, 1))


def activation_bytes_of_layer(
    decoder: Decoder, sequences: float, context: int, layout: Layout
) -> float:
    """Return the bytes that a layer like GPT-3's keeps of a micro-batch for the backward pass.

    Korthikanti et al. 2022, 2205.05198, table 2: a layer with dropout, a GELU MLP of 4h and
    attention that keeps its matrix of s x s, in 16 bits: sbh(34 + 5as/h) without parallelism.

    Args:
        decoder: the decoder.
        sequences: sequences of the micro-batch.
        context: tokens of a sequence.
        layout: the layout.
    """
    tokens, split = sequences * context * decoder.hidden, layout.tensor_parallel
    if layout.recompute == "full":
        return 2.0 * tokens
    scores = 5.0 * decoder.heads * context / decoder.hidden / split
    # Norms, dropouts and the layer's inputs, 10 of the 34, are split by sequence parallelism only.
    matrices = 10.0 / (split if layout.sequence_parallel else 1) + 24.0 / split
    return tokens * (matrices + (0.0 if layout.recompute == "selective" else scores))


def activation_bytes(decoder: Decoder, sequences: float, context: int, layout: Layout) -> float:
    """Return the bytes of activations of the first stage's layers, whose need is the largest.

    It has as many micro-batches in flight as the pipeline has stages, so all L layers of one
    micro-batch count; interleaving keeps 1 + (p−1)/(p·m) times as many (2205.05198, section 4.2.3).

    Args:
        decoder: the decoder.
        sequences: sequences of a micro-batch.
        context: tokens of a sequence.
        layout: the layout.
    """
    layers = float(decoder.layers)
    if layout.virtual_stages > 1:
        stages = layout.pipeline_parallel
        layers *= 1 + (stages - 1) / (stages * layout.virtual_stages)
    return layers * activation_bytes_of_layer(decoder, sequences, context, layout)
