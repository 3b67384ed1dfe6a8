from collections.abc import Mapping

import pytest

from millrace.flows.triggers.watch import IMMEDIATE_REPEATS, LATE_SECONDS, MAX_CORE_SHARE, Watch
from millrace.models.common.errors import TransientError

Found = Mapping[str, str] | Exception


class Looks:
    """What each look finds, and who was asked for what."""

    def __init__(self, *found: Found) -> None:
        self._found = iter(found)
        self.asked: list[tuple[str, str]] = []
        self.now = 0.0
        self.watch = Watch(
            self._due, lambda model, why: self.asked.append((model, why)), 3.0, lambda: self.now
        )

    def _due(self) -> Mapping[str, str]:
        found = next(self._found)
        if isinstance(found, Exception):
            raise found
        return found

    def after(self, looks: int) -> list[str]:
        for _ in range(looks):
            self.watch.check()
        return [why for _, why in self.asked]


def test_what_is_due_is_asked_for_once() -> None:
    looks = Looks({"a": "switch a"}, {"a": "switch a"}, {"a": "tag a"})
    assert looks.after(3) == ["watch: switch a", "watch: tag a"]


def test_what_was_mended_and_breaks_again_is_asked_for_again() -> None:
    assert len(Looks({"a": "switch a"}, {}, {"a": "switch a"}).after(3)) == 2


@pytest.mark.parametrize(("released", "asked"), [(None, 2), (["a"], 2), (["b"], 1)])
def test_what_breaks_again_right_after_a_release_of_it_is_asked_for_again(
    released: list[str] | None, asked: int
) -> None:
    looks = Looks({"a": "switch a"}, {"a": "switch a"})
    looks.after(1)
    looks.watch.note_release(released)
    assert looks.after(1) == ["watch: switch a"] * asked


def test_what_a_release_does_not_mend_is_asked_for_again_after_a_while() -> None:
    looks = Looks(*[{"a": "switch a"}] * 1000)
    times = []
    for second in range(0, 700, 5):
        looks.now = float(second)
        looks.watch.check()
        times += [second] * (len(looks.asked) - len(times))
    assert times == [0, 60, 180, 420]


def test_what_releases_leave_as_it_is_is_asked_for_less_often() -> None:
    looks = Looks(*[{"a": "tag a"}] * 100)
    for second in range(0, 55, 5):
        looks.now = float(second)
        looks.watch.check()
        looks.watch.note_release(["a"])
    assert len(looks.asked) == IMMEDIATE_REPEATS


def test_a_fault_is_told_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    away = TransientError("no MLflow")
    assert Looks(away, away, {"a": "switch a"}).after(3) == ["watch: switch a"]
    assert [record.message.count("no MLflow") for record in caplog.records] == [1]


def test_a_slow_look_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 1.0, 10.0, 10.1))
    monkeypatch.setattr("millrace.flows.triggers.watch.time.thread_time", lambda: next(times))
    looks = Looks({}, {})
    assert looks.watch.check() == pytest.approx(1.0 / MAX_CORE_SHARE)
    assert looks.watch.check() == 3.0


def test_it_tells_when_it_looks_no_more() -> None:
    looks = Looks({}, {})
    for _ in range(2):
        looks.now += 3.0 + LATE_SECONDS
        assert looks.watch.is_checking
        looks.now += 0.1
        assert not looks.watch.is_checking
        looks.watch.check()


def test_a_look_that_comes_later_because_it_costs_much_is_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((0.0, 10.0))
    monkeypatch.setattr("millrace.flows.triggers.watch.time.thread_time", lambda: next(times))
    looks = Looks({})
    looks.watch.check()
    looks.now += 10.0 / MAX_CORE_SHARE
    assert looks.watch.is_checking
