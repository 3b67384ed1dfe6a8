"""What became of a release, model by model and server by server."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import MillraceError
from models.places import Endpoint


@dataclass(frozen=True)
class Outcome:
    """What became of one model on one server.

    Attributes:
        endpoint: the server.
        model: the model.
        version: the version that was wanted; None when the model was to be unloaded.
        previous: the version that answered before, if any.
        changed: whether the server was changed.
        seconds: how long that took.
        error: why it failed; what served before still does.
        known: whether an earlier release told that error already: a refusal that still holds.
    """

    endpoint: Endpoint
    model: str
    version: int | None
    previous: int | None
    changed: bool
    seconds: float
    error: MillraceError | None = None
    known: bool = False


def checked(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes, or raise the first error among them."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes
