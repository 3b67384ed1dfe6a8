"""Routing of a request: whether it is a probe, its sticky value, and the hash of that value."""

import json
from hashlib import blake2b
from typing import Any

PROBE = "millrace_probe"


def is_probe(request: Any) -> bool:
    """Whether a request is a health check."""
    return PROBE in _parameters(request)


def sticky_value(request: Any, name: str) -> bytes:
    """Return the value that decides the version, so that equal values get the same version.

    It is the parameter `name`, else the correlation id, else the request id, else the inputs.
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


def hash_to_share(salt: str, value: bytes) -> float:
    """Return a number in [0, 1): uniform over values, and the same for equal values.

    A share that is below the weight of one step is below the weights of later steps too. So a
    client that got the candidate once gets the candidate in all later steps.

    Args:
        salt: a text that differs between rollouts, so that the shares differ too.
        value: the sticky value.
    """
    digest = blake2b(salt.encode() + value, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _parameters(request: Any) -> dict[str, Any]:
    return dict(json.loads(request.parameters() or "{}"))


def _contents(array: Any) -> bytes:
    if array.dtype.kind == "O":
        return repr(array.tolist()).encode()
    return bytes(array.tobytes())
