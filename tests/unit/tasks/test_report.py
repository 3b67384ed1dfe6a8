from dataclasses import replace

import pytest

from export.candidate import Candidate
from export.certificate import Certificate, Stage
from tasks.report import candidate_row, table

CERTIFICATE = Certificate("m", "fast", "d", "rows", 0, "e", 10, 2, "accuracy", 0.01, (), True)
MEASURED = Candidate(
    "fast", size_bytes=2_097_152, latency_ms=0.1234, stage=Stage("fast", 0.0, 0.0, 0.98765, 0.0)
)


def test_a_table_has_its_head_and_a_rule_above_the_rows() -> None:
    assert table(("model", "version"), [("digits", "3"), ("iris", "1")]) == (
        "| model | version |\n| --- | --- |\n| digits | 3 |\n| iris | 1 |"
    )


def test_a_table_without_rows_has_its_head() -> None:
    assert table(("a",), []) == "| a |\n| --- |"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(("a",), [("x|y",)]).endswith("| x\\|y |")


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (MEASURED, "chosen"),
        (replace(MEASURED, name="other"), "passed"),
        (replace(MEASURED, reason="too slow"), "too slow"),
    ],
)
def test_a_candidate_is_told_with_its_verdict(candidate: Candidate, verdict: str) -> None:
    expected = (candidate.name, "2,048 KiB", "0.123 ms", "0.9877", verdict)
    assert candidate_row(candidate, CERTIFICATE) == expected


def test_a_candidate_that_was_not_made_is_told_with_the_reason() -> None:
    row = candidate_row(Candidate("int8", reason="nothing to quantize"), CERTIFICATE)
    assert row == ("int8", "", "", "", "nothing to quantize")
