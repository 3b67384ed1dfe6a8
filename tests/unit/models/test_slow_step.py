import logging
from threading import Event

import pytest

from millrace.models.common import slow_step
from millrace.models.common.slow_step import repeat_while, report_while


def test_a_slow_step_is_reported_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_step, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(slow_step, "LOOK_SECONDS", 0.01)
    reported = Event()
    monkeypatch.setattr(slow_step.log, "info", lambda *words: (reported.set(), lines.append(words)))
    lines: list[tuple[object, ...]] = []
    with report_while("starting Ray"):
        reported.wait()
    assert {step for _, step, _ in lines} == {"starting Ray"}
    before = len(lines)
    assert not Event().wait(0.05)
    assert len(lines) == before


def test_a_line_of_another_step_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_step, "LINE_SECONDS", 0.2)
    monkeypatch.setattr(slow_step, "LOOK_SECONDS", 0.01)
    with caplog.at_level(logging.INFO, "millrace"):
        slow_step.log.info("one")
        with report_while("starting Ray"):  # each step is shorter, both together are not
            Event().wait(0.15)
        with report_while("loading"):
            Event().wait(0.15)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["one", "loading: 0 s so far"]


def test_a_fast_step_is_silent_and_its_error_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "millrace"),
        pytest.raises(KeyError),
        report_while("starting Ray"),
    ):
        raise KeyError("k")
    assert not caplog.records


def test_a_call_that_fails_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, again = [], Event()

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk full")
        again.set()

    with repeat_while(0.01, fail_once):
        assert again.wait(10)
    assert "disk full" in caplog.text
