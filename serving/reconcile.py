"""Make every Triton server serve the champions: the one place that carries a plan out.

`serving.plan` decides; here are the effects. Triton passes no change on to another replica, so
each one is told. Whatever stops this in the middle, the next pass begins from what it finds.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import singledispatchmethod

from models.errors import MillraceError, TransientError, WorkError
from models.places import Endpoint
from serving import loading, splitting, trial
from serving.actions import (
    Action,
    Dismantle,
    Divert,
    Prove,
    Record,
    Retire,
    Stage,
    Sweep,
    Switch,
    Tag,
    Unload,
    Verify,
    in_words,
    of_model,
)
from serving.client import TritonClient
from serving.config import Device
from serving.desk import Desk
from serving.index import live_version
from serving.ledger import Ledger
from serving.observe import Observer
from serving.outcome import Outcome
from serving.plan import plan
from serving.repository import Repository
from serving.standing import Release, Wish
from serving.world import Replica, World

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
        device: where instances run.
    """

    asked_by: str
    link: str = ""
    again_from: datetime | None = None
    device: Device = "cpu"


def reconcile(
    desk: Desk,
    ledger: Ledger,
    repository: Repository,
    endpoints: Sequence[Endpoint],
    request: Request,
) -> tuple[Outcome, ...]:
    """Bring every server to the desired versions, as far as that goes.

    A version that is refused leaves what served before serving, and no model stops another: its
    outcome carries the error. Doing it again changes nothing.

    Args:
        desk: the registry's side.
        ledger: the release table.
        repository: the model repository that the servers read.
        endpoints: every server.
        request: who asks, and how.

    Raises:
        TransientError: the registry does not answer; every server has what was live.
    """
    with repository.exclusive():
        observer = Observer(desk, ledger, repository, tuple(endpoints), request.again_from)
        release = _Pass(desk, ledger, repository, request, observer.world())
        for _ in range(MAX_ROUNDS):
            actions = [a for a in plan(release.world) if a.model not in release.failed]
            if not actions:
                break
            release.carry_out(actions)
            release.world = observer.world()
        else:
            release.comes_to_no_rest(plan(release.world))
        if release.world.registry_away is not None:
            raise release.world.registry_away
        return release.outcomes()


class _Pass:
    """One pass over all models: what it last saw, did and could not do."""

    def __init__(
        self, desk: Desk, ledger: Ledger, repository: Repository, request: Request, world: World
    ) -> None:
        self.desk, self.ledger, self.repository = desk, ledger, repository
        self.request, self.world = request, world
        self.failed: dict[str, MillraceError] = {}
        self.refused: dict[str, MillraceError] = {}
        self.recorded: set[str] = set()
        self.asked_for = dict(world.wishes)
        self.evidence: dict[tuple[str, int], Mapping[str, object]] = {}
        self.began: dict[str, float] = {}
        self.changes: dict[tuple[str, Endpoint], Outcome] = {}

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Do what was planned, model by model; a fault ends the actions of its model only."""
        for model in dict.fromkeys(action.model for action in actions):
            self.began.setdefault(model, time.perf_counter())
            for action in of_model(actions, model):
                try:
                    self._do(action)
                    if isinstance(action, Prove) and not self._is_still_wanted(action):
                        break  # that took a while
                except MillraceError as error:
                    self._failed(action, error)
                    break
                except OSError as error:
                    self._failed(action, _of_this_machine(action, error))
                    break

    def comes_to_no_rest(self, actions: Sequence[Action]) -> None:
        """Take note that after so many rounds there is still something to do."""
        for action in actions:
            self.failed.setdefault(
                action.model,
                WorkError(
                    f"the release of {action.model} comes to no rest",
                    seen=f"after {MAX_ROUNDS} rounds there is still: {in_words(action)}",
                    hint="see Triton's log; the next release goes on",
                ),
            )

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return what became of every model on every replica, as it was when all was done."""
        world = self.world
        models = sorted(world.wishes.keys() | {model for model, _ in self.changes})
        return tuple(self._outcome(world, model, r) for model in models for r in world.replicas)

    def _outcome(self, world: World, model: str, replica: Replica) -> Outcome:
        wish = world.wishes.get(model)
        live = None if replica.index is None else live_version(replica.index, model)
        error, known = self.failed.get(model) or self.refused.get(model), False
        if error is None and wish and world.standing(model).refuses(wish):
            refused = world.standing(model).refused
            error = _refusal(model, wish.version, refused.reason if refused else "")
            known = model not in self.recorded
        if error is None and replica.index is None:
            error = TransientError(
                f"no Triton answers at {replica.endpoint.grpc}",
                hint="start it with: millrace up; the next release brings it up to date",
            )
        version = wish.version if wish else None
        done = self.changes.get((model, replica.endpoint))
        if done is None:
            return Outcome(replica.endpoint, model, version, live, False, 0.0, error, known)
        return replace(done, version=version, error=error, known=known)

    def _failed(self, action: Action, error: MillraceError) -> None:
        """Remember a refusal in the table; anything else is told, and tried again next time."""
        standing = self.world.standing(action.model)
        wish = action.wish if isinstance(action, Record) else self.world.wishes.get(action.model)
        judged = isinstance(action, Stage | Verify | Prove | Divert | Switch | Record)
        if error.transient or not judged or not wish or standing.is_live(wish):
            self.failed[action.model] = error
            return
        self.refused[action.model] = _refusal(action.model, wish.version, _sentence(error))
        self._append(action.model, "refused", wish, _sentence(error))

    @singledispatchmethod
    def _do(self, action: Action) -> None:
        """Carry one action out."""
        raise TypeError(f"{type(action).__name__} is no action")

    @_do.register
    def _(self, action: Stage) -> None:
        artifact = self.desk.fetch(action.model, action.version)
        self.repository.stage(action.model, action.version, artifact)

    @_do.register
    def _(self, action: Verify) -> None:
        self.desk.verify(action.model, action.version, action.previous)

    @_do.register
    def _(self, action: Divert) -> None:
        with TritonClient(action.endpoint) as client:
            self._make_whole(action.model, action.split.champion, action.split.candidate)
            device, anew = self.request.device, action.anew
            splitting.divert(action.split, self.repository, client, device=device, anew=anew)

    @_do.register
    def _(self, action: Dismantle) -> None:
        with TritonClient(action.endpoint) as client:
            splitting.dismantle(action.model, client)

    @_do.register
    def _(self, action: Retire) -> None:
        self.repository.remove(action.model, action.version)

    @_do.register
    def _(self, action: Tag) -> None:
        self.desk.write(action.model, action.version, action.tags)

    @_do.register
    def _(self, action: Prove) -> None:
        expected = self.desk.expected(action.model, action.version)
        trial.try_alone(self.repository.onnx(action.model, action.version), expected)
        with TritonClient(action.endpoint) as client:
            evidence = trial.try_on_replica(
                action.model,
                action.version,
                self.repository,
                client,
                expected,
                device=self.request.device,
            )
        self.evidence[action.model, action.version] = asdict(evidence)

    @_do.register
    def _(self, action: Switch) -> None:
        moved, of = self.world.moves.get(action.model), (action.model, action.version)
        if moved is not None and moved.kind == "promote":
            self.evidence[of] = {**self.evidence.get(of, {}), "rollout": moved.reason}
        self._make_whole(action.model, action.version, *action.keep)
        with TritonClient(action.endpoint) as client, self._noted(action):
            loading.load(action, self.repository, client, device=self.request.device)

    @_do.register
    def _(self, action: Unload) -> None:
        with TritonClient(action.endpoint) as client, self._noted(action):
            loading.unload(action, client)

    @contextmanager
    def _noted(self, action: Switch | Unload) -> Iterator[None]:
        start = time.perf_counter()
        yield
        version = action.version if isinstance(action, Switch) else None
        self.changes[action.model, action.endpoint] = Outcome(
            action.endpoint,
            action.model,
            version,
            action.previous,
            True,
            time.perf_counter() - start,
        )

    @_do.register
    def _(self, action: Sweep) -> None:
        for endpoint in action.endpoints:
            with TritonClient(endpoint) as client:
                client.unload(action.model)
        self.repository.remove_model(action.model)

    @_do.register
    def _(self, action: Record) -> None:
        """Write an event; a version is live only if it answers by the served name as certified."""
        if action.kind == "live":
            self._check_live(action.model, action.wish.version)
        self._append(action.model, action.kind, action.wish, action.reason, action.previous)

    def _check_live(self, model: str, version: int) -> None:
        expected = self.desk.expected(model, version)
        batch = trial.batch_of(self.repository, model, version)
        for replica in self.world.reachable:
            if live_version(replica.index or (), model) == version:
                with TritonClient(replica.endpoint) as client:
                    trial.compare(client, model, expected, batch, version)

    def _append(
        self, model: str, kind: str, wish: Wish, reason: str, previous: int | None = None
    ) -> None:
        live = self.world.standing(model).live
        if previous is None and live is not None:
            previous = live.version
        release = Release(
            model=model,
            kind=kind,  # type: ignore[arg-type]
            version=wish.version,
            digest=wish.digest,
            previous=previous,
            asked_by=self._asked_by(model),
            reason=reason,
            evidence=self._evidence(model, wish) if kind in ("live", "refused") else {},
            link=self.request.link,
            seconds=time.perf_counter() - self.began.get(model, time.perf_counter()),
        )
        self.ledger.append(release)
        self.recorded.add(model)
        self.desk.tell(release)

    def _asked_by(self, model: str) -> str:
        """Return who asked, and that the alias moved while that release was under way."""
        asked_by = self.request.asked_by
        moved = self.world.wishes.get(model) != self.asked_for.get(model)
        return f"the alias, which moved during a release ({asked_by})" if moved else asked_by

    def _evidence(self, model: str, wish: Wish) -> Mapping[str, object]:
        """Return what was measured of a version on its way: now, or when it first went live."""
        measured = self.evidence.get((model, wish.version))
        if measured is not None:
            return measured
        earlier = [each for each in self.ledger.releases(model) if each.wish == wish]
        return next((each.evidence for each in reversed(earlier) if each.evidence), {})

    def _is_still_wanted(self, action: Prove) -> bool:
        """Look whether the alias is where it was when the plan was made."""
        now = self.desk.wishes().get(action.model)
        return now == self.world.wishes.get(action.model)

    def _make_whole(self, model: str, *versions: int) -> None:
        """Stage again what was changed on disk since it was staged."""
        for version in versions:
            if not self.repository.is_whole(model, version):
                log.warning("%s version %s was changed on disk; staged again", model, version)
                self.repository.stage(model, version, self.desk.fetch(model, version))


def _of_this_machine(action: Action, error: OSError) -> MillraceError:
    return TransientError(
        f"{in_words(action)} failed",
        seen=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
        hint="check the free space and the permissions of MILLRACE_HOME; release again",
    )


def _sentence(error: MillraceError) -> str:
    parts = [error.what, f"seen: {error.seen}" if error.seen else ""]
    parts.append(f"valid: {error.valid}" if error.valid else "")
    return "; ".join(part for part in parts if part)


def _refusal(model: str, version: int, reason: str) -> WorkError:
    return WorkError(
        f"version {version} of {model} was refused",
        seen=reason,
        hint="what served before still does; move the alias, or run millrace release to try again",
    )
