"""Why a request gets no answer, in words that a machine can tell apart by the first."""

INVALID = "invalid"
FULL = "full"
UNAVAILABLE = "unavailable"


class Refused(Exception):
    """A request is not answered.

    Args:
        kind: `invalid`, the client's fault; `full`, too much waits; `unavailable`, try again.
        text: what is wrong, what was seen and what is valid.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def invalid(text: str) -> Refused:
    """Return the refusal of a request that no retry helps."""
    return Refused(INVALID, text)
