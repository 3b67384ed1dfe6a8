from dataclasses import replace

import pytest

from millrace.flows.cli.lineage import Lineage
from millrace.flows.cli.show import show_batch, show_lineage
from millrace.serving.batch.input.row_lineage import Origin
from millrace.serving.batch.monitoring.agreement import Agreement
from millrace.serving.batch.monitoring.batch_report import BatchReport

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


def test_lineage_has_the_first_digits_of_digests_and_says_that_nothing_was_released(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    digest = "0123456789ab" + "c" * 52
    origin = Origin({"_key": "7"}, "r.csv", 3, {"sha256": digest}, {}, "job", {}, 1)
    show_lineage([Lineage(origin, {}, {}, [])])
    shown = capsys.readouterr().out
    assert "sha256 0123456789ab… " in shown
    assert digest not in shown
    assert "none: this home has not released the version" in shown
