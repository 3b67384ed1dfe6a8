"""The time of a training step of a decoder on GPUs, as a sum of physical terms.

The terms: operations ÷ the peak, bytes of the operations between the matrix products ÷ the memory's
bandwidth, a cost for each layer and micro-batch, bytes that tensor parallelism sends ÷ the link's
bandwidth, and bytes of the gradients ÷ the network's. What goes through the pipeline is longer by
its bubble.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.models.planner.catalogue import Device
from millrace.models.planner.decoder import Decoder
from millrace.models.planner.parallelism import (
    Layout,
    Recompute,
    gradient_bytes_sent,
    micro_batches,
    pipeline_bubble,
    require_layout,
    tensor_parallel_bytes_sent,
)
from millrace.models.planner.training_flops import hardware_flops
from millrace.models.planner.training_memory import activation_bytes_of_layer

TERMS = ("operations", "memory", "layers", "tensor_parallel", "gradients")


@dataclass(frozen=True)
class TrainingStep:
    """One step of a training.

    Attributes:
        decoder: the decoder.
        layout: how the devices are used.
        batch: sequences of the step, over all devices.
        context: tokens of a sequence.
        micro_batch: sequences that a device takes at a time.
        data_type: data type of the matrix products.
    """

    decoder: Decoder
    layout: Layout
    batch: int
    context: int
    micro_batch: int = 1
    data_type: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse a layout that the decoder does not allow; see `require_layout`."""
        require_layout(self.layout, self.decoder)

    @property
    def described(self) -> Mapping[str, float]:
        """What says whether a fit has seen steps like this one."""
        return {
            "hidden": self.decoder.hidden,
            "layers": self.decoder.layers,
            "context": self.context,
            "tensor_parallel": self.layout.tensor_parallel,
            "pipeline_parallel": self.layout.pipeline_parallel,
            "devices": self.layout.world_size,
        }


def step_terms(step: TrainingStep, device: Device) -> dict[str, float]:
    """Return the terms of a step: seconds at the device's stated figures; of layers, their number.

    The bandwidths of a device without links or network are taken as its memory's.
    """
    decoder, layout = step.decoder, step.layout
    count = micro_batches(step.batch, layout, step.micro_batch)
    longer = 1 + pipeline_bubble(layout, count)
    layers = decoder.layers / layout.pipeline_parallel
    passes = count * layers * longer
    part = decoder.parameters / (layout.tensor_parallel * layout.pipeline_parallel)
    operations = hardware_flops(decoder, step.batch, step.context, layout.recompute)
    link = device.link_bandwidth or device.memory_bandwidth
    network = device.network_bandwidth or device.memory_bandwidth
    tokens = step.batch / layout.data_parallel * step.context
    sent = tensor_parallel_bytes_sent(decoder, tokens, layout)
    return {
        "operations": longer * operations / layout.world_size / device.rate(step.data_type),
        "memory": passes * _bytes_of_a_pass(step) / device.memory_bandwidth,
        "layers": passes,
        "tensor_parallel": longer * sent / link,
        "gradients": gradient_bytes_sent(part, layout) / network,
    }


def _bytes_of_a_pass(step: TrainingStep) -> float:
    """Return the activations that a layer writes for a micro-batch, forward and backward.

    The backward pass counts twice. What is recomputed is written once more: all of it, or the
    matrices of attention, which selective recomputation does not keep.
    """
    recompute = step.layout.recompute
    size = (step.decoder, step.micro_batch, step.context)
    everything = activation_bytes_of_layer(*size, _with(step.layout, "none"))
    again = {
        "none": 0.0,
        "selective": everything - activation_bytes_of_layer(*size, _with(step.layout, "selective")),
        "full": everything,
    }[recompute]
    return 3 * everything + again


def _with(layout: Layout, recompute: Recompute) -> Layout:
    return replace(layout, recompute=recompute)
