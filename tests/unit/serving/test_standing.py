from dataclasses import replace
from datetime import UTC, datetime, timedelta

from millrace.serving.release.release_state import (
    DesiredVersion,
    Kind,
    Release,
    ReleaseState,
    standing_of,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def events(*happened: tuple[Kind, int]) -> list[Release]:
    """Events a minute apart; version N has the digest "dN"."""
    return [
        Release("m", kind, version, f"d{version}", at=NOON + timedelta(minutes=minute))
        for minute, (kind, version) in enumerate(happened)
    ]


def wish(version: int) -> DesiredVersion:
    return DesiredVersion(version, f"d{version}")


def test_no_events_are_no_standing() -> None:
    assert standing_of([]) == ReleaseState()


def test_the_newest_live_event_counts() -> None:
    standing = standing_of(events(("live", 1), ("live", 2)))
    assert standing.is_live(wish(2))
    assert standing.superseded == 1
    assert standing.served == {wish(1), wish(2)}


def test_a_rollback_supersedes_what_it_left() -> None:
    standing = standing_of(events(("live", 1), ("live", 2), ("live", 1)))
    assert standing.is_live(wish(1))
    assert standing.superseded == 2


def test_a_version_that_goes_live_again_supersedes_nothing() -> None:
    assert standing_of(events(("live", 1), ("live", 2), ("live", 2))).superseded == 1


def test_a_refusal_holds_for_the_very_version() -> None:
    standing = standing_of(events(("live", 1), ("refused", 2)))
    assert standing.refuses(wish(2))
    assert not standing.refuses(DesiredVersion(2, "other"))
    assert not standing.refuses(wish(3))
    assert standing.is_live(wish(1))


def test_a_withdrawn_refusal_is_none() -> None:
    standing = standing_of(events(("live", 1), ("refused", 2), ("withdrawn", 2)))
    assert not standing.refuses(wish(2))


def test_a_refusal_ends_when_something_goes_live() -> None:
    assert standing_of(events(("refused", 2), ("live", 3))).refused is None


def test_a_proof_holds_until_something_else_comes_of_it() -> None:
    proved = events(("live", 1), ("proved", 2))
    assert standing_of(proved).has_proved(wish(2))
    assert standing_of(proved).has_proved(wish(1))
    assert not standing_of(proved).has_proved(DesiredVersion(2, "other"))
    later: tuple[Kind, ...] = ("live", "refused", "withdrawn", "left", "unloaded")
    for kind in later:
        ended = standing_of([*proved, *events((kind, 3))])
        assert not ended.has_proved(wish(2)), kind


def test_a_proof_without_a_reason_is_not_that_of_a_rollout() -> None:
    proved = events(("proved", 2))
    assert not standing_of(proved).has_passed(wish(2))
    assert standing_of([replace(proved[0], reason="well")]).has_passed(wish(2))


def test_a_step_of_a_rollout_ends_with_what_comes_of_it() -> None:
    on = standing_of(events(("live", 1), ("step", 2)))
    assert on.tried is not None
    for kind in ("live", "refused", "withdrawn", "left"):
        assert standing_of(events(("live", 1), ("step", 2), (kind, 2))).step is None


def test_after_an_unload_nothing_is_live_and_the_version_keeps_its_merit() -> None:
    standing = standing_of(events(("live", 1), ("unloaded", 1)))
    assert standing.live is None
    assert standing.superseded == 1
    assert wish(1) in standing.served
