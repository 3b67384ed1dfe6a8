"""The time between two tokens (TPOT) of a decoder that is served on GPUs, as physical terms.

The terms: weights ÷ the memory's bandwidth, the KV cache ÷ it, the prompts that are read meanwhile
(their matrix products and their attention) ÷ the peak, the step's own operations ÷ the peak, a cost
for each layer and for each stream, and of tensor parallelism the all-reduces, by number and by
bytes ÷ the link's bandwidth.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.models.planner.catalogue import Device
from millrace.models.planner.decoder import Decoder
from millrace.models.planner.parallelism import all_reduce_bytes
from millrace.models.planner.roofline import read_parameters
from millrace.models.planner.serving_memory import bytes_of_type

TERMS = (
    *("weights", "cache", "prompts", "prompt_attention", "operations", "layers", "streams"),
    *("all_reduces", "all_reduce_bytes"),
)
SCALES = {"fp4": 1 / 16}
"""Bytes of the scales of a quantized weight: of NVFP4 a byte for 16 weights."""
ALL_REDUCES_OF_A_LAYER = 2
ACTIVATION = 2
"""Bytes of an activation that tensor parallelism sends."""


@dataclass(frozen=True)
class ServingLoad:
    """A load that a served decoder gets all the time.

    Attributes:
        decoder: the decoder.
        weights: data type of the weights in its layers; the head and the cache are in 16 bits.
        streams: sequences that are generated at a time.
        prompt_tokens: tokens of a prompt.
        output_tokens: tokens of an answer.
        tensor_parallel: devices that share each layer.
    """

    decoder: Decoder
    weights: str
    streams: int
    prompt_tokens: int
    output_tokens: int
    tensor_parallel: int = 1

    @property
    def described(self) -> Mapping[str, float]:
        """What says whether a fit has seen loads like this one."""
        return {
            "parameters": self.decoder.parameters,
            "streams": self.streams,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "tensor_parallel": self.tensor_parallel,
        }


def token_terms(load: ServingLoad, device: Device) -> dict[str, float]:
    """Return the terms of the mean time between two tokens of a stream.

    Seconds at the device's stated figures; of layers, streams and all-reduces, their number. While
    a stream gets its `output_tokens`, each of the others begins once on average, so a step reads
    streams ÷ output_tokens prompts.
    """
    decoder, split = load.decoder, load.tensor_parallel
    head = decoder.vocabulary * decoder.hidden
    width = bytes_of_type(load.weights) + SCALES.get(load.weights, 0.0)
    stored = (read_parameters(decoder, load.streams) - head) * width + 2.0 * head
    context = load.prompt_tokens + load.output_tokens / 2
    cache = load.streams * context * decoder.kv_bytes_per_token()
    read = load.streams / load.output_tokens * load.prompt_tokens
    matrices = 2.0 * (decoder.matrix_parameters - head)
    # With the causal mask a token of a prompt attends to half of it.
    attention = 4.0 * decoder.layers * decoder.score_width * load.prompt_tokens / 2
    rate, memory = device.rate(load.weights), device.memory_bandwidth
    reduces = ALL_REDUCES_OF_A_LAYER * decoder.layers if split > 1 else 0
    size = (load.streams + read) * decoder.hidden * ACTIVATION
    return {
        "weights": stored / split / memory,
        "cache": cache / split / memory,
        "prompts": read * matrices / split / rate,
        "prompt_attention": read * attention / split / device.rate("bf16"),
        "operations": load.streams * matrices / split / rate,
        "layers": decoder.layers,
        "streams": load.streams,
        "all_reduces": reduces,
        "all_reduce_bytes": reduces
        * all_reduce_bytes(size, split)
        / (device.link_bandwidth or memory),
    }
