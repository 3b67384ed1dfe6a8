"""The error of an unanswered request. Its text begins with the kind of error."""

INVALID = "invalid"
FULL = "full"
UNAVAILABLE = "unavailable"


class RequestError(Exception):
    """A request cannot be answered.

    Args:
        kind: `invalid`: the client's fault; `full`: too many requests; `unavailable`: try again.
        text: what is wrong, what was seen and what is valid.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def invalid(text: str) -> RequestError:
    """Return the error for an invalid request."""
    return RequestError(INVALID, text)
