from threading import Event

import pytest

from millrace.tasks import progress


def test_a_task_without_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    silent = Event()

    def take(_: str, line: object, *more: object) -> None:
        lines.append(str(line))
        silent.set()

    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.02)
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress.log, "info", take)
    with progress.bar("train", 15, "epochs") as bar:
        silent.wait()
        bar.update(15, "loss 1")
    assert lines[0] == "train: 0/15 epochs  0 s so far"
    assert "train: 15/15 epochs  loss 1" in lines


def test_a_fast_task_has_no_line_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[object] = []
    monkeypatch.setattr(progress.log, "info", lambda words, *_: lines.append(words))
    monkeypatch.setattr(progress, "_LINE_SECONDS", float("inf"))
    with progress.bar("ingest", None, "rows"):
        pass
    assert lines == ["%s: done in %.1f s"]


def test_a_state_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress.log, "info", lambda words, *more: lines.append(words % more))
    with progress.bar("score", 9, "rows") as bar:
        for done in (4, 9, 9):
            bar.update(done)
    assert lines[:-1] == ["score: 9/9 rows"]
