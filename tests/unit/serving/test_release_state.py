from dataclasses import replace
from datetime import UTC, datetime, timedelta

from millrace.serving.release.release_state import (
    DesiredVersion,
    Kind,
    Release,
    ReleaseState,
    derive_state,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def events(*happened: tuple[Kind, int]) -> list[Release]:
    """Events a minute apart; version N has the digest "dN"."""
    return [
        Release("m", kind, version, f"d{version}", at=NOON + timedelta(minutes=minute))
        for minute, (kind, version) in enumerate(happened)
    ]


def desired(version: int) -> DesiredVersion:
    return DesiredVersion(version, f"d{version}")


def test_no_events_are_no_standing() -> None:
    assert derive_state([]) == ReleaseState()


def test_the_newest_live_event_counts() -> None:
    state = derive_state(events(("live", 1), ("live", 2)))
    assert state.is_live(desired(2))
    assert state.superseded == 1
    assert state.served_before == {desired(1), desired(2)}


def test_a_rollback_supersedes_what_it_left() -> None:
    state = derive_state(events(("live", 1), ("live", 2), ("live", 1)))
    assert state.is_live(desired(1))
    assert state.superseded == 2


def test_a_version_that_goes_live_again_supersedes_nothing() -> None:
    assert derive_state(events(("live", 1), ("live", 2), ("live", 2))).superseded == 1


def test_a_refusal_holds_for_the_very_version() -> None:
    state = derive_state(events(("live", 1), ("refused", 2)))
    assert state.has_refused(desired(2))
    assert not state.has_refused(DesiredVersion(2, "other"))
    assert not state.has_refused(desired(3))
    assert state.is_live(desired(1))


def test_a_withdrawn_refusal_is_none() -> None:
    state = derive_state(events(("live", 1), ("refused", 2), ("withdrawn", 2)))
    assert not state.has_refused(desired(2))


def test_a_refusal_ends_when_something_goes_live() -> None:
    assert derive_state(events(("refused", 2), ("live", 3))).refused is None


def test_a_proof_holds_until_something_else_comes_of_it() -> None:
    proved = events(("live", 1), ("proved", 2))
    assert derive_state(proved).is_validated(desired(2))
    assert derive_state(proved).is_validated(desired(1))
    assert not derive_state(proved).is_validated(DesiredVersion(2, "other"))
    later: tuple[Kind, ...] = ("live", "refused", "withdrawn", "left", "unloaded")
    for kind in later:
        ended = derive_state([*proved, *events((kind, 3))])
        assert not ended.is_validated(desired(2)), kind


def test_a_proof_without_a_reason_is_not_that_of_a_rollout() -> None:
    proved = events(("proved", 2))
    assert not derive_state(proved).has_completed_rollout(desired(2))
    assert derive_state([replace(proved[0], reason="well")]).has_completed_rollout(desired(2))


def test_a_step_of_a_rollout_ends_with_what_comes_of_it() -> None:
    on = derive_state(events(("live", 1), ("step", 2)))
    assert on.attempted is not None
    for kind in ("live", "refused", "withdrawn", "left"):
        assert derive_state(events(("live", 1), ("step", 2), (kind, 2))).step is None


def test_after_an_unload_nothing_is_live_and_the_version_keeps_its_merit() -> None:
    state = derive_state(events(("live", 1), ("unloaded", 1)))
    assert state.live is None
    assert state.superseded == 1
    assert desired(1) in state.served_before
