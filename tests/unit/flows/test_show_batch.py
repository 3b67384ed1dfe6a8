from dataclasses import replace

import pytest

from flows.show_batch import show_batch
from serving.batch.agreement import Agreement
from serving.batch.report import BatchReport

REPORT = BatchReport(
    *("t", "t-dead", 1, "2026-01-05", "m", 3, "d", "f", "j"), *(4, 4, 0, 0, None, None, 1.0)
)


def test_a_batch_says_how_it_compares_with_the_live_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    show_batch(replace(REPORT, agreement=Agreement(reason="version 4 is live, not 3")))
    line = next(each for each in capsys.readouterr().out.splitlines() if "as live" in each)
    assert "not compared with the live model: version 4 is live, not 3" in line
    show_batch(REPORT)
    assert "as live" not in capsys.readouterr().out
