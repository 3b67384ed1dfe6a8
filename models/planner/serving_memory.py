"""Bytes that serving a decoder takes: weights by data type, KV cache, and the streams that fit."""

from dataclasses import dataclass

from millrace.models.common.errors import InputError

WIDTHS = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}
"""Bytes of a number by data type, without the scales of a quantized block."""


def bytes_of_type(data_type: str) -> float:
    """Return the bytes of a number of a data type.

    Raises:
        InputError: the data type is unknown.
    """
    if data_type not in WIDTHS:
        raise InputError(
            f"unknown data type {data_type!r}", seen=data_type, valid=", ".join(WIDTHS)
        )
    return WIDTHS[data_type]


def weight_bytes(parameters: float, data_type: str, group_size: int | None = None) -> float:
    """Return the bytes of weights.

    Args:
        parameters: number of weights.
        data_type: their data type, a key of `WIDTHS`.
        group_size: weights that share a 16-bit scale; None: scales are not counted.

    Raises:
        InputError: the data type is unknown.
    """
    scale = 2.0 / group_size if group_size else 0.0
    return parameters * (bytes_of_type(data_type) + scale)


@dataclass(frozen=True)
class ServingMemory:
    """What one replica of a decoder may keep on its devices.

    Attributes:
        capacity: bytes of all its devices together that may be used.
        weights: bytes of the weights.
        workspace: bytes for activations and the runtime.
        kv_bytes_per_token: bytes of the KV cache of a token.
    """

    capacity: float
    weights: float
    workspace: float
    kv_bytes_per_token: float

    @property
    def left_for_cache(self) -> float:
        """Bytes that are left for the KV cache; 0 if the weights do not fit."""
        return max(0.0, self.capacity - self.weights - self.workspace)

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values fit."""
        return int(self.left_for_cache // self.kv_bytes_per_token)

    def most_streams(self, context: int) -> int:
        """Return how many sequences of `context` tokens fit at a time."""
        return self.cached_tokens // context

    def longest_context(self, streams: int) -> int:
        """Return the tokens that each of `streams` sequences may have."""
        return self.cached_tokens // streams
