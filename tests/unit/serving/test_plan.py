from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.actions import (
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
from millrace.serving.release.cluster_state import ClusterState, Policy, Replica
from millrace.serving.release.plan import plan, warm_versions
from millrace.serving.release.release_state import (
    DesiredVersion,
    Release,
    ReleaseState,
    derive_state,
)
from millrace.serving.release.version_tags import compute_tags
from millrace.serving.rollout.rollout import Move, Split, first_split
from millrace.serving.triton.server_index import COLUMNS, TRIAL, LoadedModel, owner_of

A, B = Endpoint(grpc_port=1), Endpoint(grpc_port=2)
GONE = None


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def ready(name: str, *versions: int) -> tuple[LoadedModel, ...]:
    return tuple(LoadedModel(name, version, "READY") for version in versions)


def desired(version: int) -> DesiredVersion:
    return DesiredVersion(version, f"d{version}")


def state(*happened: tuple[str, int]) -> ReleaseState:
    kinds = [Release("m", kind, version, f"d{version}") for kind, version in happened]  # type: ignore[arg-type]
    return derive_state(kinds)


def on_disk(staged: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, str]]:
    return {model: {v: f"d{v}" for v in versions} for model, versions in staged.items()}


def cluster(
    champion: int | None,
    *indexes: tuple[LoadedModel, ...] | None,
    known: ReleaseState | None = None,
    staged: Mapping[str, Collection[int]] | None = None,
    foreign: Collection[str] = (),
    policy: Policy | None = None,
    tags: Mapping[tuple[str, int], Mapping[str, str] | None] | None = None,
) -> ClusterState:
    return ClusterState(
        desired_versions={} if champion is None else {"m": desired(champion)},
        states={"m": known} if known else {},
        replicas=tuple(Replica(e, i) for e, i in zip((A, B), indexes, strict=False)),
        staged=on_disk({"m": (1, 2, 3)} if staged is None else staged),
        foreign=foreign,
        policies={"m": policy} if policy else {},
        tags=tags or {},
    )


def settled(champion: int | None, known: ReleaseState, serving: int = 1, replicas: int = 1):  # type: ignore[no-untyped-def]
    """Return the tags that a registry holds when all was said."""
    asked = None if champion is None else desired(champion)
    told = compute_tags(known, asked, (A, B)[:serving], replicas)
    return {("m", version): tags for version, tags in told.items()}


def test_a_version_is_staged_before_anything_else_is_decided() -> None:
    assert plan(cluster(1, (), staged={})) == (Stage("m", 1),)


def test_a_first_version_is_verified_and_proved_and_only_then_served() -> None:
    assert plan(cluster(1, ())) == (
        Verify("m", 1, None),
        Validate("m", 1, A),
        Record("m", "proved", desired(1)),
        Switch("m", 1, A),
    )


def test_nothing_to_do_gives_no_action() -> None:
    known = state(("live", 1), ("live", 2))
    tags = settled(2, known)
    assert plan(cluster(2, ready("m", 1, 2), known=known, tags=tags)) == ()


def test_a_new_version_is_judged_against_the_live_one_which_stays_warm() -> None:
    actions = plan(cluster(3, ready("m", 2), known=state(("live", 2))))
    assert actions == (
        Verify("m", 3, 2),
        Validate("m", 3, A),
        Record("m", "proved", desired(3), 2),
        Switch("m", 3, A, keep=(2,), previous=2),
    )


def test_going_back_needs_no_proof() -> None:
    known = state(("live", 2), ("live", 3))
    assert plan(cluster(2, ready("m", 2, 3), known=known)) == (Switch("m", 2, A, (), 3),)


def test_a_restarted_replica_gets_the_live_version_without_a_proof() -> None:
    assert plan(cluster(2, (), known=state(("live", 2)))) == (Switch("m", 2, A),)


def test_what_went_live_is_written_down_before_anything_else() -> None:
    actions = plan(cluster(2, ready("m", 2), known=state(("live", 1))))
    assert actions == (Record("m", "live", desired(2), 1),)


def test_what_is_live_is_then_told_to_the_registry() -> None:
    known = state(("live", 1), ("live", 2))
    first, second = plan(cluster(2, ready("m", 2), known=known))
    assert isinstance(first, Tag)
    assert isinstance(second, Tag)
    assert (first.version, first.tags["millrace.status"]) == (1, "superseded")
    assert (second.version, second.tags["millrace.status"]) == (2, "live")
    assert second.tags["millrace.replicas"] == "1 of 1"


def test_nothing_is_told_to_a_version_that_was_deleted() -> None:
    known = state(("live", 1), ("live", 2))
    told = {**settled(2, known), ("m", 1): None}
    assert plan(cluster(2, ready("m", 2), known=known, tags=told)) == ()


def test_a_refused_version_is_left_and_the_one_before_it_stays() -> None:
    known = state(("live", 1), ("refused", 2))
    tags = settled(2, known)
    assert plan(cluster(2, ready("m", 1), known=known, tags=tags)) == ()


def test_while_a_version_is_refused_a_restarted_replica_gets_the_one_before_it() -> None:
    known = state(("live", 1), ("refused", 2))
    assert plan(cluster(2, (), known=known)) == (Switch("m", 1, A),)


def test_a_refused_first_version_leaves_nothing_served() -> None:
    known = state(("refused", 1))
    actions = plan(cluster(1, (), known=known))
    assert [type(action) for action in actions] == [Tag]


def test_a_refusal_is_withdrawn_when_the_alias_leaves_it() -> None:
    known = state(("live", 1), ("refused", 2))
    (record,) = plan(cluster(1, ready("m", 1), known=known))
    assert record == Record("m", "withdrawn", desired(2), 1, "the alias moved to version 1")


def test_a_rollout_that_the_alias_leaves_is_withdrawn_and_its_version_told() -> None:
    step = state(("live", 1), ("step", 2))
    (record,) = plan(cluster(1, ready("m", 1), known=step))
    assert record == Record("m", "withdrawn", desired(2), 1, "the alias moved to version 1")
    left = replace(step, step=None, withdrawn=Release("m", "withdrawn", 2, "d2", reason="so"))
    told = {a.version: a.tags for a in plan(cluster(1, ready("m", 1), known=left))}  # type: ignore[union-attr]
    assert told[2] == {"millrace.status": "staged", "millrace.reason": "not live: so"}


def test_a_refusal_of_what_was_never_staged_ends_when_the_alias_is_removed() -> None:
    known = state(("refused", 1))
    assert plan(cluster(1, (), known=known, staged={}, tags=settled(1, known))) == ()
    gone = cluster(None, (), known=known, staged={})
    assert plan(gone) == (Record("m", "left", desired(1), None, "its alias was removed"),)
    left = state(("refused", 1), ("left", 1))
    (told,) = plan(replace(gone, states={"m": left}))
    assert isinstance(told, Tag)
    assert told.tags["millrace.status"] == "staged"
    assert plan(cluster(None, (), known=left, staged={}, tags=settled(None, left))) == ()
    assert plan(cluster(None, (), known=left, staged={}, tags={("m", 1): None})) == ()
    assert plan(cluster(1, (), known=left, staged={})) == (Stage("m", 1),)


def test_a_model_that_was_unloaded_and_is_gone_from_disk_has_nothing_due() -> None:
    known = state(("live", 1), ("unwanted", 1), ("unloaded", 1))
    assert plan(cluster(None, (), known=known, staged={})) == ()


@pytest.mark.parametrize("tried", ["refused", "step"])
def test_what_is_live_stays_when_the_alias_of_another_version_is_gone(
    tried: str,
) -> None:
    known = state(("live", 1), (tried, 2))
    (record,) = plan(cluster(None, ready("m", 1), known=known))
    assert record == Record("m", "left", desired(2), 1, "its alias was removed")
    left = state(("live", 1), (tried, 2), ("left", 2))
    for_ever = replace(cluster(None, ready("m", 1), known=left), now=1e12)
    assert {type(action) for action in plan(for_ever)} == {Tag}
    assert plan(cluster(None, (), known=left)) == (Switch("m", 1, A),)
    assert plan(cluster(1, ready("m", 1), known=left)) == (Record("m", "live", desired(1), 1),)


def test_what_every_replica_answers_with_is_written_down_whatever_is_wanted() -> None:
    for known in (None, state(("live", 1)), state(("live", 1), ("refused", 3))):
        before = 1 if known else None
        seen = cluster(3, ready("m", 1, 2), known=known)
        assert plan(seen) == (Record("m", "live", desired(2), before),)
    apart = cluster(3, ready("m", 1, 2), ready("m", 1), known=state(("live", 1)))
    recorded = [action.kind for action in plan(apart) if isinstance(action, Record)]
    assert recorded == ["proved"]


def test_without_the_registry_what_was_live_is_kept_and_nothing_else_is_done() -> None:
    away = TransientError("MLflow cannot be reached")
    known = state(("live", 1), ("live", 2), ("refused", 3))
    seen = replace(cluster(None, ready("m", 1), (), known=known), registry_error=away)
    assert plan(seen) == (Switch("m", 2, A, (1,), 1), Switch("m", 2, B))
    assert plan(replace(seen, replicas=(Replica(A, ready("m", 1, 2)),))) == ()
    rolled = replace(seen, splits={"m": FIRST})
    assert plan(rolled) == ()


def test_a_release_that_a_person_asks_for_withdraws_the_refusal() -> None:
    known = state(("live", 1), ("refused", 2))
    assert known.refused is not None
    seen = cluster(2, ready("m", 1), known=known)
    later = replace(seen, retry_refused_before=known.refused.at + timedelta(seconds=1))
    assert plan(later) == (Record("m", "withdrawn", desired(2), 1, "the version is tried again"),)
    assert plan(replace(seen, retry_refused_before=known.refused.at)) == plan(seen)


def test_a_version_with_the_number_of_a_refused_one_and_another_digest_is_tried() -> None:
    known = derive_state([Release("m", "refused", 2, "other")])
    (record,) = plan(cluster(2, (), known=known))
    assert record == Record("m", "withdrawn", DesiredVersion(2, "other"), None, "its file changed")


def test_a_model_whose_alias_was_removed_is_served_for_a_while() -> None:
    known = state(("live", 1))
    gone = cluster(None, ready("m", 1), known=known)
    assert plan(gone) == (Record("m", "unwanted", desired(1), 1, "the alias was removed"),)
    unwanted = replace(known, alias_removed=Release("m", "unwanted", 1, "d1", at=BEGAN))
    (told,) = plan(replace(gone, states={"m": unwanted}, now=BEGAN.timestamp() + 59))
    assert isinstance(told, Tag)
    back = cluster(1, ready("m", 1), known=unwanted)
    assert plan(back) == (Record("m", "live", desired(1), 1),)


def test_a_model_without_champion_is_unloaded_and_then_that_is_written_down() -> None:
    unwanted = Release("m", "unwanted", 1, "d1", at=BEGAN)
    known = replace(state(("live", 1)), alias_removed=unwanted)
    later = BEGAN.timestamp() + 61
    gone = replace(cluster(None, ready("m", 1), known=known), now=later)
    assert plan(gone) == (Unload("m", A, 1),)
    gone = replace(cluster(None, (), known=known), now=later)
    assert plan(gone) == (Record("m", "unloaded", desired(1), 1),)


def test_a_model_that_no_release_staged_is_left_alone() -> None:
    assert plan(cluster(None, ready("of_others", 1), staged={})) == ()


def test_a_model_whose_champion_is_not_ours_is_left_alone() -> None:
    assert plan(cluster(None, ready("m", 1), foreign={"m"})) == ()


def test_a_model_on_disk_that_is_not_loaded_is_left_alone() -> None:
    assert plan(cluster(None, (LoadedModel("m", None, "UNKNOWN"),))) == ()


def test_a_version_that_is_loading_is_not_live() -> None:
    index = (LoadedModel("m", 2, "LOADING"), *ready("m", 1))
    known = state(("live", 1))
    assert Switch("m", 2, A, (1,), 1) in plan(cluster(2, index, known=known))


def test_a_live_version_that_does_not_answer_is_loaded_again() -> None:
    known = state(("live", 1), ("live", 2))
    seen = cluster(2, ready("m", 1, 2), known=known, tags=settled(2, known))
    (replica,) = seen.replicas
    ill = replace(seen, replicas=(replace(replica, unresponsive=frozenset({"m"})),))
    assert plan(ill) == (Switch("m", 2, A, (1,), 2, force_reload=True),)


def test_one_proof_does_for_all_replicas() -> None:
    actions = plan(cluster(2, ready("m", 1), ready("m", 1), known=state(("live", 1))))
    assert actions == (
        Verify("m", 2, 1),
        Validate("m", 2, A),
        Record("m", "proved", desired(2), 1),
        Switch("m", 2, A, (1,), 1),
        Switch("m", 2, B, (1,), 1),
    )


def test_an_interrupted_switch_goes_on_with_the_replicas_that_are_behind() -> None:
    actions = plan(cluster(2, ready("m", 2), ready("m", 1), known=state(("live", 1))))
    assert actions == (Switch("m", 2, B, (1,), 1),)


def test_a_replica_that_does_not_answer_is_passed_over_and_counted() -> None:
    known = state(("live", 1))
    assert Switch("m", 2, B, (1,), 1) in plan(cluster(2, GONE, ready("m", 1), known=known))
    after = state(("live", 1), ("live", 2))
    told = {a.version: a.tags for a in plan(cluster(2, GONE, ready("m", 2), known=after))}  # type: ignore[union-attr]
    assert told[2]["millrace.replicas"] == "1 of 2"


def test_a_replica_that_returns_catches_up() -> None:
    known = state(("live", 1), ("live", 2))
    assert plan(cluster(2, (), ready("m", 2), known=known)) == (Switch("m", 2, A),)


@pytest.mark.parametrize("quorum", [2, None])
def test_a_new_version_waits_for_its_quorum(quorum: int | None) -> None:
    known, policy = state(("live", 1)), Policy(quorum)
    actions = plan(cluster(2, GONE, ready("m", 1), known=known, policy=policy))
    told = {action.version: action.tags for action in actions if isinstance(action, Tag)}
    assert len(told) == len(actions)
    assert told[2]["millrace.status"] == "staged"
    assert told[1]["millrace.status"] == "live"


def test_a_quorum_does_not_keep_a_restarted_replica_waiting() -> None:
    known = state(("live", 2))
    assert plan(cluster(2, GONE, (), known=known, policy=Policy(None))) == (Switch("m", 2, B),)


def test_what_an_interrupted_trial_left_is_swept_first() -> None:
    trial = f"m{TRIAL}2-abcd"
    actions = plan(cluster(1, ready(trial, 1), staged={"m": (1,), trial: (1,)}))
    assert actions[0] == CleanUp("m", trial, (A,))
    assert plan(cluster(None, (), staged={trial: (1,)})) == (CleanUp("m", trial),)


def test_a_trial_belongs_to_its_model_which_alone_may_sweep_it() -> None:
    assert [owner_of(name) for name in ("m", f"m{TRIAL}2-abcd", "m.arms", "m.army")] == [
        *("m", "m", "m", "m.army")
    ]


def test_what_was_proved_a_moment_ago_is_not_proved_again() -> None:
    known = state(("live", 1), ("proved", 2))
    actions = plan(cluster(2, ready("m", 1), known=known))
    assert actions == (Verify("m", 2, 1), Switch("m", 2, A, keep=(1,), previous=1))


def test_old_versions_are_retired_by_the_keep_count() -> None:
    known = state(("live", 4), ("live", 5))
    staged = {"m": (1, 2, 3, 4, 5)}
    actions = plan(cluster(5, ready("m", 4, 5), known=known, staged=staged, tags=settled(5, known)))
    assert actions == (Retire("m", 1), Retire("m", 2))


def test_what_is_loaded_or_was_live_before_is_never_retired() -> None:
    known = state(("live", 1), ("live", 5))
    staged = {"m": (1, 2, 5)}
    policy = Policy(keep_versions=2)
    index = ready("m", 2, 5)
    told = settled(5, known)
    assert plan(cluster(5, index, known=known, staged=staged, policy=policy, tags=told)) == ()


def test_nothing_is_retired_while_a_replica_does_not_answer() -> None:
    known = state(("live", 4), ("live", 5))
    told = settled(5, known, serving=1, replicas=2)
    seen = cluster(5, ready("m", 5), GONE, known=known, staged={"m": (1, 2, 3, 4, 5)}, tags=told)
    assert plan(seen) == ()


def test_roll_back_keeps_a_lower_version_warm() -> None:
    assert warm_versions(2, ready=(1, 2, 3), staged=(1, 2, 3)) == (1,)


def test_a_warm_version_must_be_on_disk() -> None:
    assert warm_versions(3, ready=(1, 2), staged=(1, 3)) == (1,)


CANARY = RolloutSpec(kind="canary", steps=(10, 50), hold_s=60)
KNOWN = state(("live", 1))
FIRST = first_split("m", 1, 2, CANARY, 100.0)


def rolling(
    champion: int, index: tuple[LoadedModel, ...], split: Split | None, move: Move | None = None
) -> ClusterState:
    return replace(
        cluster(champion, index, known=KNOWN, tags=settled(champion, KNOWN)),
        rollouts={"m": CANARY},
        splits={"m": split} if split else {},
        moves={"m": move} if move else {},
        now=100.0,
    )


def test_a_rollout_begins_when_the_version_is_proved() -> None:
    actions = plan(rolling(2, ready("m", 1), None))
    assert actions == (
        Verify("m", 2, 1),
        Validate("m", 2, A),
        Record("m", "proved", desired(2), 1),
        StartSplit("m", 2, FIRST, A),
    )


ON = (*ready("m", 1), *ready("m.arms", 1, 2))


def test_a_step_of_a_rollout_is_written_down_once_and_told() -> None:
    stays = rolling(2, ON, FIRST, Move("stay", "too early"))
    step = "canary at 10% beside version 1"
    assert plan(stays) == (Record("m", "step", desired(2), 1, step),)
    known = replace(KNOWN, step=Release("m", "step", 2, "d2", reason=step))
    (tag,) = plan(replace(stays, states={"m": known}))
    assert isinstance(tag, Tag)
    assert tag.tags == {"millrace.reason": "canary at 10% beside version 1"}


def test_the_next_step_needs_no_other_proof() -> None:
    (action,) = plan(rolling(2, ON, FIRST, Move("step", "well", 50)))
    assert isinstance(action, StartSplit)
    assert action.split.weight_percent == 50


def test_a_replica_that_was_restarted_is_diverted_again() -> None:
    assert plan(rolling(2, (), FIRST, Move("stay", ""))) == (StartSplit("m", 2, FIRST, A),)


def test_a_step_whose_splitter_does_not_answer_begins_anew() -> None:
    seen = rolling(2, ON, FIRST, Move("promote", "well"))
    ill = replace(
        seen, replicas=(replace(seen.replicas[0], unresponsive=frozenset({"m"})),), now=130.0
    )
    assert plan(ill) == (StartSplit("m", 2, replace(FIRST, began=130.0), A, force_reload=True),)


def test_a_rollout_that_went_well_is_switched_and_then_dismantled() -> None:
    actions = plan(rolling(2, ON, FIRST, Move("promote", "well")))
    switched = (Switch("m", 2, A, (1,), 1), StopSplit("m", A))
    assert actions == (Record("m", "proved", desired(2), 1, "well"), *switched)
    passed = replace(KNOWN, proved=Release("m", "proved", 2, "d2", reason="well"))
    seen = replace(rolling(2, ON, FIRST, Move("promote", "better")), states={"m": passed})
    assert plan(seen) == switched


def test_after_the_switch_no_other_rollout_begins() -> None:
    assert plan(rolling(2, ready("m", 1, 2), None)) == (Record("m", "live", desired(2), 1),)


def test_a_rollout_that_went_badly_is_refused() -> None:
    actions = plan(rolling(2, ON, FIRST, Move("back", "slow")))
    assert actions == (Record("m", "refused", desired(2), 1, "slow"),)


def test_when_the_alias_goes_back_the_splitter_is_taken_away() -> None:
    assert plan(rolling(1, ON, FIRST)) == (Switch("m", 1, A, (), 1), StopSplit("m", A))


def test_arms_that_nothing_calls_are_swept() -> None:
    left = replace(
        cluster(1, ready("m", 1), known=KNOWN, tags=settled(1, KNOWN)),
        staged=on_disk({"m": (1,), "m.arms": (1, 2)}),
    )
    assert plan(left) == (CleanUp("m", "m.arms"),)


def named(champion: int | None, *loaded: LoadedModel, live: int = 2) -> ClusterState:
    """Return a settled model whose versions have names for their columns."""
    known = state(("live", 1), ("live", live))
    found = cluster(champion, loaded, known=known, tags=settled(champion, known))
    return replace(found, columns={"m": (1, 2, 3)})


def test_the_live_version_gets_a_front_step() -> None:
    front = "m" + COLUMNS
    missing = named(2, *ready("m", 1, 2))
    assert plan(missing) == (StartFront("m", 2, A),)
    assert plan(named(2, *ready("m", 1, 2), *ready(front, 1))) == (StartFront("m", 2, A),)
    assert plan(named(2, *ready("m", 1, 2), *ready(front, 2))) == ()
    assert plan(replace(missing, refused_fronts={"m": 1})) == (StartFront("m", 2, A),)
    assert plan(replace(missing, refused_fronts={"m": 2})) == ()
    again = replace(missing, refused_fronts={"m": 2}, retry_refused_before=BEGAN)
    assert plan(again) == (StartFront("m", 2, A),)
    stale = named(2, *ready("m", 1, 2), *ready(front, 1))
    assert plan(replace(stale, refused_fronts={"m": 2})) == (StopFront("m", A),)


def test_a_front_step_whose_process_died_is_loaded_anew() -> None:
    found = named(2, *ready("m", 2), *ready("m" + COLUMNS, 2))
    dead = replace(found.replicas[0], unresponsive=frozenset({"m" + COLUMNS}))
    actions = plan(replace(found, replicas=(dead,)))
    assert actions == (StartFront("m", 2, A, force_reload=True),)


def test_going_back_changes_the_front_step_before_its_version_goes() -> None:
    found = named(1, *ready("m", 1, 2), *ready("m" + COLUMNS, 2))
    front, switch = StartFront("m", 1, A), Switch("m", 1, A, (), 2)
    assert plan(found) == (front, switch, front)
    cold = named(1, *ready("m", 2), *ready("m" + COLUMNS, 2))
    both = Switch("m", 2, A, keep=(1,), previous=2)
    assert plan(cold) == (both, front, switch, front)


def test_a_model_without_named_columns_or_without_champion_has_no_front_step() -> None:
    found = named(2, *ready("m", 2), *ready("m" + COLUMNS, 2))
    assert plan(replace(found, columns={})) == (StopFront("m", A),)
    unwanted = Release("m", "unwanted", 2, "d2", at=BEGAN)
    known = replace(state(("live", 2)), alias_removed=unwanted)
    gone = replace(found, states={"m": known}, desired_versions={}, now=BEGAN.timestamp() + 61)
    assert plan(gone) == (StopFront("m", A), Unload("m", A, 2))


def profiled(wanted: str | None, staged: str, served: str) -> ClusterState:
    """Return a cluster where version 2 is live, and which profiles it should and does have."""
    known = state(("live", 2))
    found = cluster(2, ready("m", 2), known=known, tags=settled(2, known))
    return replace(
        found,
        desired_versions={"m": replace(desired(2), profile=wanted)},
        profiles={"m": staged},
        replicas=tuple(replace(each, profiles={"m": served}) for each in found.replicas),
    )


def test_a_serving_profile_of_the_live_version_is_staged_and_then_served() -> None:
    assert plan(profiled("new", "", "")) == (Stage("m", 2),)
    assert plan(profiled("new", "new", "")) == (Switch("m", 2, A, previous=2),)
    assert plan(profiled("new", "new", "new")) == ()


def test_without_its_profile_a_version_gets_the_settings_of_its_pipeline_file_again() -> None:
    assert plan(profiled("", "old", "old")) == (Stage("m", 2),)
    assert plan(profiled("", "", "old")) == (Switch("m", 2, A, previous=2),)


def test_where_the_profile_is_not_known_nothing_is_reloaded() -> None:
    assert plan(profiled(None, "old", "old")) == ()
