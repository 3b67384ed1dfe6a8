"""Make every Triton server serve the champions: the one place that carries a plan out.

`serving.plan` decides; here are the effects. Triton passes no change on to another replica, so
each one is told. Whatever stops this in the middle, the next pass begins from what it finds.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import singledispatchmethod
from typing import Protocol

from models.errors import MillraceError, TransientError, WorkError
from models.pipeline import RolloutSpec
from models.places import Endpoint
from serving import splitting, trial
from serving.client import TritonClient
from serving.config import Device, model_config, specific
from serving.index import live_version, ready_versions
from serving.judge import Counts
from serving.ledger import Ledger
from serving.plan import (
    Action,
    Dismantle,
    Divert,
    Policy,
    Prove,
    Record,
    Replica,
    Retire,
    Stage,
    Sweep,
    Switch,
    Tag,
    Unload,
    Verify,
    World,
    of_model,
    plan,
)
from serving.repository import Artifact, Repository
from serving.rollout import Split, move
from serving.split_metrics import counted, read
from serving.standing import Release, Standing, Wish, standing_of
from serving.status import Tags

log = logging.getLogger("millrace")

UNLOAD_SECONDS = 60.0
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.02
MAX_ROUNDS = 8
"""A refusal takes four: it is found, recorded, what served before is loaded, and tags are set."""


class Desk(Protocol):
    """The registry's side of a release."""

    def wishes(self) -> Mapping[str, Wish]:
        """Return the champion of each model that was registered by Millrace."""
        ...

    def left_alone(self) -> frozenset[str]:
        """Return the models whose champion was not registered by Millrace."""
        ...

    def tags(self, model: str, version: int) -> Mapping[str, str] | None:
        """Return the tags of a version; None if it was deleted."""
        ...

    def fetch(self, model: str, version: int) -> Artifact:
        """Bring a version to this machine, its digest checked."""
        ...

    def verify(self, model: str, version: int, previous: int | None) -> None:
        """Raise unless the version is what its pipeline requires of a champion."""
        ...

    def expected(self, model: str, version: int) -> trial.Expected:
        """Return what the version must answer."""
        ...

    def rollout(self, model: str, version: int) -> RolloutSpec:
        """Return how the version comes to all traffic."""
        ...

    def write(self, model: str, version: int, tags: Tags) -> None:
        """Set tags of a version; None removes one."""
        ...

    def tell(self, release: Release) -> None:
        """Keep the evidence of an event where people look for it."""
        ...


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
    """
    with repository.exclusive():
        release = _Pass(desk, ledger, repository, tuple(endpoints), request)
        for _ in range(MAX_ROUNDS):
            actions = [a for a in plan(release.observed()) if a.model not in release.failed]
            if not actions:
                break
            release.carry_out(actions)
        return release.outcomes()


def checked(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes, or raise the first error among them."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes


class _Pass:
    """One pass over all models: what it saw, did and could not do."""

    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        repository: Repository,
        endpoints: tuple[Endpoint, ...],
        request: Request,
    ) -> None:
        self.desk, self.ledger, self.repository = desk, ledger, repository
        self.endpoints, self.request = endpoints, request
        self.failed: dict[str, MillraceError] = {}
        self.refused: dict[str, MillraceError] = {}
        self.recorded: set[str] = set()
        self.evidence: dict[str, trial.Evidence] = {}
        self.began: dict[str, float] = {}
        self.changes: dict[tuple[str, Endpoint], Outcome] = {}
        self.world: World | None = None

    def observed(self) -> World:
        """Look at the registry, the table, the disk and every replica."""
        standings = {
            model: standing_of(events, self.request.again_from)
            for model, events in self.ledger.by_model().items()
        }
        wishes = self.desk.wishes()
        staged = self.repository.versions()
        replicas = tuple(self._seen(endpoint, standings) for endpoint in self.endpoints)
        now = time.time()
        rollouts = dict(self._rollouts(wishes, staged))
        splits = dict(self._splits(staged))
        moves = {
            model: move(split, rollouts[model], _counts(split, replicas), now)
            for model, split in splits.items()
            if model in rollouts
        }
        self.world = World(
            wishes=wishes,
            standings=standings,
            replicas=replicas,
            staged=staged,
            left_alone=self.desk.left_alone(),
            policies=dict(self._policies(wishes, staged)),
            tags=dict(self._tags(wishes, standings)),
            rollouts=rollouts,
            splits=splits,
            moves=moves,
            now=now,
        )
        return self.world

    def _seen(self, endpoint: Endpoint, standings: Mapping[str, Standing]) -> Replica:
        """Look at a replica, and ask what should be live there for one golden row."""
        with TritonClient(endpoint) as client:
            try:
                index = client.index()
            except TransientError:
                return Replica(endpoint, None)
            live = {
                model: standing.live.version
                for model, standing in standings.items()
                if standing.live and live_version(index, model) == standing.live.version
            }
            unwell = {m for m, version in live.items() if not self._answers(client, m, version)}
        return Replica(endpoint, index, frozenset(unwell))

    def _answers(self, client: TritonClient, model: str, version: int) -> bool:
        try:
            row = self.desk.expected(model, version).part(slice(1))
        except MillraceError:
            return True  # its files are gone: there is nothing to ask it
        try:
            client.predict(model, row, version=version, timeout=ANSWER_SECONDS)
        except MillraceError as error:
            log.warning("%s version %s does not answer: %s", model, version, error.seen)
            return False
        return True

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Do what was planned, model by model; a fault ends the actions of its model only."""
        for model in dict.fromkeys(action.model for action in actions):
            self.began.setdefault(model, time.perf_counter())
            for action in of_model(actions, model):
                try:
                    self._do(action)
                except MillraceError as error:
                    self._failed(action, error)
                    break

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return what became of every model on every replica, as it was when all was done."""
        world = self.world or self.observed()
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

    def _policies(
        self, wishes: Mapping[str, Wish], staged: Mapping[str, Iterable[int]]
    ) -> Iterator[tuple[str, Policy]]:
        for model, wish in wishes.items():
            if wish.version in staged.get(model, ()):
                serving = self.repository.artifact(model, wish.version).serving
                quorum = None if serving.quorum == "all" else serving.quorum
                yield model, Policy(quorum, serving.keep_versions)

    def _rollouts(
        self, wishes: Mapping[str, Wish], staged: Mapping[str, Collection[int]]
    ) -> Iterator[tuple[str, RolloutSpec]]:
        for model, wish in wishes.items():
            if wish.version in staged.get(model, ()):
                spec = self.desk.rollout(model, wish.version)
                if spec.kind != "direct":
                    yield model, spec

    def _splits(self, staged: Iterable[str]) -> Iterator[tuple[str, Split]]:
        for model in staged:
            if (split := splitting.current(self.repository, model)) is not None:
                yield model, split

    def _tags(
        self, wishes: Mapping[str, Wish], standings: Mapping[str, Standing]
    ) -> Iterator[tuple[tuple[str, int], Mapping[str, str] | None]]:
        for model in wishes.keys() | standings.keys():
            standing = standings.get(model, Standing())
            versions = {wishes[model].version} if model in wishes else set()
            if standing.live is not None:
                versions.add(standing.live.version)
            if standing.superseded is not None:
                versions.add(standing.superseded)
            for version in versions:
                yield (model, version), self.desk.tags(model, version)

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
            device = self.request.device
            splitting.divert(action.split, self.repository, client, device=device)

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

    def _failed(self, action: Action, error: MillraceError) -> None:
        """Remember a refusal in the table; anything else is told, and tried again next time."""
        standing = self._standing(action.model)
        wish = self.world and self.world.wishes.get(action.model)
        judged = isinstance(action, Stage | Verify | Prove | Divert | Switch | Record)
        if error.transient or not judged or not wish or standing.is_live(wish):
            self.failed[action.model] = error
            return
        self.refused[action.model] = _refusal(action.model, wish.version, _sentence(error))
        self._append(action.model, "refused", wish, _sentence(error))

    @_do.register
    def _(self, action: Prove) -> None:
        expected = self.desk.expected(action.model, action.version)
        trial.try_alone(self.repository.onnx(action.model, action.version), expected)
        with TritonClient(action.endpoint) as client:
            self.evidence[action.model] = trial.try_on_replica(
                action.model,
                action.version,
                self.repository,
                client,
                expected,
                device=self.request.device,
            )

    @_do.register
    def _(self, action: Switch) -> None:
        with TritonClient(action.endpoint) as client, self._noted(action):
            load(action, self.repository, client, device=self.request.device)

    @_do.register
    def _(self, action: Unload) -> None:
        with TritonClient(action.endpoint) as client, self._noted(action):
            unload(action, client)

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
        for replica in self.world.reachable if self.world else ():
            if live_version(replica.index or (), model) == version:
                with TritonClient(replica.endpoint) as client:
                    trial.compare(client, model, expected, batch, version)

    def _append(
        self, model: str, kind: str, wish: Wish, reason: str, previous: int | None = None
    ) -> None:
        evidence = self.evidence.get(model)
        live = self._standing(model).live
        if previous is None and live is not None:
            previous = live.version
        release = Release(
            model=model,
            kind=kind,  # type: ignore[arg-type]
            version=wish.version,
            digest=wish.digest,
            previous=previous,
            asked_by=self.request.asked_by,
            reason=reason,
            evidence=asdict(evidence) if evidence and kind in ("live", "refused") else {},
            link=self.request.link,
            seconds=time.perf_counter() - self.began.get(model, time.perf_counter()),
        )
        self.ledger.append(release)
        self.recorded.add(model)
        self.desk.tell(release)

    def _standing(self, model: str) -> Standing:
        return self.world.standing(model) if self.world else Standing()


def _counts(split: Split, replicas: Iterable[Replica]) -> Counts:
    """Return what was counted in a step of a rollout, on all replicas that answer."""
    counts = Counts()
    for replica in replicas:
        if replica.index is not None:
            with suppress(TransientError):
                counts += counted(split, read(replica.endpoint))
    return counts


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


def load(
    action: Switch, repository: Repository, client: TritonClient, *, device: Device = "cpu"
) -> None:
    """Write the model's configuration, load it by gRPC, and see that the version answers.

    Raises:
        WorkError: the version was refused, with Triton's reason. The configuration is the old one
            again and the versions that were loaded still serve.
    """
    model, version = action.model, action.version
    artifact, signature = repository.artifact(model, version), repository.signature(model, version)
    # one config.pbtxt describes all loaded versions, so an older one that differs cannot stay
    keep = [
        each for each in action.keep if repository.signature(model, each).served == signature.served
    ]
    config = model_config(
        model,
        signature,
        artifact.serving,
        version_policy=specific([*keep, version]),
        labels=artifact.labels,
        device=device,
        # Triton does not load again what is configured as before.
        parameters={"loaded_anew": f"{time.time():.3f}"} if action.anew else None,
    )
    with _config_restored_on_failure(repository, model):
        repository.write_config(config, artifact.labels)
        client.load(model)
        _must_answer(action, client)


def unload(action: Unload, client: TritonClient) -> None:
    """Unload a model and wait until it answers no more.

    Raises:
        TransientError: it is still loaded after a minute.
    """
    client.unload(action.model)
    deadline = time.monotonic() + UNLOAD_SECONDS
    while ready_versions(client.index(), action.model):
        if time.monotonic() > deadline:
            raise TransientError(
                f"Triton still serves {action.model} {UNLOAD_SECONDS:g} s after unload",
                hint="requests in flight keep it; release again later",
            )
        time.sleep(POLL_SECONDS)


@contextmanager
def _config_restored_on_failure(repository: Repository, model: str) -> Iterator[None]:
    saved = repository.saved_config(model)
    try:
        yield
    except MillraceError:
        repository.restore(model, saved)
        raise


def _must_answer(action: Switch, client: TritonClient) -> None:
    index = client.index()
    live = live_version(index, action.model)
    if live == action.version:
        return
    reasons = [
        f"{entry.state}: {entry.reason}"
        for entry in index
        if entry.name == action.model and entry.version == action.version
    ]
    raise WorkError(
        f"version {action.version} of {action.model} was loaded but does not answer",
        seen=", ".join(reasons) or "it is not in Triton's index",
        valid="READY, and the highest version that is",
        hint=f"version {live} answers now; see Triton's log",
    )
