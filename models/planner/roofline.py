"""The roofline: the least time that a device needs for some operations and bytes.

Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model". For
decoders see kipply, "Transformer Inference Arithmetic", and Pope et al. 2022 (2211.05102).
"""

from dataclasses import dataclass

from millrace.models.planner.decoder import Decoder


@dataclass(frozen=True)
class Work:
    """Operations and memory traffic of a step on one device.

    Attributes:
        flops: floating-point operations.
        bytes_moved: bytes read from and written to the device's memory.
    """

    flops: float
    bytes_moved: float

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Return the time of the slower of both, as if they overlapped in full."""
        return max(self.flops / flops_per_second, self.bytes_moved / bytes_per_second)


def prefill_work(
    decoder: Decoder, tokens: float, context: float, weight_width: float, kv_width: float = 2.0
) -> Work:
    """Return the work of reading prompts.

    Args:
        decoder: the decoder.
        tokens: tokens of all prompts of the step.
        context: tokens that each attends to on average: half of a prompt, with the causal mask.
        weight_width: bytes of a weight.
        kv_width: bytes of a number in the KV cache, which is written.
    """
    cache = tokens * decoder.kv_bytes_per_token(kv_width)
    return Work(
        flops=tokens * decoder.forward_flops(context),
        bytes_moved=read_parameters(decoder, tokens) * weight_width + cache,
    )


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
