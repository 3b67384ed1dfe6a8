"""The times of a decoder that is served on GPUs, as physical terms.

The time between two tokens (TPOT): weights ÷ the memory's bandwidth, the KV cache ÷ it, the prompts
that are read meanwhile (their matrix products and their attention) ÷ the peak, the step's own
operations ÷ the peak, a cost for each layer, for each layer with experts and for each stream (with
experts in each layer), and of tensor parallelism the all-reduces, by number and by bytes ÷ the
link's bandwidth.

The time to the first token (TTFT): the operations, the attention, the weights, the layers and the
all-reduces of one prompt, and what of the other streams' prompts it waits for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.models.planner.catalogue import Device
from millrace.models.planner.decoder import Decoder
from millrace.models.planner.parallelism import all_reduce_bytes
from millrace.models.planner.serving_memory import bytes_of_type

TERMS = (
    *("weights", "cache", "prompts", "prompt_attention", "operations", "layers", "streams"),
    *("all_reduces", "all_reduce_bytes"),
)
EXPERT_TERMS = (*(name for name in TERMS if name != "streams"), "stream_layers", "expert_layers")
"""The terms of a decoder with experts, which sorts its streams by expert in each layer."""
FIRST_TOKEN_TERMS = (
    *("prompt", "prompt_attention", "weights", "layers", "all_reduce_bytes"),
    *("queued_prompts", "queued_layers", "queued_tokens"),
)
SCALES = {"fp4": 1 / 16, "int4": 1 / 16}
"""Bytes of the scales of a quantized weight: of NVFP4 a byte for 16 weights, of int4 two for 32."""
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

    @property
    def attention_weights(self) -> str:
        """Data type of the attention's weights.

        Decoders with experts are published in four bits with their attention in 16: gpt-oss,
        Kimi K2.5, and NVIDIA's NVFP4 of DeepSeek and MiniMax.
        """
        narrow = self.decoder.experts is not None and bytes_of_type(self.weights) < 1
        return "bf16" if narrow else self.weights

    def stored_bytes(self, tokens: float) -> float:
        """Return the bytes of the weights that a step of `tokens` tokens reads."""
        decoder = self.decoder
        head = decoder.vocabulary * decoder.hidden
        others = read_parameters(decoder, tokens) - head - decoder.attention_parameters
        attention = decoder.attention_parameters * _stored_width(self.attention_weights)
        return others * _stored_width(self.weights) + attention + 2.0 * head

    def product_seconds(self, device: Device) -> float:
        """Return the seconds of a token's matrix products at the peak of all its devices."""
        decoder = self.decoder
        head = decoder.vocabulary * decoder.hidden
        others = decoder.matrix_parameters - head - decoder.attention_parameters
        attention = decoder.attention_parameters / device.rate(self.attention_weights)
        return 2.0 * (others / device.rate(self.weights) + attention) / self.tensor_parallel

    def attention_seconds(self, device: Device) -> float:
        """Return the seconds of the attention of a prompt's token, at the same peak."""
        # With the causal mask a token of a prompt attends to half of it.
        attended = self.decoder.attended_layer_tokens(self.prompt_tokens / 2)
        operations = 4.0 * self.decoder.score_width * attended
        return operations / self.tensor_parallel / device.rate("bf16")

    def all_reduce_seconds(self, device: Device, tokens: float) -> float:
        """Return the seconds of all all-reduces of a step of `tokens` tokens."""
        size = tokens * self.decoder.hidden * ACTIVATION
        link = device.link_bandwidth or device.memory_bandwidth
        return self.all_reduces * all_reduce_bytes(size, self.tensor_parallel) / link

    @property
    def all_reduces(self) -> int:
        """All-reduces of a step; experts on devices of their own need no others."""
        return ALL_REDUCES_OF_A_LAYER * self.decoder.layers if self.tensor_parallel > 1 else 0


def _stored_width(data_type: str) -> float:
    return bytes_of_type(data_type) + SCALES.get(data_type, 0.0)


def token_terms(load: ServingLoad, device: Device) -> dict[str, float]:
    """Return the terms of the mean time between two tokens of a stream.

    Seconds at the device's stated figures; of layers, streams and all-reduces, their number; of
    streams in layers, the product. While a stream gets its `output_tokens`, each of the others
    begins once on average, so a step reads streams ÷ output_tokens prompts.
    """
    decoder, streams, memory = load.decoder, load.streams, device.memory_bandwidth
    attended = decoder.attended_layer_tokens(load.prompt_tokens + load.output_tokens / 2)
    cache = streams * attended * decoder.kv_bytes_per_token() / decoder.layers
    read = streams / load.output_tokens * load.prompt_tokens
    return {
        "weights": load.stored_bytes(streams) / load.tensor_parallel / memory,
        "cache": cache / decoder.cache_split(load.tensor_parallel) / memory,
        "prompts": read * load.product_seconds(device),
        "prompt_attention": read * load.attention_seconds(device),
        "operations": streams * load.product_seconds(device),
        "layers": decoder.layers,
        "streams": streams,
        "stream_layers": streams * decoder.layers,
        "all_reduces": load.all_reduces,
        "all_reduce_bytes": load.all_reduce_seconds(device, streams + read),
        "expert_layers": decoder.expert_layers,
    }


def first_token_terms(load: ServingLoad, device: Device) -> dict[str, float]:
    """Return the terms of the mean time until the first token of a stream.

    Seconds at the device's stated figures; of layers and tokens, their number. What a prompt waits
    for grows with the streams, whose prompts come at once when a benchmark or a batch job begins.
    """
    tokens, decoder = load.prompt_tokens, load.decoder
    prompt = tokens * load.product_seconds(device)
    stored = load.stored_bytes(tokens) / load.tensor_parallel
    return {
        "prompt": prompt,
        "prompt_attention": tokens * load.attention_seconds(device),
        "weights": stored / device.memory_bandwidth,
        "layers": decoder.layers,
        "all_reduce_bytes": load.all_reduce_seconds(device, tokens),
        "queued_prompts": load.streams * prompt,
        "queued_layers": load.streams * decoder.layers,
        "queued_tokens": load.streams * tokens,
    }


def read_parameters(decoder: Decoder, tokens: float) -> float:
    """Return the expected number of weights that a step of `tokens` tokens reads.

    All matrices, and of the experts those that at least one token uses: with k of E experts for
    each token, taken as equally likely, E·(1 − (1 − k/E)^tokens) of them.
    """
    active = float(decoder.matrix_parameters)
    if decoder.experts is None:
        return active
    experts = decoder.experts
    used: float = experts.count * (1 - (1 - experts.per_token / experts.count) ** tokens)
    matrices = 3 if decoder.gated else 2
    expert = matrices * decoder.hidden * experts.width * decoder.expert_layers
    return active + (used - experts.per_token) * expert
