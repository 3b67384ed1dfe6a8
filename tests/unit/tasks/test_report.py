from dataclasses import replace

import pytest

from millrace.export.candidate import Candidate, Speed
from millrace.export.onnx.graph_certificate import Certificate, Stage
from millrace.tasks.reports.run_report import (
    candidate_row,
    candidates_table,
    certificate_table,
    table,
)

CERTIFICATE = Certificate("m", "fast", "d", "rows", 0, "e", 10, 2, "accuracy", 0.01, (), True)
STAGE = Stage("fast", 0.0, 0.0, 0.98765, 0.0123, 0.98, 0.995, "no", 0.9)
MEASURED = Candidate(
    "fast", size_bytes=2**21, speed=Speed(0.1234, 1.5, 81234.5, 2**27), stage=STAGE
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
        (replace(MEASURED, name="other", is_engine=True), "passed; an engine, not served"),
    ],
)
def test_a_candidate_is_told_with_its_verdict(candidate: Candidate, verdict: str) -> None:
    assert candidate_row(candidate, CERTIFICATE) == (
        *(candidate.name, "2,048 KiB", "0.123 ms", "1.500 ms", "81,234", "128 MiB"),
        *("0.9877", "0.9800 to 0.9950", "no: 0.9000", "1.23%", verdict),
    )


def test_forms_of_the_front_have_a_star_and_the_machine_is_told() -> None:
    slow = replace(MEASURED, name="slow", speed=Speed(9.0, 9.0, 1.0, 1))
    told = candidates_table([MEASURED, slow], replace(CERTIFICATE, machine="a laptop"))
    assert "| fast ★ |" in told
    assert "| slow |" in told
    assert "Measured on a laptop." in told


def test_what_engines_are_tied_to_is_told_once() -> None:
    tied = [
        replace(MEASURED, name=name, stage=replace(STAGE, name=name, ties="a GPU, TensorRT 11"))
        for name in ("one", "other")
    ]
    assert candidates_table([MEASURED, *tied], CERTIFICATE).count("With TensorRT: a GPU") == 1
    assert "With TensorRT" not in candidates_table([MEASURED], CERTIFICATE)


def test_a_candidate_that_was_not_made_is_told_with_the_reason() -> None:
    row = candidate_row(Candidate("int8", reason="nothing to quantize"), CERTIFICATE)
    assert row == ("int8", *[""] * 9, "nothing to quantize")


def test_a_compressed_model_is_shown_beside_another_with_their_sizes() -> None:
    small = replace(STAGE, size_bytes=2048)
    beside = replace(STAGE, name="m version 3, onnx-fp32", metric=0.99, size_bytes=8192)
    told = certificate_table(replace(CERTIFICATE, stages=(small,), reference=beside))
    *_, compressed, reference = told.splitlines()
    assert compressed.endswith("| 0.9877 | +1.23% | 2 KiB |")
    assert reference == "| beside it: m version 3, onnx-fp32 |  | 0.9900 | +1.23% | 8 KiB |"
