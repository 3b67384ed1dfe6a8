"""The tags of a version in the registry. They show the version's actual release state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.models.common.installation import Endpoint
from millrace.serving.release.release_state import DesiredVersion, Release, ReleaseState
from millrace.serving.rollout.rollout import Split

Tags = Mapping[str, str | None]

STATUS = "millrace.status"
REASON = "millrace.reason"
SINCE = "millrace.since"
REPLICAS = "millrace.replicas"
ENDPOINT = "millrace.endpoint"
LINK = "millrace.release"


@dataclass(frozen=True)
class RunningStep:
    """The running step of a rollout.

    Attributes:
        split: how the requests are split.
        reason: what the rollout's judge has found so far.
    """

    split: Split
    reason: str

    def __str__(self) -> str:
        """Return the step in words."""
        weight = "" if self.split.kind == "shadow" else f" at {self.split.weight_percent:g}%"
        return f"{self.split.kind}{weight} beside version {self.split.champion}"


def compute_tags(
    state: ReleaseState,
    desired: DesiredVersion | None,
    answering: Sequence[Endpoint],
    replicas: int,
    running: RunningStep | None = None,
) -> dict[int, Tags]:
    """Return the tags that each affected version should have.

    Args:
        state: the model's release state.
        desired: the version that the alias points to.
        answering: the replicas that serve the live version.
        replicas: number of all replicas.
        running: the running step of the desired version's rollout; None if no step is running.
    """
    tags: dict[int, Tags] = {}
    live = state.live_version
    if (withdrawn := state.withdrawn) is not None and withdrawn.version != live:
        tags[withdrawn.version] = {STATUS: "staged", REASON: f"not live: {withdrawn.reason}"}
    if state.superseded is not None:
        tags[state.superseded] = {
            STATUS: "superseded",
            REASON: f"version {live} took its place" if state.live else "unloaded",
            SINCE: _format_time(state.live) if state.live else None,
            REPLICAS: None,
            ENDPOINT: None,
        }
    refused = state.refused if desired and state.has_refused(desired) else None
    if state.live is not None:
        tags[state.live.version] = _live_tags(
            state.live, answering, replicas, _explain_difference(state, desired, refused)
        )
    if refused is not None and refused.version != live:
        tags[refused.version] = {
            STATUS: "refused",
            REASON: refused.reason,
            SINCE: _format_time(refused),
            LINK: refused.link or None,
        }
    elif desired is not None and refused is None and not state.is_live(desired):
        waits = f"waits for replicas: {len(answering)} of {replicas} answer"
        tags[desired.version] = {STATUS: "staged", REASON: str(running or waits)}
    return tags


def _explain_difference(
    state: ReleaseState, desired: DesiredVersion | None, refused: Release | None
) -> str | None:
    """Return why the live version is not the one with the alias."""
    if refused is not None:
        return f"version {refused.version} has the alias, but was refused"
    if desired is not None:
        return None
    if state.is_kept and state.withdrawn is not None:
        return f"alias removed; version {state.withdrawn.version}, which had it last, was not live"
    return "its alias was removed; it will be unloaded unless an alias is set within a minute"


def _live_tags(
    live: Release, answering: Sequence[Endpoint], replicas: int, difference: str | None
) -> Tags:
    reason = difference
    if reason is None and len(answering) < replicas:
        reason = f"{replicas - len(answering)} of {replicas} replicas do not answer"
    return {
        STATUS: "live",
        REASON: reason,
        SINCE: _format_time(live),
        REPLICAS: f"{len(answering)} of {replicas}",
        ENDPOINT: ", ".join(map(str, answering)) or None,
        LINK: live.link or None,
    }


def _format_time(event: Release) -> str:
    return event.at.strftime("%Y-%m-%d %H:%M:%S UTC")
