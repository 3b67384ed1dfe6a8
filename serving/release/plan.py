"""Plan the actions that make every replica serve the champions of the registry.

Aliases are the desired state, and the index of each Triton is the actual state. The release events
say what was tried before. `plan` compares them, changes nothing, and returns the due actions in
order. If a release is interrupted after any action, the next plan starts from the state at that
time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.models.common.installation import Endpoint
from millrace.serving.release.actions import (
    Action,
    CleanUp,
    Record,
    Retire,
    Stage,
    StartFront,
    StartSplit,
    StopFront,
    StopSplit,
    Switch,
    Tag,
    Unload,
    Validate,
    Verify,
)
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.release.version_tags import RunningStep, compute_tags
from millrace.serving.rollout.rollout import Move, Split, first_split, next_split
from millrace.serving.triton.server_index import (
    ARMS,
    COLUMNS,
    TRIAL,
    is_helper_model,
    owner_of,
)

GRACE_SECONDS = 60.0
"""How long a version stays live after its alias was removed, because the alias may be moving."""


def plan(cluster: ClusterState) -> tuple[Action, ...]:
    """Return the actions that are due; none when everything is as it should be.

    Returns:
        The actions in order: by model, and for each model the clean-up of earlier trials first.
    """
    if cluster.registry_error is not None:
        models = sorted(cluster.states)
        return tuple(action for model in models for action in _restore_live(cluster, model))
    cleanups = _plan_cleanups(cluster)
    staged = cluster.staged.keys() - set(cluster.foreign)
    known = cluster.desired_versions.keys() | staged | _recorded_models(cluster)
    ours = {model for model in known - cluster.faults.keys() if not is_helper_model(model)}
    return tuple(
        action
        for model in sorted(ours | cleanups.keys())
        for action in (
            *cleanups.get(model, ()),
            *(_plan_model(cluster, model) if model in ours else ()),
        )
    )


def _recorded_models(cluster: ClusterState) -> set[str]:
    """Return the models without a live version whose events have a tried or a withdrawn version.

    Such a model may have neither an alias nor a staged version.
    """
    return {
        model
        for model, state in cluster.states.items()
        if not state.live and (state.attempted or state.withdrawn)
    }


def select_target(
    state: ReleaseState, desired: DesiredVersion | None, now: float
) -> DesiredVersion | None:
    """Return the version to serve: the desired one, or the live one if the desired was refused.

    After the alias was removed, the live version stays for a while, because the alias may be moving
    to another version. None means that no version is to be served.

    Args:
        state: the model's release state.
        desired: the version that the alias points to.
        now: seconds since 1970.
    """
    removed = state.alias_removed
    if desired is None and removed is not None and now - removed.at.timestamp() >= GRACE_SECONDS:
        return None
    if desired is not None and not state.has_refused(desired):
        return desired
    return state.live.desired if state.live else None


def _plan_model(cluster: ClusterState, model: str) -> Iterator[Action]:
    state = cluster.state(model)
    record = _missing_live_event(cluster, model) or _missing_withdrawal(cluster, model)
    if record is not None:
        yield record
        return
    target = select_target(state, cluster.desired_versions.get(model), cluster.now)
    rollout = _plan_rollout(cluster, model, target)
    if rollout is not None and target is not None and rollout.is_failed:
        yield Record(model, "refused", target, state.live_version, rollout.reason)
        return
    changes = tuple(_plan_changes(cluster, model, target, rollout))
    yield from changes
    if not changes:  # else the next plan sees their outcome
        yield from _plan_fronts(cluster, model)
        yield from _plan_records(cluster, model, target, rollout)


def _plan_fronts(cluster: ClusterState, model: str) -> Iterator[Action]:
    """Yield the actions after which each replica answers by columns with its live version."""
    named = cluster.columns.get(model, ())
    for replica in cluster.reachable:
        live, front = replica.live_version(model), replica.ready_versions(model + COLUMNS)
        if live is None or live not in named:
            if front and model in cluster.staged:
                yield StopFront(model, replica.endpoint)
            continue
        is_dead = model + COLUMNS in replica.unresponsive
        if cluster.refused_fronts.get(model) == live and cluster.retry_refused_before is None:
            if front not in ((), (live,)):  # it asks a version that is no longer live
                yield StopFront(model, replica.endpoint)
        elif front != (live,) or is_dead:
            yield StartFront(model, live, replica.endpoint, force_reload=is_dead)


def _restore_live(cluster: ClusterState, model: str) -> Iterator[Action]:
    """Yield the actions that restore the live version on replicas, unless a rollout is running."""
    live, staged = cluster.state(model).live, cluster.staged.get(model, {})
    if live is None or live.version not in staged or model in cluster.splits:
        return
    outdated = _outdated_replicas(cluster, model, live.desired, None)
    named = has_front(cluster, model, live.desired)
    yield from _plan_switches(model, live.desired, outdated, staged, with_front=named)


def _missing_live_event(cluster: ClusterState, model: str) -> Record | None:
    """Return a missing "live" event: all replicas serve a version that is not recorded as live."""
    state = cluster.state(model)
    answering = {replica.live_version(model) for replica in cluster.replicas}
    version = answering.pop() if len(answering) == 1 else None
    digest = cluster.staged.get(model, {}).get(version or 0)
    if version is None or digest is None or version == state.live_version:
        return None
    found = DesiredVersion(version, digest)
    is_refused = state.has_refused(found)
    return None if is_refused else Record(model, "live", found, state.live_version)


def _missing_withdrawal(cluster: ClusterState, model: str) -> Record | None:
    """Return the missing event that a version is no longer tried; None if no such event is missing.

    The version was refused, or a step of its rollout has begun.
    """
    state, desired = cluster.state(model), cluster.desired_versions.get(model)
    attempted, live = state.attempted, state.live_version
    if attempted is None:
        return None
    if desired is None:
        return Record(model, "left", attempted.desired, live, "its alias was removed")
    if desired != attempted.desired:
        moved = f"the alias moved to version {desired.version}"
        reason = moved if desired.version != attempted.version else "its file changed"
        return Record(model, "withdrawn", attempted.desired, live, reason)
    refused, before = state.refused, cluster.retry_refused_before
    if refused is not None and before is not None and refused.at < before:
        return Record(model, "withdrawn", attempted.desired, live, "the version is tried again")
    return None


@dataclass(frozen=True)
class _Rollout:
    """The rollout of the target version: the step that should run, and why.

    Attributes:
        split: the step; None if the rollout ended.
        is_running: whether the step runs already.
        is_failed: whether the target version is to be refused.
        reason: the reason that the rollout's judge gives.
    """

    split: Split | None
    is_running: bool = False
    is_failed: bool = False
    reason: str = ""


def _plan_rollout(
    cluster: ClusterState, model: str, target: DesiredVersion | None
) -> _Rollout | None:
    """Return the rollout of the target version; None if it is served directly."""
    state, spec = cluster.state(model), cluster.rollouts.get(model)
    if target is None or state.live is None or target in state.served_before or spec is None:
        return None
    if _answering_replicas(cluster, model, target.version):  # succeeded, not recorded yet
        return None
    split, live = cluster.splits.get(model), state.live.version
    if split is None or (split.champion, split.candidate) != (live, target.version):
        return _Rollout(first_split(model, live, target.version, spec, cluster.now))
    if any(model in replica.unresponsive for replica in cluster.reachable):
        # Triton does not reload an unchanged configuration, and the counters are lost
        return _Rollout(replace(split, began=cluster.now))
    move = cluster.moves.get(model) or Move("stay", "the request counters cannot be read")
    if move.kind == "stay":
        return _Rollout(split, is_running=True, reason=move.reason)
    if move.kind == "step" and move.weight_percent is not None:
        return _Rollout(next_split(split, spec, move.weight_percent, cluster.now))
    return _Rollout(None, is_failed=move.kind == "back", reason=move.reason)


def _plan_changes(
    cluster: ClusterState, model: str, target: DesiredVersion | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield the actions that change what clients get."""
    if target is None:
        yield from _plan_unloads(cluster, model)
        return
    staged = cluster.staged.get(model, {})
    split = rollout.split if rollout else None
    outdated = _outdated_replicas(cluster, model, target, split)
    is_new_step = rollout is not None and rollout.split is not None and not rollout.is_running
    if not outdated and not is_new_step:
        return
    if target.version not in staged or _has_other_profile(cluster.profiles, model, target):
        yield Stage(model, target.version)
        return  # the version's files say how to release it
    if is_below_quorum(cluster, model, target):
        return
    if len(outdated) == len(cluster.reachable):  # else it has passed already
        yield from _plan_validation(cluster, model, target, rollout)
    if split is None:
        yield from _plan_fronts_before(cluster, model, target, outdated)
        named = has_front(cluster, model, target)
        yield from _plan_switches(model, target, outdated, staged, with_front=named)
        return
    for replica in cluster.reachable if is_new_step else outdated:
        force_reload = model in replica.unresponsive
        yield StartSplit(model, target.version, split, replica.endpoint, force_reload)


def _plan_validation(
    cluster: ClusterState, model: str, target: DesiredVersion, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield the checks that a version must pass to get traffic, and the events of passing them."""
    state, split = cluster.state(model), cluster.splits.get(model)
    live = state.live_version
    is_in_split = split is not None and split.candidate == target.version
    if target not in state.served_before and not is_in_split:
        yield Verify(model, target.version, live)  # also after a trial, as requirements may change
        if not state.is_validated(target):
            yield Validate(model, target.version, cluster.reachable[0].endpoint)
            yield Record(model, "proved", target, live)
    has_ended = rollout is not None and rollout.split is None
    if rollout is not None and has_ended and not state.has_completed_rollout(target):
        yield Record(model, "proved", target, live, rollout.reason)


def has_front(cluster: ClusterState, model: str, target: DesiredVersion) -> bool:
    """Return whether a version can be asked by columns, as far as is known."""
    is_refused = cluster.refused_fronts.get(model) == target.version
    return target.version in cluster.columns.get(model, ()) and not is_refused


def _plan_fronts_before(
    cluster: ClusterState, model: str, target: DesiredVersion, outdated: Sequence[Replica]
) -> Iterator[Action]:
    """Yield the front step of a lower version, before the live version goes.

    A rollback unloads the live version, and its front step would have nobody to ask. So the lower
    version is loaded beside it, if it is not, and gets its front step.
    """
    for replica in outdated:
        live, front = replica.live_version(model), replica.ready_versions(model + COLUMNS)
        is_named = target.version in cluster.columns.get(model, ())
        if live is None or live < target.version or not is_named or front != (live,):
            continue
        if target.version not in replica.ready_versions(model):
            yield Switch(model, live, replica.endpoint, keep=(target.version,), previous=live)
        yield StartFront(model, target.version, replica.endpoint)


def _plan_switches(
    model: str,
    target: DesiredVersion,
    outdated: Sequence[Replica],
    staged: Collection[int],
    *,
    with_front: bool,
) -> Iterator[Action]:
    for replica in outdated:
        yield Switch(
            model,
            target.version,
            replica.endpoint,
            keep=warm_versions(target.version, replica.ready_versions(model), staged),
            previous=replica.live_version(model),
            force_reload=model in replica.unresponsive,
        )
        if with_front:
            yield StartFront(model, target.version, replica.endpoint)
        if replica.ready_versions(model + ARMS):
            yield StopSplit(model, replica.endpoint)


def _outdated_replicas(
    cluster: ClusterState, model: str, target: DesiredVersion, split: Split | None
) -> list[Replica]:
    """Return the reachable replicas that do not serve what they should.

    During a rollout, they should serve its current step. Otherwise they should serve the target.
    """
    return [
        replica
        for replica in cluster.reachable
        if not is_up_to_date(cluster, replica, model, target, split)
    ]


def is_up_to_date(
    cluster: ClusterState, replica: Replica, model: str, target: DesiredVersion, split: Split | None
) -> bool:
    """Return whether a replica serves what it should: a version, or the step of its rollout."""
    if model in replica.unresponsive:
        return False
    live, arms = replica.live_version(model), replica.ready_versions(model + ARMS)
    if split is not None:
        versions = tuple(sorted((split.champion, split.candidate)))
        return live == split.champion and arms == versions
    is_live = model not in cluster.splits and not arms and live == target.version
    return is_live and not _has_other_profile(replica.profiles, model, target)


def _has_other_profile(profiles: Mapping[str, str], model: str, target: DesiredVersion) -> bool:
    """Return whether a version has other settings than those of its serving profile.

    Args:
        profiles: digest of the profile whose settings it has, by model; none if that is not known.
        model: the model.
        target: the version.
    """
    return target.profile is not None and profiles.get(model, target.profile) != target.profile


def _plan_unloads(cluster: ClusterState, model: str) -> Iterator[Action]:
    for replica in cluster.reachable:
        live = replica.live_version(model)
        if replica.ready_versions(model + COLUMNS) and model in cluster.staged:
            yield StopFront(model, replica.endpoint)
        if live is not None and model in cluster.staged:
            yield Unload(model, replica.endpoint, live)
        if replica.ready_versions(model + ARMS):
            yield StopSplit(model, replica.endpoint)


def is_below_quorum(cluster: ClusterState, model: str, target: DesiredVersion) -> bool:
    """Whether too few replicas answer to switch to a version that is not live yet."""
    quorum = cluster.policy(model).quorum
    needed = len(cluster.replicas) if quorum is None else min(quorum, len(cluster.replicas))
    return len(cluster.reachable) < needed and not cluster.state(model).is_live(target)


def _plan_records(
    cluster: ClusterState, model: str, target: DesiredVersion | None, rollout: _Rollout | None
) -> Iterator[Action]:
    """Yield the action that records a missing event.

    If no event is missing, yield the changes of tags and the removals of old versions.
    """
    running = None
    if rollout is not None and rollout.split is not None:
        running = RunningStep(rollout.split, rollout.reason)
    event = _missing_event(cluster, model, target, running)
    if event is not None:
        yield event
        return
    state, desired = cluster.state(model), cluster.desired_versions.get(model)
    live = state.live_version
    answering = [] if live is None else _answering_replicas(cluster, model, live)
    wanted = compute_tags(state, desired, answering, len(cluster.replicas), running)
    for version, tags in wanted.items():
        current = cluster.tags.get((model, version), {})
        if current is None:
            continue
        if changed := {k: v for k, v in tags.items() if current.get(k) != v}:
            yield Tag(model, version, changed)
    yield from _plan_retirement(cluster, model, target)


def _missing_event(
    cluster: ClusterState, model: str, target: DesiredVersion | None, running: RunningStep | None
) -> Record | None:
    """Return an event that happened and is not recorded yet."""
    state, desired = cluster.state(model), cluster.desired_versions.get(model)
    live = state.live.desired if state.live else None
    if desired is None and live is not None and cluster.reachable:
        if target is None:
            return Record(model, "unloaded", live, live.version)
        if state.alias_removed is None and not state.is_kept:
            return Record(model, "unwanted", live, live.version, "the alias was removed")
    if desired is None or target is None:
        return None
    has_alias_again = state.alias_removed is not None or state.is_kept
    is_answering = bool(_answering_replicas(cluster, model, target.version))
    if is_answering and (target != live or has_alias_again):
        return Record(model, "live", target, state.live_version)
    if running and not state.is_at_step(target, str(running)):
        return Record(model, "step", target, state.live_version, str(running))
    return None


def _answering_replicas(cluster: ClusterState, model: str, version: int) -> list[Endpoint]:
    return [
        replica.endpoint for replica in cluster.reachable if replica.live_version(model) == version
    ]


def _plan_retirement(
    cluster: ClusterState, model: str, target: DesiredVersion | None
) -> Iterator[Retire]:
    """Yield the removal of staged versions beyond `keep_versions` that no replica has loaded."""
    if target is None or len(cluster.reachable) < len(cluster.replicas):
        return
    staged = sorted(cluster.staged.get(model, {}), reverse=True)
    needed = {target.version, cluster.state(model).superseded}
    for replica in cluster.replicas:
        needed |= {entry.version for entry in replica.index or () if entry.name == model}
    others = [version for version in staged if version not in needed]
    room = max(cluster.policy(model).keep_versions - (len(staged) - len(others)), 0)
    yield from (Retire(model, version) for version in sorted(others[room:]))


def _plan_cleanups(cluster: ClusterState) -> dict[str, list[CleanUp]]:
    """Return the helper models to remove, by the model that they belong to.

    The helper model of a rollout is removed only after the rollout, when no replica has it loaded.
    Before that, a traffic splitter may call it.
    """
    loaded: dict[str, list[Endpoint]] = {}
    for replica in cluster.reachable:
        for entry in replica.index or ():
            if is_helper_model(entry.name) and entry.is_loaded:
                loaded.setdefault(entry.name, []).append(replica.endpoint)
    cleanups: dict[str, list[CleanUp]] = {}
    for name in sorted({name for name in cluster.staged if is_helper_model(name)} | loaded.keys()):
        model = owner_of(name)
        if TRIAL in name or (model not in cluster.splits and name not in loaded):
            endpoints = tuple(loaded.get(name, ()))
            cleanups.setdefault(model, []).append(CleanUp(model, name, endpoints))
    return cleanups


def warm_versions(target: int, ready: Collection[int], staged: Collection[int]) -> tuple[int, ...]:
    """Return which versions stay loaded beside the target: the highest one below it.

    Triton answers a request that names no version with the highest version it has loaded. So after
    a rollback no version above the target may stay.
    """
    below = [version for version in ready if version < target and version in staged]
    return (max(below),) if below else ()
