"""How much memory training takes on every worker, by formula, to be held against what it took.

Weights, gradients and optimizer are counted (Rajbhandari et al. 2020, "ZeRO", section 3: Adam keeps
two numbers to a parameter). Activations follow Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4, with two changes for today's decoders: the
matrix of attention is not kept unless attention is eager, and a gated MLP keeps three wide vectors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.models.language.recipe import Parallel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FULL = 4
"""Bytes of a float32: weights, gradients and both moments of AdamW are kept in it."""


@dataclass(frozen=True)
class Shape:
    """What decides how much memory a decoder takes.

    Attributes:
        parameters: of the decoder, frozen ones included.
        trained: those that are trained.
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width of an MLP.
        heads: query heads.
        key_value_width: width of all keys of a token.
        vocabulary: tokens that are predicted among.
        gated: whether an MLP has a gate, as llama's.
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
    """What is trained at once, and how.

    Attributes:
        batch_size: sequences of a micro-step.
        context: tokens of each.
        parallel: the strategy.
        workers: that share it.
        half: whether matrices are multiplied in bfloat16.
        checkpointing: whether activations are computed again.
        moments: numbers that the optimizer keeps for a weight.
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
        weights: with the copies that are multiplied with.
        gradients: of what is trained.
        optimizer: AdamW's two moments, or the one of Muon.
        activations: kept from the forward pass for the backward one.
        logits: the answers for every token, and what the loss makes of them.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of them: what is held when the backward pass begins."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def memory_of(shape: Shape, load: Load) -> Memory:
    """Return what one worker needs."""
    kept = load.workers if load.parallel in ("fsdp", "tp") else 1
    # fsdp holds one layer whole, and fetches the next meanwhile.
    whole = 2 * shape.parameters / max(shape.layers, 1) if load.parallel == "fsdp" else 0.0
    copies = 2 * (whole or shape.parameters / kept) if load.half else whole * _FULL
    tokens = load.batch_size * load.context
    # float32 logits, their gradient and log-softmax; in bfloat16 the logits themselves besides.
    logits = tokens * shape.vocabulary * (3 * _FULL + (2 if load.half else 0))
    return Memory(
        weights=_FULL * shape.parameters / kept + copies,
        gradients=_FULL * shape.trained / kept,
        optimizer=load.moments * _FULL * shape.trained / kept,
        activations=activations_of(shape, load),
        logits=logits,
    )


def activations_of(shape: Shape, load: Load) -> float:
    """Return the bytes of activations that are kept.

    With checkpointing a layer keeps its input alone, and one layer at a time keeps everything.
    """
    tokens, width = load.batch_size * load.context, 2 if load.half else _FULL
    layer = tokens * _numbers_of_a_layer(shape, load) * width
    if not load.checkpointing:
        return shape.layers * layer
    return shape.layers * tokens * shape.hidden * _FULL + layer


def _numbers_of_a_layer(shape: Shape, load: Load) -> float:
    """Return how many numbers a layer keeps of every token."""
    split = load.workers if load.parallel == "tp" else 1
    # Both norms: their input in float32, normed, and what they give.
    norms = 2 * 3 * shape.hidden
    # Queries and keys before and after they are turned, values, and what attention gives.
    attention = 3 * shape.hidden + 3 * shape.key_value_width
    scores = 2 * shape.heads * load.context if shape.eager else 0
    # Of a gated MLP: the gate, what its activation gives, the other branch, and their product.
    mlp = (4 if shape.gated else 2) * shape.intermediate
    return norms + (attention + scores + mlp) / split


def shape_of(decoder: "PreTrainedModel") -> Shape:
    """Return the shape of a decoder that is whole."""
    config = decoder.config.get_text_config(decoder=True)
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    width = getattr(config, "head_dim", None) or hidden // heads
    pairs = getattr(config, "num_key_value_heads", None) or heads
    parameters = list(decoder.parameters())
    return Shape(
        parameters=sum(each.numel() for each in parameters),
        trained=sum(each.numel() for each in parameters if each.requires_grad),
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        heads=heads,
        key_value_width=int(pairs) * int(width),
        vocabulary=int(config.vocab_size),
        gated=any(name.endswith("gate_proj") for name, _ in decoder.named_modules()),
        eager=getattr(config, "_attn_implementation", "") == "eager",
    )
