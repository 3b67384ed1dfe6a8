"""One release of one model: a plan is carried out, action by action.

`millrace.serving.release.plan` decides; here are the effects. Triton passes no change on to another
replica, so each one is told. Whatever stops this in the middle, the next release begins from what
it finds.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import singledispatchmethod
from threading import Event

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.external_errors import is_disk_error
from millrace.models.common.installation import Endpoint
from millrace.serving.release import load_version, trial
from millrace.serving.release.actions import (
    Action,
    CleanUp,
    Record,
    Retire,
    Stage,
    StartSplit,
    StopSplit,
    Switch,
    Tag,
    Unload,
    Validate,
    Verify,
    in_words,
)
from millrace.serving.release.cluster_state import ClusterState
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome, outcome_of, refusal, sentence
from millrace.serving.release.plan import plan
from millrace.serving.release.release_state import DesiredVersion, Kind, Release
from millrace.serving.release.trial import require_backend
from millrace.serving.rollout import splitting
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.server_index import live_version

log = logging.getLogger("millrace")

MAX_ROUNDS = 12
"""A refusal that is tried again takes six: it is withdrawn, staged, proved, recorded, what served
before is loaded, and tags are set.
"""


@dataclass(frozen=True)
class Request:
    """Who wants a release, and how.

    Attributes:
        asked_by: who or what asked for it, for the release table.
        link: where to read more about it.
        again_from: refusals before this moment are tried again; None keeps to them.
    """

    asked_by: str
    link: str = ""
    again_from: datetime | None = None


class ModelRelease:
    """What a release of one model last saw, did and could not do.

    Only one may be at work on a model at a time.

    Args:
        model: the model.
        observer: looks at everything.
        request: who asks, and how.
        stop: tells to begin nothing more.
    """

    def __init__(self, model: str, observer: Observer, request: Request, stop: Event) -> None:
        self.model, self.request = model, request
        self.world = _seen(observer, model)
        self._observer, self._stop = observer, stop
        self._desk, self._ledger = observer.desk, observer.ledger
        self._repository = observer.repository
        self._asked_for = self.world.wishes.get(model)
        self._began = time.perf_counter()
        self._failure: MillraceError | None = None
        self._refusal: MillraceError | None = None
        self._recorded = False
        self._unswept: set[str] = set()
        self._measured: dict[int, Mapping[str, object]] = {}
        self._changes: dict[Endpoint, Outcome] = {}

    def carry_out(self) -> None:
        """Plan, do and look again, until nothing is left to do or a fault leaves it to the next."""
        for _ in range(MAX_ROUNDS):
            actions = self._due()
            if not actions or self._failure or self._stop.is_set():
                return
            self._do_all(actions)
            try:
                self.world = _seen(self._observer, self.model)
            except MillraceError as error:  # what was done is told all the same
                self._failure = self._failure or error
                return
        if actions := self._due():
            self._failure = self._failure or WorkError(
                f"the release of {self.model} comes to no rest",
                seen=f"after {MAX_ROUNDS} rounds there is still: {in_words(actions[0])}",
                hint="see Triton's log; the next release goes on",
            )

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return what became of it on every replica; nothing where nobody wants it any more."""
        error = self._failure or self._refusal or self.world.registry_away
        if self.model not in self.world.wishes and not self._changes and error is None:
            return ()
        found = (
            outcome_of(self.world, self.model, replica, error, told_now=self._recorded)
            for replica in self.world.replicas
        )
        return tuple(self._with_change(outcome) for outcome in found)

    def _with_change(self, outcome: Outcome) -> Outcome:
        done = self._changes.get(outcome.endpoint)
        if done is None:
            return outcome
        return replace(done, version=outcome.version, error=outcome.error, known=outcome.known)

    def _due(self) -> list[Action]:
        return [
            action
            for action in plan(self.world)
            if not (isinstance(action, CleanUp) and action.name in self._unswept)
        ]

    def _do_all(self, actions: Sequence[Action]) -> None:
        """Do what was planned; a fault ends it."""
        for action in actions:
            if self._stop.is_set():
                return
            try:
                self._do(action)
                if isinstance(action, Validate) and not self._is_still_wanted():
                    return  # that took a while
            except (MillraceError, OSError) as raised:
                error = raised if isinstance(raised, MillraceError) else _local(action, raised)
                if not isinstance(action, CleanUp):
                    self._take(action, error)
                    return
                self._unswept.add(action.name)  # the next release sweeps again
                log.warning("%s is left behind: %s", action.name, error.what)

    def _take(self, action: Action, error: MillraceError) -> None:
        """Remember a refusal in the table; anything else is told, and tried again next time."""
        standing = self.world.standing(self.model)
        wish = action.wish if isinstance(action, Record) else self.world.wishes.get(self.model)
        judged = isinstance(action, Stage | Verify | Validate | StartSplit | Switch | Record)
        passing = error.transient or is_disk_error(error)
        if passing or not judged or not wish or standing.is_live(wish):
            self._failure = error
            return
        self._refusal = refusal(self.model, wish.version, sentence(error))
        self._append("refused", wish, sentence(error))

    @singledispatchmethod
    def _do(self, action: Action) -> None:
        """Carry one action out."""
        raise TypeError(f"{type(action).__name__} is no action")

    @_do.register
    def _(self, action: Stage) -> None:
        artifact = self._desk.fetch(action.model, action.version)
        for replica in self.world.reachable:
            with TritonClient(replica.endpoint) as client:
                require_backend(artifact, client)
        self._repository.stage(action.model, action.version, artifact)

    @_do.register
    def _(self, action: Verify) -> None:
        self._desk.verify(action.model, action.version, action.previous)

    @_do.register
    def _(self, action: StartSplit) -> None:
        with TritonClient(action.endpoint) as client:
            self._make_whole(action.model, action.split.champion, action.split.candidate)
            splitting.start_split(action.split, self._repository, client, anew=action.anew)

    @_do.register
    def _(self, action: StopSplit) -> None:
        with TritonClient(action.endpoint) as client:
            splitting.stop_split(action.model, client)

    @_do.register
    def _(self, action: Retire) -> None:
        self._repository.remove(action.model, action.version)

    @_do.register
    def _(self, action: Tag) -> None:
        self._desk.write(action.model, action.version, action.tags)

    @_do.register
    def _(self, action: Validate) -> None:
        expected = self._desk.expected(action.model, action.version)
        artifact = self._repository.artifact(action.model, action.version)
        expected.try_alone(artifact)
        # two trials at a time would slow each other down
        with self._repository.probing(), TritonClient(action.endpoint) as client:
            evidence = trial.try_on_replica(
                action.model,
                action.version,
                self._repository,
                client,
                expected,
            )
        draft = str(artifact.draft) if artifact.draft else ""
        told = {"draft": draft, "caution": expected.caution}
        known = {name: value for name, value in told.items() if value}
        self._measured[action.version] = asdict(evidence) | known

    @_do.register
    def _(self, action: Switch) -> None:
        self._make_whole(action.model, action.version, *action.keep)
        with TritonClient(action.endpoint) as client, self._noted(action):
            load_version.load(action, self._repository, client)

    @_do.register
    def _(self, action: Unload) -> None:
        with TritonClient(action.endpoint) as client, self._noted(action):
            load_version.unload(action, client)

    @contextmanager
    def _noted(self, action: Switch | Unload) -> Iterator[None]:
        start = time.perf_counter()
        yield
        version = action.version if isinstance(action, Switch) else None
        self._changes[action.endpoint] = Outcome(
            action.endpoint,
            action.model,
            version,
            action.previous,
            True,
            time.perf_counter() - start,
        )

    @_do.register
    def _(self, action: CleanUp) -> None:
        for endpoint in action.endpoints:
            with TritonClient(endpoint) as client:
                client.unload(action.name)
        self._repository.remove_model(action.name)

    @_do.register
    def _(self, action: Record) -> None:
        """Write an event; a version is live only if it answers by the served name as certified."""
        if action.kind == "live":
            self._check_live(action.model, action.wish.version)
        if action.kind == "proved" and action.reason:
            evidence = {**self._evidence(action.wish), "rollout": action.reason}
            self._measured[action.wish.version] = evidence
        self._append(action.kind, action.wish, action.reason, action.previous)

    def _check_live(self, model: str, version: int) -> None:
        expected = self._desk.expected(model, version)
        artifact = self._repository.artifact(model, version)
        for replica in self.world.reachable:
            if live_version(replica.index or (), model) == version:
                with TritonClient(replica.endpoint) as client:
                    expected.compare(client, model, artifact, version)

    def _append(
        self, kind: Kind, wish: DesiredVersion, reason: str, previous: int | None = None
    ) -> None:
        live = self.world.standing(self.model).live
        if previous is None and live is not None:
            previous = live.version
        release = Release(
            model=self.model,
            kind=kind,
            version=wish.version,
            digest=wish.digest,
            previous=previous,
            asked_by=self._asked_by(),
            reason=reason,
            evidence=self._evidence(wish) if kind in ("proved", "live", "refused") else {},
            link=self.request.link,
            seconds=time.perf_counter() - self._began,
        )
        self._ledger.append(release)
        self._recorded = True
        self._desk.tell(release)

    def _asked_by(self) -> str:
        """Return who asked, and that the alias moved while that release was under way."""
        asked_by = self.request.asked_by
        moved = self.world.wishes.get(self.model) != self._asked_for
        return f"the alias, which moved during a release ({asked_by})" if moved else asked_by

    def _evidence(self, wish: DesiredVersion) -> Mapping[str, object]:
        """Return what was measured of a version: now, or when it was proved or live before."""
        measured = self._measured.get(wish.version)
        if measured is not None:
            return measured
        earlier = [each for each in self._ledger.releases(self.model) if each.wish == wish]
        return next((each.evidence for each in reversed(earlier) if each.evidence), {})

    def _is_still_wanted(self) -> bool:
        """Look whether the alias is where it was when the plan was made."""
        now = self._desk.wishes(self.model).get(self.model)
        return now == self.world.wishes.get(self.model)

    def _make_whole(self, model: str, *versions: int) -> None:
        """Stage again what was changed on disk since it was staged."""
        for version in versions:
            if not self._repository.is_whole(model, version):
                log.warning("%s version %s was changed on disk; staged again", model, version)
                self._repository.stage(model, version, self._desk.fetch(model, version))


def _seen(observer: Observer, model: str) -> ClusterState:
    """Look at a model, or raise why it cannot be looked at."""
    world = observer.world(model)
    if model in world.faults:
        raise world.faults[model]
    return world


def _local(action: Action, error: OSError) -> MillraceError:
    return TransientError(
        f"{in_words(action)} failed",
        seen=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
        hint="check the free space and the permissions of MILLRACE_HOME; release again",
    )
