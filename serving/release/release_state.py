"""What the release events of a model say about where it stands: decisions only, no effects."""

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
"""proved: it passed its trial. accepted: it passed what of that needs no server, in a batch job
where nothing was live; that makes nothing live, and spares it no trial. live: clients get it.
refused: it did not pass, what served before still does. step: a step of a rollout of it began.
withdrawn: the alias left a version that was refused or rolled out, or it is to be tried again.
left: the alias of such a version is gone, and what is live stays. unwanted: the alias of what is
live was removed, and may come back. unloaded: it did not, and nothing is served.
"""


@dataclass(frozen=True)
class DesiredVersion:
    """The version that an alias asks for, by its number and what it must consist of."""

    version: int
    digest: str


@dataclass(frozen=True)
class Release:
    """One event in the life of a served model; a row of the release table.

    Attributes:
        model: the model.
        kind: what happened.
        version: the version that it happened to.
        digest: sha256 of its `model.onnx`.
        previous: the version that clients got before; None if there was none.
        asked_by: who or what asked for it.
        reason: why, in a sentence; empty where nothing needs saying.
        evidence: what was measured: names and plain values.
        link: where to read more; empty if there is no such place.
        seconds: how long it took.
        at: when it was over.
        id: of this event.
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
    def wish(self) -> DesiredVersion:
        """The version that it happened to, as an alias would ask for it."""
        return DesiredVersion(self.version, self.digest)


@dataclass(frozen=True)
class ReleaseState:
    """Where a model stands.

    Attributes:
        live: the newest event that made a version live; None if there was none since the model
            was unloaded.
        superseded: the version that was live before it.
        refused: the newest refusal, unless it was withdrawn or something went live after it.
        served: every version, with its digest, that was live at some time: it has proved itself,
            and going back to it needs no new proof.
        proved: the newest proof, until something goes live, is refused or withdrawn.
        step: the newest step of a rollout, until that ends.
        withdrawn: the last version that the alias left before it was live, until another is tried.
        stays: whether what is live stays without an alias: that was last on another version.
        unwanted: the event that found the alias of what is live gone, until one is set again.
        accepted: the newest acceptance by a batch job, until something goes live, is refused or
            withdrawn.
    """

    live: Release | None = None
    superseded: int | None = None
    refused: Release | None = None
    served: frozenset[DesiredVersion] = frozenset()
    proved: Release | None = None
    step: Release | None = None
    withdrawn: Release | None = None
    stays: bool = False
    unwanted: Release | None = None
    accepted: Release | None = None

    @property
    def tried(self) -> Release | None:
        """The event of the version that has the alias and is not live: refused, or rolled out."""
        return self.refused or self.step

    def refuses(self, wish: DesiredVersion) -> bool:
        """Whether this very version was refused, and nothing happened since to try it again."""
        return self.refused is not None and wish == self.refused.wish

    def has_proved(self, wish: DesiredVersion) -> bool:
        """Whether the version needs no proof: it was live once, or it passed a moment ago."""
        return wish in self.served or (self.proved is not None and wish == self.proved.wish)

    def is_accepted(self, wish: DesiredVersion) -> bool:
        """Whether a batch job accepted this very version, and nothing happened since."""
        return self.accepted is not None and wish == self.accepted.wish

    def has_passed(self, wish: DesiredVersion) -> bool:
        """Whether its rollout ended well a moment ago: then its proof says so."""
        return self.proved is not None and wish == self.proved.wish and bool(self.proved.reason)

    def is_at(self, wish: DesiredVersion, step: str) -> bool:
        """Whether the last step of a rollout was this one of this version."""
        last = self.step
        return last is not None and (last.version, last.reason) == (wish.version, step)

    def is_live(self, wish: DesiredVersion) -> bool:
        """Whether the version was the last one to go live."""
        return self.live is not None and wish == self.live.wish


def standing_of(releases: Iterable[Release]) -> ReleaseState:
    """Return where a model stands after its events, oldest first."""
    standing = ReleaseState()
    for event in releases:
        standing = _after(standing, event)
    return standing


def _after(standing: ReleaseState, event: Release) -> ReleaseState:
    match event.kind:
        case "proved":
            return replace(standing, proved=event)
        case "accepted":
            return replace(standing, accepted=event)
        case "refused":
            return ReleaseState(standing.live, standing.superseded, event, standing.served)
        case "step":
            return replace(standing, step=event, withdrawn=None, stays=False)
        case "withdrawn" | "left":
            stays = event.kind == "left"
            return replace(
                standing,
                refused=None,
                proved=None,
                step=None,
                withdrawn=event,
                stays=stays,
                accepted=None,
            )
        case "unwanted":
            return replace(standing, unwanted=event)
        case "unloaded":
            return ReleaseState(None, event.version, None, standing.served)
    before = standing.live.version if standing.live else standing.superseded
    superseded = standing.superseded if before == event.version else before
    return ReleaseState(event, superseded, None, standing.served | {event.wish})
