"""Floating-point operations of training, and their share of a device's peak (MFU)."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
"""Dense bfloat16 operations per second on tensor cores, from NVIDIA's data sheets (half of a figure
"with sparsity"). The A10G is AWS's variant of the A10."""


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


def flops_per_token(cost: Cost, context: int) -> float:
    """Return the operations of one training step per token.

    The sum has three parts: 6 per trained parameter (forward 2, backward 4: Kaplan et al. 2020), 4
    per frozen parameter (its own gradient is not computed), and 12 × layers × heads × head width ×
    context for attention (Chowdhery et al. 2022, "PaLM", appendix B). As in PaLM, attention is
    counted without the causal mask or document boundaries, and the recomputation of gradient
    checkpointing is not counted.
    """
    attention = 12.0 * cost.layers * cost.heads * cost.head_width * context
    return 6.0 * cost.trained + 4.0 * cost.frozen + attention


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


def mfu(flops: float, tokens_per_second: float, device: str, devices: int) -> float | None:
    """Return the model FLOPs utilization (PaLM, appendix B), 0 to 1; None if the peak is unknown.

    Args:
        flops: operations per token.
        tokens_per_second: tokens per second over all devices.
        device: the device's name from torch; empty for a CPU, whose peak is not known.
        devices: number of devices.
    """
    peak = peak_of(device)
    return None if peak is None else flops * tokens_per_second / (peak * devices)


def peak_of(device: str) -> float | None:
    """Return the stated bfloat16 peak of a device in operations per second; None if not known."""
    for name, peak in PEAKS.items():
        words = r"[ -]".join(re.escape(word) for word in name.split())
        if re.search(rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", device, re.IGNORECASE):
            return peak
    return None


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
