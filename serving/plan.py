"""What must happen so that every replica serves what the registry wants: decisions, no effects.

Aliases are the desired state, the index of each Triton the actual one, and the release events say
what was tried before. `plan` compares them and returns actions in order. Whoever carries them out
may stop after any of them: the plan made from what is there then finishes the work.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.places import Endpoint
from serving.index import LoadedModel, live_version, ready_versions
from serving.standing import Kind, Standing, Wish
from serving.status import Tags, statuses

TRIAL = ".trial-"
"""Stands in the name of a model that is loaded only to be tried; no client knows the name."""


@dataclass(frozen=True)
class Replica:
    """One Triton server as it was seen.

    Attributes:
        endpoint: where it is.
        index: what it has loaded; None when it does not answer.
    """

    endpoint: Endpoint
    index: tuple[LoadedModel, ...] | None = ()


@dataclass(frozen=True)
class Policy:
    """How one model is released.

    Attributes:
        quorum: replicas that must be there before any of them switches; None for all.
        keep_versions: versions that stay on disk, the live one and the one before it always.
    """

    quorum: int | None = 1
    keep_versions: int = 3


@dataclass(frozen=True)
class World:
    """All that the plan is made from.

    Attributes:
        wishes: the champion of each model.
        standings: what the release events say, by model.
        replicas: every Triton server.
        staged: the versions of each model on disk.
        left_alone: models whose champion is not ours to load; what is loaded of them stays.
        policies: how each model is released, where it differs from the default.
        tags: the tags of versions that were read, by model and version.
    """

    wishes: Mapping[str, Wish]
    standings: Mapping[str, Standing]
    replicas: tuple[Replica, ...]
    staged: Mapping[str, Collection[int]]
    left_alone: Collection[str] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    tags: Mapping[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)

    def standing(self, model: str) -> Standing:
        """Return where a model stands."""
        return self.standings.get(model, Standing())

    def policy(self, model: str) -> Policy:
        """Return how a model is released."""
        return self.policies.get(model, Policy())

    @property
    def reachable(self) -> tuple[Replica, ...]:
        """The replicas that answer."""
        return tuple(replica for replica in self.replicas if replica.index is not None)


@dataclass(frozen=True)
class Stage:
    """Fetch a version, check its digest, and publish its folder in the model repository."""

    model: str
    version: int


@dataclass(frozen=True)
class Verify:
    """Check a version against what its pipeline requires of a champion."""

    model: str
    version: int
    previous: int | None


@dataclass(frozen=True)
class Prove:
    """Load a version where no client reaches it, and compare its answers with its certificate."""

    model: str
    version: int
    endpoint: Endpoint


@dataclass(frozen=True)
class Switch:
    """Make `version` the one that answers requests which name none.

    Attributes:
        model: the model.
        version: the version wanted.
        endpoint: the replica.
        keep: versions to keep loaded beside it, all of them lower.
        previous: the version that answers now, or None.
    """

    model: str
    version: int
    endpoint: Endpoint
    keep: tuple[int, ...] = ()
    previous: int | None = None


@dataclass(frozen=True)
class Unload:
    """Stop serving a model on a replica."""

    model: str
    endpoint: Endpoint
    previous: int


@dataclass(frozen=True)
class Sweep:
    """Remove what an interrupted trial left: its model on a replica, or its folder on disk."""

    model: str
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True)
class Record:
    """Write an event into the release table."""

    model: str
    kind: Kind
    wish: Wish
    previous: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Retire:
    """Remove a version from the model repository that no replica has loaded."""

    model: str
    version: int


@dataclass(frozen=True)
class Tag:
    """Write what is real into the registry: these tags of a version; None removes one."""

    model: str
    version: int
    tags: Tags


Action = Stage | Verify | Prove | Switch | Unload | Sweep | Record | Retire | Tag


def plan(world: World) -> tuple[Action, ...]:
    """Decide what to do now; nothing when everything is as it should be.

    Returns:
        Actions in order: what earlier trials left, then each model by its name.
    """
    models = sorted(world.wishes.keys() | (world.staged.keys() - set(world.left_alone)))
    ours = [model for model in models if TRIAL not in model]
    return (*_sweeps(world), *(action for model in ours for action in _actions(world, model)))


def target(standing: Standing, wish: Wish | None) -> Wish | None:
    """Return what should be served: the wish, or what served before if the wish was refused."""
    if wish is None or not standing.refuses(wish):
        return wish
    live = standing.live
    return None if live is None else Wish(live.version, live.digest)


def _actions(world: World, model: str) -> Iterator[Action]:
    wish, standing = world.wishes.get(model), world.standing(model)
    refused = standing.refused
    if refused and wish and not standing.refuses(wish):
        yield Record(model, "withdrawn", Wish(refused.version, refused.digest))
    wanted = target(standing, wish)
    changes = tuple(_changes(world, model, wanted))
    yield from changes
    if changes:  # what is written down and cleaned up follows from what came of them
        return
    yield from _settled(world, model, wish, wanted)


def _changes(world: World, model: str, wanted: Wish | None) -> Iterator[Action]:
    """Yield what changes what clients get."""
    standing = world.standing(model)
    if wanted is None:
        for replica in world.reachable:
            live = live_version(replica.index or (), model)
            if live is not None and model in world.staged:
                yield Unload(model, replica.endpoint, live)
        return
    behind = [r for r in world.reachable if live_version(r.index or (), model) != wanted.version]
    if not behind:
        return
    staged = world.staged.get(model, ())
    if wanted.version not in staged:
        yield Stage(model, wanted.version)
        return  # how it is to be released is known when it is here
    if waits(world, model, wanted):
        return
    if wanted not in standing.served and len(behind) == len(world.reachable):
        yield Verify(model, wanted.version, standing.live.version if standing.live else None)
        yield Prove(model, wanted.version, behind[0].endpoint)
    yield from (_switch(replica, model, wanted, staged) for replica in behind)


def waits(world: World, model: str, wanted: Wish) -> bool:
    """Whether too few replicas are there to switch to a version that is not live yet."""
    quorum = world.policy(model).quorum
    needed = len(world.replicas) if quorum is None else min(quorum, len(world.replicas))
    return len(world.reachable) < needed and not world.standing(model).is_live(wanted)


def _switch(replica: Replica, model: str, wanted: Wish, staged: Collection[int]) -> Switch:
    index = replica.index or ()
    return Switch(
        model,
        wanted.version,
        replica.endpoint,
        keep=warm_versions(wanted.version, ready_versions(index, model), staged),
        previous=live_version(index, model),
    )


def _settled(world: World, model: str, wish: Wish | None, wanted: Wish | None) -> Iterator[Action]:
    """Yield what follows from what is served now: events, tags, and what may go."""
    standing = world.standing(model)
    serving = [
        replica.endpoint
        for replica in world.reachable
        if wanted and live_version(replica.index or (), model) == wanted.version
    ]
    before = standing.live.version if standing.live else None
    if wanted is not None and serving and not standing.is_live(wanted):
        yield Record(model, "live", wanted, before)
        return
    if wanted is None and wish is None and standing.live is not None and world.reachable:
        gone = Wish(standing.live.version, standing.live.digest)
        yield Record(model, "unloaded", gone, gone.version)
        return
    for version, tags in statuses(standing, wish, serving, len(world.replicas)).items():
        known = world.tags.get((model, version), {})
        if changed := {k: v for k, v in tags.items() if known.get(k) != v}:
            yield Tag(model, version, changed)
    yield from _retired(world, model, wanted)


def _retired(world: World, model: str, wanted: Wish | None) -> Iterator[Retire]:
    """Yield the versions beyond the keep count that no replica may still read."""
    if wanted is None or len(world.reachable) < len(world.replicas):
        return
    standing, staged = world.standing(model), sorted(world.staged.get(model, ()), reverse=True)
    needed = {wanted.version, standing.superseded}
    for replica in world.replicas:
        needed |= {entry.version for entry in replica.index or () if entry.name == model}
    others = [version for version in staged if version not in needed]
    room = max(world.policy(model).keep_versions - (len(staged) - len(others)), 0)
    yield from (Retire(model, version) for version in sorted(others[room:]))


def _sweeps(world: World) -> Iterator[Sweep]:
    loaded: dict[str, list[Endpoint]] = {}
    for replica in world.reachable:
        for entry in replica.index or ():
            if TRIAL in entry.name and entry.version is not None:
                loaded.setdefault(entry.name, []).append(replica.endpoint)
    trials = {model for model in world.staged if TRIAL in model} | loaded.keys()
    yield from (Sweep(model, tuple(loaded.get(model, ()))) for model in sorted(trials))


def warm_versions(wanted: int, ready: Collection[int], staged: Collection[int]) -> tuple[int, ...]:
    """Return which loaded versions stay loaded beside the wanted one: the last one below it.

    Triton answers a request that names no version with the highest number it has loaded, so after
    a rollback nothing above the wanted version may stay.
    """
    below = [version for version in ready if version < wanted and version in staged]
    return (max(below),) if below else ()


def of_model(actions: Sequence[Action], model: str) -> tuple[Action, ...]:
    """Return the actions of one model."""
    return tuple(action for action in actions if action.model == model)
