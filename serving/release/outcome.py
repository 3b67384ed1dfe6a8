"""What became of a release, model by model and server by server."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.triton.server_index import live_version


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


def outcome_of(
    world: ClusterState,
    model: str,
    replica: Replica,
    error: MillraceError | None = None,
    *,
    told_now: bool = False,
) -> Outcome:
    """Return where a model stands on a replica, unchanged.

    Args:
        world: what was seen.
        model: the model.
        replica: the server.
        error: what its release failed with.
        told_now: whether this release wrote an event: a refusal is no old one then.
    """
    wish, known = world.wishes.get(model), False
    live = None if replica.index is None else live_version(replica.index, model)
    if error is None and wish and world.standing(model).refuses(wish):
        refused = world.standing(model).refused
        error = refusal(model, wish.version, refused.reason if refused else "")
        known = not told_now
    if error is None and replica.index is None:
        error = TransientError(
            f"no Triton answers at {replica.endpoint.grpc}",
            hint="start it with: millrace up; the next release brings it up to date",
        )
    version = wish.version if wish else None
    return Outcome(replica.endpoint, model, version, live, False, 0.0, error, known)


def refusal(model: str, version: int, reason: str) -> WorkError:
    """Return the error of a version that did not pass."""
    return WorkError(
        f"version {version} of {one_line(model)} was refused",
        seen=reason,
        hint="what served before still does; move the alias, or run millrace release to try again",
    )


def sentence(error: MillraceError) -> str:
    """Return what failed, what was seen and what is valid in one line: the reason of a refusal."""
    parts = [error.what, f"seen: {error.seen}" if error.seen else ""]
    parts.append(f"valid: {error.valid}" if error.valid else "")
    return "; ".join(part for part in parts if part)
