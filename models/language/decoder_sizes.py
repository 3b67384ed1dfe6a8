"""The sizes of a decoder that is built, which determine its operations and its memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from millrace.models.planner.catalogue import device_named
from millrace.models.planner.training_flops import flops_per_token, flops_utilization
from millrace.models.planner.worker_memory import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Cost:
    """The sizes of a decoder that determine the operations per token.

    Attributes:
        trained: number of trained parameters in matrix products. Of the experts' parameters only
            the share that processes a token counts.
        frozen: number of frozen parameters in matrix products, counted in the same way.
        layers: number of layers with attention.
        heads: query heads of a layer.
        head_width: width of a head.
    """

    trained: float
    frozen: float
    layers: int
    heads: int
    head_width: int


def flops_of_token(cost: Cost, context: int) -> float:
    """Return the operations of one training step per token, as PaLM counts them for MFU."""
    attention_width = cost.layers * cost.heads * cost.head_width
    return flops_per_token(cost.trained, cost.frozen, attention_width, context)


def cost_of(decoder: "PreTrainedModel") -> Cost:
    """Return the `Cost` of a decoder that is not yet sharded or split over workers."""
    config = decoder.config.get_text_config(decoder=True)
    share = _active_share(config)
    looked_up = _looked_up(decoder)
    sums = {True: 0.0, False: 0.0}
    for name, each in decoder.named_parameters():
        if each.ndim > 1 and id(each) not in looked_up:
            sums[each.requires_grad] += each.numel() * (share if ".experts." in name else 1.0)
    heads = int(config.num_attention_heads)
    width = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
    return Cost(sums[True], sums[False], int(config.num_hidden_layers), heads, int(width))


def mfu(flops: float, tokens_per_second: float, name: str, devices: int) -> float | None:
    """Return the model FLOPs utilization (PaLM, appendix B), 0 to 1; None if the peak is unknown.

    The peak is the device's bfloat16 rate in the catalogue of the planner.

    Args:
        flops: operations per token.
        tokens_per_second: tokens per second over all devices.
        name: the device's name from torch; empty for a CPU, whose peak is not known.
        devices: number of devices.
    """
    device = device_named(name)
    if device is None:
        return None
    return flops_utilization(flops * tokens_per_second, 1.0, device.rate("bf16"), devices)


def shape_of(decoder: "PreTrainedModel") -> Shape:
    """Return the `Shape` of a decoder that is not yet sharded or split over workers."""
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


def _looked_up(decoder: "PreTrainedModel") -> set[int]:
    """Return `id()` of each embedding table, except a table that is also the head's matrix."""
    head = decoder.get_output_embeddings()  # type: ignore[no-untyped-call]
    multiplied = id(head.weight) if head is not None else 0
    tables = (id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding))
    return {table for table in tables if table != multiplied}


def _active_share(config: Any) -> float:
    """Return the share of the experts that process a token; 1 without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    there = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    taken = getattr(config, "num_experts_per_tok", None)
    return float(taken) / float(there) if there and taken else 1.0
