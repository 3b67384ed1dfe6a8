"""Which requests belong together, and which share of all of them a request belongs to."""

import json
from hashlib import blake2b
from typing import Any


def sticky_value(request: Any, name: str) -> bytes:
    """Return what a request stays with a version by.

    Its parameter of that name, else its correlation id, else its id, else its inputs.
    """
    parameters = json.loads(request.parameters() or "{}")
    for value in (parameters.get(name), request.correlation_id() or None, request.request_id()):
        if value not in (None, ""):
            return str(value).encode()
    tensors = sorted(request.inputs(), key=lambda tensor: str(tensor.name()))
    return b"".join(tensor.name().encode() + _contents(tensor.as_numpy()) for tensor in tensors)


def share_of(salt: str, value: bytes) -> float:
    """Return a number in [0, 1), evenly spread over values and the same for the same ones.

    A value that is below one weight is below every larger one, so who once got the candidate keeps
    it in the steps that follow.

    Args:
        salt: what makes one rollout's spread another than the next one's.
        value: what belongs together.
    """
    digest = blake2b(salt.encode() + value, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _contents(array: Any) -> bytes:
    if array.dtype.kind == "O":
        return repr(array.tolist()).encode()
    return bytes(array.tobytes())
