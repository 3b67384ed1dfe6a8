"""The memory that the training of a decoder takes on every worker of Ray Train.

Weights, gradients and optimizer are counted (Rajbhandari et al. 2020, "ZeRO", section 3: Adam keeps
two numbers per parameter). Activations follow Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4, with two changes for today's decoders: the
attention matrix is not kept unless attention is eager, and a gated MLP keeps four vectors of its
intermediate width.
"""

from dataclasses import dataclass
from typing import Literal

from millrace.models.planner.decoder import Decoder

Parallel = Literal["ddp", "fsdp", "tp"]
"""How workers share a decoder; see `training.parallel` in the pipeline file."""
_FULL = 4
"""Bytes of a float32, the type of weights, gradients and both moments of AdamW."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that determine its memory.

    Attributes:
        parameters: number of parameters, frozen ones included.
        trained: number of trained parameters.
        layers: number of decoder layers.
        hidden: width of the residual stream.
        intermediate: width of an MLP.
        heads: number of query heads of a layer.
        key_value_width: width of all keys of a token in a layer.
        vocabulary: vocabulary size.
        gated: whether an MLP has a gate, as in llama.
        eager: whether attention keeps its matrix of weights.
    """

    parameters: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_width: int
    vocabulary: int
    gated: bool = True
    eager: bool = False


@dataclass(frozen=True)
class Load:
    """The training settings that determine the memory.

    Attributes:
        batch_size: sequences of a micro-step.
        context: tokens of a sequence.
        parallel: parallel strategy.
        workers: number of workers.
        half: whether matrices are multiplied in bfloat16.
        checkpointing: whether activations are recomputed (gradient checkpointing).
        moments: numbers that the optimizers keep per weight, on average.
    """

    batch_size: int
    context: int
    parallel: Parallel = "ddp"
    workers: int = 1
    half: bool = False
    checkpointing: bool = False
    moments: float = 2.0


@dataclass(frozen=True)
class Memory:
    """Bytes on one worker.

    Attributes:
        weights: the weights and their bfloat16 or gathered copies.
        gradients: gradients of the trained weights.
        optimizer: AdamW's two moments, or Muon's one.
        activations: activations kept from the forward pass for the backward pass.
        logits: the logits, their gradient and their log-softmax.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """The sum: the memory when the backward pass begins."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def memory_of(shape: Shape, load: Load) -> Memory:
    """Return the memory that one worker needs."""
    kept = load.workers if load.parallel in ("fsdp", "tp") else 1
    # fsdp gathers one whole layer, and prefetches the next.
    whole = 2 * shape.parameters / max(shape.layers, 1) if load.parallel == "fsdp" else 0.0
    copies = 2 * (whole or shape.parameters / kept) if load.half else whole * _FULL
    tokens = load.batch_size * load.context
    # float32 logits, their gradient and log-softmax; with bfloat16 also the bfloat16 logits.
    logits = tokens * shape.vocabulary * (3 * _FULL + (2 if load.half else 0))
    return Memory(
        weights=_FULL * shape.parameters / kept + copies,
        gradients=_FULL * shape.trained / kept,
        optimizer=load.moments * _FULL * shape.trained / kept,
        activations=activations_of(shape, load),
        logits=logits,
    )


def activations_of(shape: Shape, load: Load) -> float:
    """Return the bytes of activations that are kept for the backward pass.

    With gradient checkpointing a layer keeps its input only, and one layer at a time keeps all its
    activations.
    """
    tokens = load.batch_size * load.context
    layer = tokens * _bytes_of_a_layer(shape, load)
    if not load.checkpointing:
        return shape.layers * layer
    return shape.layers * tokens * shape.hidden * _FULL + layer


def _bytes_of_a_layer(shape: Shape, load: Load) -> float:
    """Return the bytes that a layer keeps of a token.

    With matrix products in bfloat16 the residual stream and the norms stay in float32, and what the
    products read of them is kept once more in bfloat16.
    """
    width, copies = (2, 2 * shape.hidden * 2) if load.half else (_FULL, 0)
    split = load.workers if load.parallel == "tp" else 1
    # Each of both norms: its input in float32, the normalized input, and its output.
    norms = 2 * 3 * shape.hidden
    # Queries and keys before and after the rotary embedding, values, and the attention output.
    attention = 3 * shape.hidden + 3 * shape.key_value_width
    scores = 2 * shape.heads * load.context if shape.eager else 0
    # A gated MLP: the gate, its activation, the other branch, and their product.
    mlp = (4 if shape.gated else 2) * shape.intermediate
    return norms * _FULL + copies + (attention + scores + mlp) / split * width


def shape_of_sizes(decoder: Decoder, trained: int | None = None) -> Shape:
    """Return the `Shape` of a decoder that is known by its sizes.

    Args:
        decoder: the decoder.
        trained: number of trained parameters; None: all.
    """
    parameters = decoder.parameters
    return Shape(
        parameters=parameters,
        trained=parameters if trained is None else trained,
        layers=decoder.layers,
        hidden=decoder.hidden,
        intermediate=decoder.intermediate,
        heads=decoder.heads,
        key_value_width=decoder.kv_heads * decoder.head_width,
        vocabulary=decoder.vocabulary,
        gated=decoder.gated,
    )
