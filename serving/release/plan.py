"""What must happen so that every replica serves what the registry wants: decisions, no effects.

Aliases are the desired state, the index of each Triton the actual one, and the release events say
what was tried before. `plan` compares them and returns actions in order. Whoever carries them out
may stop after any of them: the plan made from what is there then finishes the work.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from millrace.models.common.installation import Endpoint
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
)
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.release.version_tags import Trial, statuses
from millrace.serving.rollout.rollout import Move, Split, first_split, next_split
from millrace.serving.triton.server_index import (
    ARMS,
    TRIAL,
    is_helper_model,
    live_version,
    owner_of,
    ready_versions,
)

GRACE_SECONDS = 60.0
"""How long a version stays live whose alias was removed: it may be set again on another one."""


def plan(world: ClusterState) -> tuple[Action, ...]:
    """Decide what to do now; nothing when everything is as it should be.

    Returns:
        Actions in order: each model by its name, and what earlier trials of it left first.
    """
    if world.registry_away is not None:
        return tuple(action for model in sorted(world.standings) for action in _kept(world, model))
    left = _left_behind(world)
    staged = world.staged.keys() - set(world.left_alone)
    models = world.wishes.keys() | staged | _remembered(world)
    ours = {model for model in models - world.faults.keys() if not is_helper_model(model)}
    return tuple(
        action
        for model in sorted(ours | left.keys())
        for action in (*left.get(model, ()), *(_actions(world, model) if model in ours else ()))
    )


def _remembered(world: ClusterState) -> set[str]:
    """Return models of which only their events tell: refused before anything of them was staged."""
    found = world.standings.items()
    return {model for model, known in found if not known.live and (known.tried or known.withdrawn)}


def target(
    standing: ReleaseState, wish: DesiredVersion | None, now: float
) -> DesiredVersion | None:
    """Return what should be served: what is desired, or what is live if that was refused or is new.

    An alias that is removed may be on its way to another version, so what is live stays a while.

    Args:
        standing: where the model stands.
        wish: the version that the alias asks for.
        now: seconds since 1970.
    """
    gone = standing.unwanted
    if wish is None and gone is not None and now - gone.at.timestamp() >= GRACE_SECONDS:
        return None
    if wish is not None and not standing.refuses(wish):
        return wish
    return standing.live.wish if standing.live else None


def _actions(world: ClusterState, model: str) -> Iterator[Action]:
    wish, standing = world.wishes.get(model), world.standing(model)
    untold = _untold(world, model) or _given_up(world, model)
    if untold is not None:
        yield untold
        return
    wanted = target(standing, wish, world.now)
    rollout = _rollout(world, model, wanted)
    if rollout is not None and wanted is not None and rollout.ends_badly:
        yield Record(model, "refused", wanted, _live(standing), rollout.reason)
        return
    changes = tuple(_changes(world, model, wanted, rollout))
    yield from changes
    if changes:  # what is written down and cleaned up follows from what came of them
        return
    yield from _settled(world, model, wanted, rollout)


def _kept(world: ClusterState, model: str) -> Iterator[Action]:
    """Yield what makes every replica serve what was live; a rollout waits for the registry."""
    live, staged = world.standing(model).live, world.staged.get(model, {})
    if live is None or live.version not in staged or model in world.splits:
        return
    behind = [r for r in world.reachable if not _serves(world, r, model, live.wish, None)]
    yield from _switches(model, live.wish, behind, staged)


def _untold(world: ClusterState, model: str) -> Record | None:
    """Return that a version is live which every replica answers with, whatever is wanted now."""
    standing = world.standing(model)
    answering = {live_version(replica.index or (), model) for replica in world.replicas}
    version = answering.pop() if len(answering) == 1 else None
    digest = world.staged.get(model, {}).get(version or 0)
    if version is None or digest is None or version == _live(standing):
        return None
    found = DesiredVersion(version, digest)
    return None if standing.refuses(found) else Record(model, "live", found, _live(standing))


def _given_up(world: ClusterState, model: str) -> Record | None:
    """Return that a version is no longer tried, which was refused or is rolled out."""
    standing, wish = world.standing(model), world.wishes.get(model)
    tried, live = standing.tried, _live(standing)
    if tried is None:
        return None
    if wish is None:
        return Record(model, "left", tried.wish, live, "its alias was removed")
    if wish != tried.wish:
        other = f"the alias went to version {wish.version}"
        reason = other if wish.version != tried.version else "it is another file now"
        return Record(model, "withdrawn", tried.wish, live, reason)
    refused, again = standing.refused, world.again_from
    if refused is not None and again is not None and refused.at < again:
        return Record(model, "withdrawn", tried.wish, live, "it is tried again")
    return None


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


def _rollout(world: ClusterState, model: str, wanted: DesiredVersion | None) -> _Rollout | None:
    """Return the rollout of the wanted version; None where it is served directly."""
    standing, spec = world.standing(model), world.rollouts.get(model)
    if wanted is None or standing.live is None or wanted in standing.served or spec is None:
        return None
    if _answering(world, model, wanted.version):  # it ended well: what is left is to say so
        return None
    split, live = world.splits.get(model), standing.live.version
    if split is None or (split.champion, split.candidate) != (live, wanted.version):
        return _Rollout(first_split(model, live, wanted.version, spec, world.now))
    if any(model in replica.unwell for replica in world.reachable):
        # Triton loads nothing again that is configured as before, and what was counted is gone
        return _Rollout(replace(split, began=world.now))
    move = world.moves.get(model) or Move("stay", "its counters cannot be read")
    if move.kind == "stay":
        return _Rollout(split, is_on=True, reason=move.reason)
    if move.kind == "step" and move.weight_percent is not None:
        return _Rollout(next_split(split, spec, move.weight_percent, world.now))
    return _Rollout(None, ends_badly=move.kind == "back", reason=move.reason)


def _changes(
    world: ClusterState, model: str, wanted: DesiredVersion | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield what changes what clients get."""
    if wanted is None:
        yield from _unloads(world, model)
        return
    staged = world.staged.get(model, {})
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
    if len(behind) == len(world.reachable):  # what a replica has, has been proved
        yield from _proofs(world, model, wanted, rollout)
    if split is not None:
        diverted = behind if begun else world.reachable
        for replica in diverted:
            anew = model in replica.unwell
            yield StartSplit(model, wanted.version, split, replica.endpoint, anew)
    else:
        yield from _switches(model, wanted, behind, staged)


def _proofs(
    world: ClusterState, model: str, wanted: DesiredVersion, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield what a version must pass before it takes traffic, and what it passed so far."""
    standing = world.standing(model)
    live = _live(standing)
    if wanted not in standing.served and not _is_split_for(world, model, wanted):
        yield Verify(model, wanted.version, live)  # what is required may have changed since a proof
        if not standing.has_proved(wanted):
            yield Validate(model, wanted.version, world.reachable[0].endpoint)
            yield Record(model, "proved", wanted, live)
    if rollout is not None and rollout.split is None and not standing.has_passed(wanted):
        yield Record(model, "proved", wanted, live, rollout.reason)


def _switches(
    model: str, wanted: DesiredVersion, behind: Sequence[Replica], staged: Collection[int]
) -> Iterator[Action]:
    for replica in behind:
        yield _switch(replica, model, wanted, staged)
        if ready_versions(replica.index or (), model + ARMS):
            yield StopSplit(model, replica.endpoint)


def _serves(
    world: ClusterState, replica: Replica, model: str, wanted: DesiredVersion, split: Split | None
) -> bool:
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


def _is_split_for(world: ClusterState, model: str, wanted: DesiredVersion) -> bool:
    split = world.splits.get(model)
    return split is not None and split.candidate == wanted.version


def _unloads(world: ClusterState, model: str) -> Iterator[Action]:
    for replica in world.reachable:
        live = live_version(replica.index or (), model)
        if live is not None and model in world.staged:
            yield Unload(model, replica.endpoint, live)
        if ready_versions(replica.index or (), model + ARMS):
            yield StopSplit(model, replica.endpoint)


def _live(standing: ReleaseState) -> int | None:
    return standing.live.version if standing.live else None


def waits(world: ClusterState, model: str, wanted: DesiredVersion) -> bool:
    """Whether too few replicas are there to switch to a version that is not live yet."""
    quorum = world.policy(model).quorum
    needed = len(world.replicas) if quorum is None else min(quorum, len(world.replicas))
    return len(world.reachable) < needed and not world.standing(model).is_live(wanted)


def _switch(
    replica: Replica, model: str, wanted: DesiredVersion, staged: Collection[int]
) -> Switch:
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
    world: ClusterState, model: str, wanted: DesiredVersion | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield what follows from what is served now: an event, or else tags and what may go."""
    trial = Trial(rollout.split, rollout.reason) if rollout and rollout.split else None
    event = _event(world, model, wanted, trial)
    if event is not None:
        yield event
        return
    standing = world.standing(model)
    live = _live(standing)
    answering = [] if live is None else _answering(world, model, live)
    told = statuses(standing, world.wishes.get(model), answering, len(world.replicas), trial)
    for version, tags in told.items():
        known = world.tags.get((model, version), {})
        if known is None:
            continue
        if changed := {k: v for k, v in tags.items() if known.get(k) != v}:
            yield Tag(model, version, changed)
    yield from _retired(world, model, wanted)


def _event(
    world: ClusterState, model: str, wanted: DesiredVersion | None, trial: Trial | None
) -> Record | None:
    """Return what happened and is not written down yet."""
    standing, wish = world.standing(model), world.wishes.get(model)
    live = standing.live.wish if standing.live else None
    if wish is None and live is not None and world.reachable:
        if wanted is None:
            return Record(model, "unloaded", live, live.version)
        if standing.unwanted is None and not standing.stays:
            return Record(model, "unwanted", live, live.version, "the alias was removed")
    if wish is None or wanted is None:
        return None
    returned = standing.unwanted is not None or standing.stays
    if _answering(world, model, wanted.version) and (wanted != live or returned):
        return Record(model, "live", wanted, _live(standing))
    if trial and not standing.is_at(wanted, str(trial)):
        return Record(model, "step", wanted, _live(standing), str(trial))
    return None


def _answering(world: ClusterState, model: str, version: int) -> list[Endpoint]:
    return [
        replica.endpoint
        for replica in world.reachable
        if live_version(replica.index or (), model) == version
    ]


def _retired(world: ClusterState, model: str, wanted: DesiredVersion | None) -> Iterator[Retire]:
    """Yield the versions beyond the keep count that no replica may still read."""
    if wanted is None or len(world.reachable) < len(world.replicas):
        return
    standing, staged = world.standing(model), sorted(world.staged.get(model, {}), reverse=True)
    needed = {wanted.version, standing.superseded}
    for replica in world.replicas:
        needed |= {entry.version for entry in replica.index or () if entry.name == model}
    others = [version for version in staged if version not in needed]
    room = max(world.policy(model).keep_versions - (len(staged) - len(others)), 0)
    yield from (Retire(model, version) for version in sorted(others[room:]))


def _left_behind(world: ClusterState) -> dict[str, list[CleanUp]]:
    """Return what trials and rollouts left, by model; arms only where nothing may call them."""
    loaded: dict[str, list[Endpoint]] = {}
    for replica in world.reachable:
        for entry in replica.index or ():
            if is_helper_model(entry.name) and entry.is_loaded:
                loaded.setdefault(entry.name, []).append(replica.endpoint)
    left: dict[str, list[CleanUp]] = {}
    for name in sorted({name for name in world.staged if is_helper_model(name)} | loaded.keys()):
        model = owner_of(name)
        if TRIAL in name or (model not in world.splits and name not in loaded):
            left.setdefault(model, []).append(CleanUp(model, name, tuple(loaded.get(name, ()))))
    return left


def warm_versions(wanted: int, ready: Collection[int], staged: Collection[int]) -> tuple[int, ...]:
    """Return which versions stay loaded beside the wanted one: the last one below it.

    Triton answers a request that names no version with the highest number it has loaded, so after
    a rollback nothing above the wanted version may stay.
    """
    below = [version for version in ready if version < wanted and version in staged]
    return (max(below),) if below else ()
