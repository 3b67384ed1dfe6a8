"""How a training is laid out over devices: what is split, what idles, what is sent."""

from dataclasses import dataclass
from typing import Literal

from millrace.models.common.errors import InputError
from millrace.models.planner.decoder import Decoder

Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
"""What data parallel devices share: nothing; the optimizer's states; the gradients too; the
weights too, which PyTorch calls FSDP (Rajbhandari et al. 2020, "ZeRO", 1910.02054)."""
Recompute = Literal["none", "selective", "full"]
"""Which activations are computed again in the backward pass: none, those inside attention, or all
(Korthikanti et al. 2022, 2205.05198)."""


@dataclass(frozen=True)
class Layout:
    """How one training uses its devices; the names are Megatron-LM's where it has one.

    Attributes:
        tensor_parallel: devices that share the matrices of a layer.
        pipeline_parallel: stages of the pipeline, each with a part of the layers.
        data_parallel: replicas of the model, each with a part of the batch.
        sequence_parallel: whether tensor parallel devices also share norms and dropouts.
        virtual_stages: groups of layers of a stage (interleaved 1F1B); 1: no interleaving.
        sharding: what data parallel devices share.
        recompute: which activations are computed twice.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    sequence_parallel: bool = False
    virtual_stages: int = 1
    sharding: Sharding = "ddp"
    recompute: Recompute = "none"

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


def require_layout(layout: Layout, decoder: Decoder) -> None:
    """Refuse a layout that the decoder cannot be laid out by.

    Raises:
        InputError: a size is below 1, tensor parallelism does not divide the heads, or the pipeline
            is deeper than the layers.
    """
    sizes = ("tensor_parallel", "pipeline_parallel", "data_parallel", "virtual_stages")
    for name in sizes:
        if (size := getattr(layout, name)) < 1:
            raise InputError(f"{name} must be at least 1", seen=str(size), valid="at least 1")
    if decoder.heads % layout.tensor_parallel:
        raise InputError(
            f"tensor_parallel {layout.tensor_parallel} does not divide the heads",
            seen=f"{decoder.heads} heads",
            valid="a divisor of the heads",
        )
    groups = layout.pipeline_parallel * layout.virtual_stages
    if groups > decoder.layers:
        raise InputError(
            f"the pipeline is deeper than the layers: {groups} groups of them",
            seen=f"{decoder.layers} layers",
            valid=f"pipeline_parallel x virtual_stages of at most {decoder.layers}",
        )


def micro_batches(batch: int, layout: Layout, micro_batch: int = 1) -> int:
    """Return how many micro-batches go through the pipeline in a step."""
    return batch // (layout.data_parallel * micro_batch)


def pipeline_bubble(layout: Layout, micro_batch_count: int) -> float:
    """Return the idle time of a pipeline, relative to the time that it computes.

    (p−1)/m for 1F1B, and (p−1)/(v·m) with v groups of layers in a stage (Narayanan et al. 2021,
    2104.04473, section 2.2).
    """
    return (layout.pipeline_parallel - 1) / (layout.virtual_stages * micro_batch_count)


def all_reduce_bytes(size: float, devices: int) -> float:
    """Return the bytes that each device sends in a ring all-reduce of `size` bytes.

    2·(n−1)/n of them: a reduce-scatter, then an all-gather (Patarasuk and Yuan 2009).
    """
    return 2 * all_gather_bytes(size, devices)


def all_gather_bytes(size: float, devices: int) -> float:
    """Return the bytes that each device sends in a ring all-gather, or reduce-scatter.

    Args:
        size: bytes of the whole, after the gathering or before the scattering.
        devices: number of devices.
    """
    return size * (devices - 1) / devices


def gradient_bytes_sent(parameters: float, layout: Layout, width: float = 2.0) -> float:
    """Return the bytes that each device sends in a step to share gradients and weights.

    An all-reduce of the gradients, 2Ψ; with zero1 and zero2 the same, as a reduce-scatter and an
    all-gather; with zero3 3Ψ, because the weights are gathered for the forward and for the
    backward pass (ZeRO, section 7).

    Args:
        parameters: parameters of one device's part of the model.
        layout: the layout.
        width: bytes of a weight and of a gradient.
    """
    gathers = 3 if layout.sharding == "zero3" else 2
    return gathers * all_gather_bytes(parameters * width, layout.data_parallel)


def tensor_parallel_bytes_sent(
    decoder: Decoder, tokens: float, layout: Layout, width: float = 2.0
) -> float:
    """Return the bytes that each device sends for the tensor parallelism of its layers.

    A layer all-reduces its output twice in the forward pass and twice in the backward pass, and
    twice more where the forward pass is repeated (Shoeybi et al. 2019, 1909.08053, section 3).
    With sequence parallelism the same bytes go as reduce-scatters and all-gathers.

    Args:
        decoder: the decoder.
        tokens: tokens that the device's stage processes.
        layout: the layout.
        width: bytes of an activation.
    """
    times = 6 if layout.recompute == "full" else 4
    layers = decoder.layers / layout.pipeline_parallel
    size = tokens * decoder.hidden * width
    return times * layers * all_reduce_bytes(size, layout.tensor_parallel)
