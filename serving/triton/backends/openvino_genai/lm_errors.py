"""The error of a request that is not answered; its text begins with a word for the error's kind."""

INVALID = "invalid"
FULL = "full"
UNAVAILABLE = "unavailable"


class RequestError(Exception):
    """A request is not answered.

    Args:
        kind: `invalid`, the client's fault; `full`, too many wait; `unavailable`, try again.
        text: what is wrong, what was seen and what is valid.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def invalid(text: str) -> RequestError:
    """Return the error of a request that is not valid."""
    return RequestError(INVALID, text)
