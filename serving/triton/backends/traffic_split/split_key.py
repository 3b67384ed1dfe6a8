"""Whether a request is a client's, what it belongs with, and to which share of all of them."""

import json
from hashlib import blake2b
from typing import Any

PROBE = "millrace_probe"


def is_probe(request: Any) -> bool:
    """Return whether a request only asks if there is an answer."""
    return PROBE in _parameters(request)


def sticky_value(request: Any, name: str) -> bytes:
    """Return what a request stays with a version by.

    Its parameter of that name, else its correlation id, else its id, else its inputs.
    """
    for value in (
        _parameters(request).get(name),
        request.correlation_id() or None,
        request.request_id(),
    ):
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


def _parameters(request: Any) -> dict[str, Any]:
    return dict(json.loads(request.parameters() or "{}"))


def _contents(array: Any) -> bytes:
    if array.dtype.kind == "O":
        return repr(array.tolist()).encode()
    return bytes(array.tobytes())
