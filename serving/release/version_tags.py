"""What the registry is told of a version: the tags that say what is real, whatever was wished."""

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
class Trial:
    """A rollout that is on.

    Attributes:
        split: its step.
        reason: what the judge said of it so far.
    """

    split: Split
    reason: str

    def __str__(self) -> str:
        """Return the step, for people."""
        weight = "" if self.split.kind == "shadow" else f" at {self.split.weight_percent:g}%"
        return f"{self.split.kind}{weight} beside version {self.split.champion}"


def statuses(
    standing: ReleaseState,
    wish: DesiredVersion | None,
    serving: Sequence[Endpoint],
    replicas: int,
    trial: Trial | None = None,
) -> dict[int, Tags]:
    """Return the tags that each version concerned should have.

    Args:
        standing: where the model stands.
        wish: the version that the alias asks for.
        serving: the replicas that answer with the version that is live.
        replicas: how many there are.
        trial: the rollout of the wish, if one is on.
    """
    found: dict[int, Tags] = {}
    live = standing.live and standing.live.version
    if (left := standing.withdrawn) is not None and left.version not in (live, None):
        found[left.version] = {STATUS: "staged", REASON: f"not live: {left.reason}"}
    if standing.superseded is not None:
        found[standing.superseded] = {
            STATUS: "superseded",
            REASON: f"version {live} took its place" if standing.live else "unloaded",
            SINCE: _moment(standing.live) if standing.live else None,
            REPLICAS: None,
            ENDPOINT: None,
        }
    refused = standing.refused if wish and standing.refuses(wish) else None
    if standing.live is not None:
        found[standing.live.version] = _live(
            standing.live, serving, replicas, _difference(standing, wish, refused)
        )
    if refused is not None and refused.version != live:
        found[refused.version] = {
            STATUS: "refused",
            REASON: refused.reason,
            SINCE: _moment(refused),
            LINK: refused.link or None,
        }
    elif wish is not None and refused is None and not standing.is_live(wish):
        waits = f"waits for replicas: {len(serving)} of {replicas} answer"
        found[wish.version] = {STATUS: "staged", REASON: str(trial or waits)}
    return found


def _difference(
    standing: ReleaseState, wish: DesiredVersion | None, refused: Release | None
) -> str | None:
    """Return why what is live is not what the alias says."""
    if refused is not None:
        return f"version {refused.version} has the alias, but was refused"
    if wish is not None:
        return None
    if standing.stays and standing.withdrawn is not None:
        return f"no version has the alias; the last one, {standing.withdrawn.version}, was not live"
    return "its alias was removed; it is unloaded unless one is set within a minute"


def _live(
    live: Release, serving: Sequence[Endpoint], replicas: int, difference: str | None
) -> Tags:
    reason = difference
    if reason is None and len(serving) < replicas:
        reason = f"{replicas - len(serving)} of {replicas} replicas do not answer"
    return {
        STATUS: "live",
        REASON: reason,
        SINCE: _moment(live),
        REPLICAS: f"{len(serving)} of {replicas}",
        ENDPOINT: ", ".join(endpoint.grpc for endpoint in serving) or None,
        LINK: live.link or None,
    }


def _moment(event: Release) -> str:
    return event.at.strftime("%Y-%m-%d %H:%M:%S UTC")
