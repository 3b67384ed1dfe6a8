"""The release events of a model, and the state that follows from them; no effects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

Kind = Literal[
    "proved",
    "accepted",
    "live",
    "refused",
    "withdrawn",
    "left",
    "step",
    "unwanted",
    "unloaded",
]
"""What happened to a version:

- proved: it passed its trial.
- accepted: it passed the part of the trial that needs no server, in a batch job while no version
  was live. It is not live, and still needs the trial.
- live: clients get it.
- refused: it did not pass, and the version that served before still does.
- step: a step of its rollout began.
- withdrawn: it was refused or in a rollout, and the alias moved to another version, or it is to be
  tried again.
- left: it was refused or in a rollout, and its alias was removed; the live version stays.
- unwanted: it is live and its alias was removed; the alias may come back.
- unloaded: the alias did not come back, and nothing is served.
"""


@dataclass(frozen=True)
class DesiredVersion:
    """The version that an alias points to, and the digest that its files must have.

    Attributes:
        version: the version.
        digest: sha256 of its files.
        tags: its tags in the registry; two equal versions may have different tags.
        profile: digest of the serving profile that it is to be served with; empty for the settings
            of its pipeline file; None if that is not known.
    """

    version: int
    digest: str
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)
    profile: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Release:
    """One event in the life of a served model; a row of the release table.

    Attributes:
        model: the model.
        kind: what happened.
        version: the version that the event is about.
        digest: sha256 of the version's files.
        previous: the version that clients got before; None if there was none.
        asked_by: who or what requested the release.
        reason: why, in a sentence; may be empty.
        evidence: what was measured, as names and plain values.
        link: a link to more about the release; may be empty.
        seconds: time from the start of the release to the event.
        at: time of the event.
        id: unique id of the event.
    """

    model: str
    kind: Kind
    version: int
    digest: str = ""
    previous: int | None = None
    asked_by: str = ""
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""
    seconds: float = 0.0
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def desired(self) -> DesiredVersion:
        """The version that the event is about, as an alias would point to it."""
        return DesiredVersion(self.version, self.digest)


@dataclass(frozen=True)
class ReleaseState:
    """The state of a model after its release events.

    Attributes:
        live: the event that made the live version live; None if no version is.
        superseded: the version that was live before the live version.
        refused: the newest refusal, unless it was withdrawn or a version went live after it.
        served_before: every version that was ever live; going back to one needs no new trial.
        proved: the event of the newest passed trial, until a version goes live, is refused or
            withdrawn.
        step: the newest step of a rollout, until the rollout ends.
        withdrawn: the newest event `withdrawn` or `left`, until a version is refused, begins a
            rollout, goes live or is unloaded.
        is_kept: whether the live version stays without an alias, because the alias was on another
            version when it was removed.
        alias_removed: the event that the live version lost its alias, until an alias is set again.
        accepted: the newest acceptance by a batch job, until a version goes live, is refused or
            withdrawn.
    """

    live: Release | None = None
    superseded: int | None = None
    refused: Release | None = None
    served_before: frozenset[DesiredVersion] = frozenset()
    proved: Release | None = None
    step: Release | None = None
    withdrawn: Release | None = None
    is_kept: bool = False
    alias_removed: Release | None = None
    accepted: Release | None = None

    @property
    def live_version(self) -> int | None:
        """The number of the live version."""
        return self.live.version if self.live else None

    @property
    def attempted(self) -> Release | None:
        """The refusal or the rollout step of the version that has the alias and is not live."""
        return self.refused or self.step

    def has_refused(self, version: DesiredVersion) -> bool:
        """Whether this version was refused, and is not to be tried again."""
        return self.refused is not None and self.refused.desired == version

    def is_validated(self, version: DesiredVersion) -> bool:
        """Whether the version needs no trial: it was live before, or has just passed."""
        has_passed = self.proved is not None and self.proved.desired == version
        return version in self.served_before or has_passed

    def is_accepted(self, version: DesiredVersion) -> bool:
        """Whether a batch job accepted this version, and no later event ended the acceptance."""
        return self.accepted is not None and self.accepted.desired == version

    def has_completed_rollout(self, version: DesiredVersion) -> bool:
        """Whether a version's rollout has just succeeded: then the "proved" event has a reason."""
        proved = self.proved
        return proved is not None and proved.desired == version and bool(proved.reason)

    def is_at_step(self, version: DesiredVersion, step: str) -> bool:
        """Whether this is the newest step of the rollout of this version."""
        last = self.step
        return last is not None and (last.version, last.reason) == (version.version, step)

    def is_live(self, version: DesiredVersion) -> bool:
        """Whether this version is live."""
        return self.live is not None and self.live.desired == version


def derive_state(releases: Iterable[Release]) -> ReleaseState:
    """Return the state of a model after its events, oldest first."""
    state = ReleaseState()
    for event in releases:
        state = _apply_event(state, event)
    return state


def _apply_event(state: ReleaseState, event: Release) -> ReleaseState:
    match event.kind:
        case "proved":
            return replace(state, proved=event)
        case "accepted":
            return replace(state, accepted=event)
        case "refused":
            return ReleaseState(state.live, state.superseded, event, state.served_before)
        case "step":
            return replace(state, step=event, withdrawn=None, is_kept=False)
        case "withdrawn" | "left":
            return replace(
                state,
                refused=None,
                proved=None,
                step=None,
                withdrawn=event,
                is_kept=event.kind == "left",
                accepted=None,
            )
        case "unwanted":
            return replace(state, alias_removed=event)
        case "unloaded":
            return ReleaseState(None, event.version, None, state.served_before)
    before = state.live.version if state.live else state.superseded
    superseded = state.superseded if before == event.version else before
    return ReleaseState(event, superseded, None, state.served_before | {event.desired})
