"""The outcome of a release for each model and server."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.cluster_state import ClusterState, Replica


@dataclass(frozen=True)
class Outcome:
    """The outcome of a release for one model on one server.

    Attributes:
        endpoint: the server.
        model: the model.
        version: the desired version; None when the model was to be unloaded.
        previous: the version that answered before; None if no version answered.
        changed: whether the server was changed.
        seconds: how long the change took.
        error: why the release failed; None if it did not fail. After a failure, the version that
            served before still serves.
        known: whether the error is a refusal that an earlier release already reported.
    """

    endpoint: Endpoint
    model: str
    version: int | None
    previous: int | None
    changed: bool
    seconds: float
    error: MillraceError | None = None
    known: bool = False


def raise_first_error(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Raise the first error among the outcomes, or return them."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes


def build_outcome(
    cluster: ClusterState,
    model: str,
    replica: Replica,
    error: MillraceError | None = None,
    *,
    is_new: bool = False,
) -> Outcome:
    """Return the outcome of a release that changed nothing on a replica.

    Args:
        cluster: the observed state.
        model: the model.
        replica: the server.
        error: the error of the model's release, if any.
        is_new: whether this release recorded an event, so that a refusal is new.
    """
    desired, known = cluster.desired_versions.get(model), False
    if error is None and desired and cluster.state(model).has_refused(desired):
        refused = cluster.state(model).refused
        error = refused_error(model, desired.version, refused.reason if refused else "")
        known = not is_new
    if error is None and replica.index is None:
        error = TransientError(
            f"no Triton answers at {replica.endpoint}",
            hint="start Triton with: millrace up; the next release brings it up to date",
        )
    version = desired.version if desired else None
    live = replica.live_version(model)
    return Outcome(replica.endpoint, model, version, live, False, 0.0, error, known)


def refused_error(model: str, version: int, reason: str) -> WorkError:
    """Return the error of a version that was refused."""
    return WorkError(
        f"version {version} of {one_line(model)} was refused",
        seen=reason,
        hint="a version that served before still serves; move the alias champion to another "
        "version, or run `millrace release` to try this version again",
    )


def summarize_error(error: MillraceError) -> str:
    """Return what failed, what was seen and what is valid in one line: a refusal's reason."""
    parts = [error.what, f"seen: {error.seen}" if error.seen else ""]
    parts.append(f"valid: {error.valid}" if error.valid else "")
    return "; ".join(part for part in parts if part)
