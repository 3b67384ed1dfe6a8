"""What the release events of a model say about where it stands: decisions only, no effects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

Kind = Literal["live", "refused", "withdrawn", "unloaded", "unwanted", "step"]
"""live: clients get it. refused: it did not pass, what served before still does. withdrawn: the
alias left a refused version, which may be tried again. step: a step of a rollout of it began.
unwanted: the alias was removed, and may come back. unloaded: it did not, and nothing is served.
"""


@dataclass(frozen=True)
class Wish:
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
    def wish(self) -> Wish:
        """The version that it happened to, as an alias would ask for it."""
        return Wish(self.version, self.digest)


@dataclass(frozen=True)
class Standing:
    """Where a model stands.

    Attributes:
        live: the newest event that made a version live; None if there was none since the model
            was unloaded.
        superseded: the version that was live before it.
        refused: the newest refusal, unless it was withdrawn or something went live after it.
        served: every version, with its digest, that was live at some time: it has proved itself,
            and going back to it needs no new proof.
        step: the newest step of a rollout, until that ends.
        unwanted: the event that found the alias of what is live gone, until one is set again.
    """

    live: Release | None = None
    superseded: int | None = None
    refused: Release | None = None
    served: frozenset[Wish] = frozenset()
    step: Release | None = None
    unwanted: Release | None = None

    def refuses(self, wish: Wish) -> bool:
        """Whether this very version was refused, and nothing happened since to try it again."""
        return self.refused is not None and wish == self.refused.wish

    def is_at(self, wish: Wish, step: str) -> bool:
        """Whether the last step of a rollout was this one of this version."""
        last = self.step
        return last is not None and (last.version, last.reason) == (wish.version, step)

    def is_live(self, wish: Wish) -> bool:
        """Whether the version was the last one to go live."""
        return self.live is not None and wish == self.live.wish


def standing_of(releases: Iterable[Release], tried_again_from: datetime | None = None) -> Standing:
    """Return where a model stands after its events.

    Args:
        releases: the events of one model, oldest first.
        tried_again_from: refusals before this moment do not count: somebody asked once more.
    """
    standing = Standing()
    for event in releases:
        standing = _after(standing, event)
    refused = standing.refused
    if refused is not None and tried_again_from is not None and refused.at < tried_again_from:
        return _without_refusal(standing)
    return standing


def _after(standing: Standing, event: Release) -> Standing:
    if event.kind == "step":
        return replace(standing, step=event)
    if event.kind == "unwanted":
        return replace(standing, unwanted=event)
    if event.kind == "refused":
        return Standing(standing.live, standing.superseded, event, standing.served)
    if event.kind == "withdrawn":
        return _without_refusal(standing)
    if event.kind == "unloaded":
        return Standing(None, event.version, None, standing.served)
    before = standing.live.version if standing.live else standing.superseded
    superseded = standing.superseded if before == event.version else before
    served = standing.served | {event.wish}
    return Standing(event, superseded, None, served)


def _without_refusal(standing: Standing) -> Standing:
    return Standing(standing.live, standing.superseded, None, standing.served)
