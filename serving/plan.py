"""What must happen so that every replica serves what the registry wants: decisions, no effects.

Aliases are the desired state, the index of each Triton the actual one, and the release events say
what was tried before. `plan` compares them and returns actions in order. Whoever carries them out
may stop after any of them: the plan made from what is there then finishes the work.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.pipeline import RolloutSpec
from models.places import Endpoint
from serving.index import LoadedModel, live_version, ready_versions
from serving.rollout import ARMS, Move, Split, first_split, next_split
from serving.standing import Kind, Standing, Wish
from serving.status import Tags, Trial, statuses

TRIAL = ".trial-"
"""Stands in the name of a model that is loaded only to be tried; no client knows the name."""


@dataclass(frozen=True)
class Replica:
    """One Triton server as it was seen.

    Attributes:
        endpoint: where it is.
        index: what it has loaded; None when it does not answer.
        unwell: models that it says are ready, and that do not answer: Triton 2.51 does not start
            the process of a Python-based backend again when it was killed.
    """

    endpoint: Endpoint
    index: tuple[LoadedModel, ...] | None = ()
    unwell: frozenset[str] = frozenset()


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
        tags: the tags of versions that were read, by model and version; None of a version that
            was deleted, to which nothing can be written.
        rollouts: how a new version of a model comes to all traffic, where it does so in steps.
        splits: the step of a rollout that is on, by model.
        moves: what the judge says of it.
        now: seconds since 1970.
    """

    wishes: Mapping[str, Wish]
    standings: Mapping[str, Standing]
    replicas: tuple[Replica, ...]
    staged: Mapping[str, Collection[int]]
    left_alone: Collection[str] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    tags: Mapping[tuple[str, int], Mapping[str, str] | None] = field(default_factory=dict)
    rollouts: Mapping[str, RolloutSpec] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)
    now: float = 0.0

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
        anew: whether to load it even if the server thinks that it has it.
    """

    model: str
    version: int
    endpoint: Endpoint
    keep: tuple[int, ...] = ()
    previous: int | None = None
    anew: bool = False


@dataclass(frozen=True)
class Divert:
    """Let the splitter share requests out between the live version and another.

    Attributes:
        model: the model.
        version: the version on trial.
        split: the step.
        endpoint: the replica.
    """

    model: str
    version: int
    split: Split
    endpoint: Endpoint


@dataclass(frozen=True)
class Dismantle:
    """Unload what the splitter called, on a replica that serves a version directly again."""

    model: str
    endpoint: Endpoint


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


Action = (
    Stage | Verify | Prove | Switch | Divert | Dismantle | Unload | Sweep | Record | Retire | Tag
)


def plan(world: World) -> tuple[Action, ...]:
    """Decide what to do now; nothing when everything is as it should be.

    Returns:
        Actions in order: what earlier trials left, then each model by its name.
    """
    models = sorted(world.wishes.keys() | (world.staged.keys() - set(world.left_alone)))
    ours = [model for model in models if not _is_made_here(model)]
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
    rollout = _rollout(world, model, wanted)
    if rollout is not None and wanted is not None and rollout.ends_badly:
        yield Record(model, "refused", wanted, _live(standing), rollout.reason)
        return
    changes = tuple(_changes(world, model, wanted, rollout))
    yield from changes
    if changes:  # what is written down and cleaned up follows from what came of them
        return
    yield from _settled(world, model, wanted, rollout)


@dataclass(frozen=True)
class _Rollout:
    """A rollout of the wanted version: the step that should be on, and why.

    Attributes:
        split: the step; None if it ended.
        is_on: whether it is the one that is on already.
        ends_badly: whether the wanted version is to be refused.
        reason: what the judge said.
    """

    split: Split | None
    is_on: bool = False
    ends_badly: bool = False
    reason: str = ""


def _rollout(world: World, model: str, wanted: Wish | None) -> _Rollout | None:
    """Return the rollout of the wanted version; None where it is served directly."""
    standing, spec = world.standing(model), world.rollouts.get(model)
    if wanted is None or standing.live is None or wanted in standing.served or spec is None:
        return None
    if _answering(world, model, wanted.version):  # it ended well: what is left is to say so
        return None
    split, live = world.splits.get(model), standing.live.version
    if split is None or (split.champion, split.candidate) != (live, wanted.version):
        return _Rollout(first_split(model, live, wanted.version, spec, world.now))
    move = world.moves.get(model) or Move("stay", "its counters cannot be read")
    if move.kind == "stay":
        return _Rollout(split, is_on=True, reason=move.reason)
    if move.kind == "step" and move.weight_percent is not None:
        return _Rollout(next_split(split, spec, move.weight_percent, world.now))
    return _Rollout(None, ends_badly=move.kind == "back", reason=move.reason)


def _changes(
    world: World, model: str, wanted: Wish | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield what changes what clients get."""
    if wanted is None:
        yield from _unloads(world, model)
        return
    staged = world.staged.get(model, ())
    split = rollout.split if rollout else None
    behind = [r for r in world.reachable if not _serves(world, r, model, wanted, split)]
    begun = rollout is None or rollout.split is None or rollout.is_on
    if not behind and begun:
        return
    if wanted.version not in staged:
        yield Stage(model, wanted.version)
        return  # how it is to be released is known when it is here
    if waits(world, model, wanted):
        return
    # Once a replica has it, or a rollout of it is on, it has been proved.
    unproved = wanted not in world.standing(model).served and len(behind) == len(world.reachable)
    if unproved and not _is_split_for(world, model, wanted):
        yield Verify(model, wanted.version, _live(world.standing(model)))
        yield Prove(model, wanted.version, world.reachable[0].endpoint)
    if split is not None:
        diverted = behind if begun else world.reachable
        yield from (Divert(model, wanted.version, split, r.endpoint) for r in diverted)
    else:
        yield from _switches(model, wanted, behind, staged)


def _switches(
    model: str, wanted: Wish, behind: Sequence[Replica], staged: Collection[int]
) -> Iterator[Action]:
    for replica in behind:
        yield _switch(replica, model, wanted, staged)
        if ready_versions(replica.index or (), model + ARMS):
            yield Dismantle(model, replica.endpoint)


def _serves(world: World, replica: Replica, model: str, wanted: Wish, split: Split | None) -> bool:
    """Whether a replica serves the step, or the wanted version where there is none."""
    if model in replica.unwell:
        return False
    index = replica.index or ()
    arms = ready_versions(index, model + ARMS)
    if split is not None:
        versions = tuple(sorted((split.champion, split.candidate)))
        return live_version(index, model) == split.champion and arms == versions
    plain = model not in world.splits and not arms
    return plain and live_version(index, model) == wanted.version


def _is_split_for(world: World, model: str, wanted: Wish) -> bool:
    split = world.splits.get(model)
    return split is not None and split.candidate == wanted.version


def _unloads(world: World, model: str) -> Iterator[Action]:
    for replica in world.reachable:
        live = live_version(replica.index or (), model)
        if live is not None and model in world.staged:
            yield Unload(model, replica.endpoint, live)
        if ready_versions(replica.index or (), model + ARMS):
            yield Dismantle(model, replica.endpoint)


def _live(standing: Standing) -> int | None:
    return standing.live.version if standing.live else None


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
        anew=model in replica.unwell,
    )


def _settled(
    world: World, model: str, wanted: Wish | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield what follows from what is served now: events, tags, and what may go."""
    standing, wish = world.standing(model), world.wishes.get(model)
    before = _live(standing)
    serving = wanted and _answering(world, model, wanted.version)
    if wanted is not None and serving and not standing.is_live(wanted):
        yield Record(model, "live", wanted, before)
        return
    if wish is None and standing.live is not None and world.reachable:
        gone = Wish(standing.live.version, standing.live.digest)
        yield Record(model, "unloaded", gone, gone.version)
        return
    answering = [] if before is None else _answering(world, model, before)
    on_trial = rollout and rollout.split and Trial(rollout.split, rollout.reason)
    told = statuses(standing, wish, answering, len(world.replicas), on_trial or None)
    for version, tags in told.items():
        known = world.tags.get((model, version), {})
        if known is None:
            continue
        if changed := {k: v for k, v in tags.items() if known.get(k) != v}:
            yield Tag(model, version, changed)
    yield from _retired(world, model, wanted)


def _answering(world: World, model: str, version: int) -> list[Endpoint]:
    return [
        replica.endpoint
        for replica in world.reachable
        if live_version(replica.index or (), model) == version
    ]


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


def _is_made_here(model: str) -> bool:
    """Whether the name is one under which versions are tried, and not that of a model."""
    return TRIAL in model or model.endswith(ARMS)


def _sweeps(world: World) -> Iterator[Sweep]:
    """Yield what trials and rollouts left; arms only where nothing may still call them."""
    loaded: dict[str, list[Endpoint]] = {}
    for replica in world.reachable:
        for entry in replica.index or ():
            if _is_made_here(entry.name) and entry.is_loaded:
                loaded.setdefault(entry.name, []).append(replica.endpoint)
    for model in sorted({name for name in world.staged if _is_made_here(name)} | loaded.keys()):
        if TRIAL in model:
            yield Sweep(model, tuple(loaded.get(model, ())))
        elif model.removesuffix(ARMS) not in world.splits and model not in loaded:
            yield Sweep(model)


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
