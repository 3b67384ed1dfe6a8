"""Whether two answers are alike, and what a sample of them comes to."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from millrace.models.common.errors import InputError
from millrace.serving.batch.monitoring.agreement import (
    Agreement,
    Difference,
    class_difference,
    number_difference,
    require_agreement,
    text_difference,
)
from millrace.serving.batch.monitoring.batch_report import BatchReport

LABELS = ("cat", "dog", "owl")


@pytest.mark.parametrize(
    ("live", "tolerance", "scale", "alike"),
    [
        (2.0, 0.0, 1.0, True),
        (2.0001, 0.0, 1.0, True),
        (2.001, 0.0, 1.0, False),
        (2.001, 0.01, 1.0, True),
        (2.001, 0.0, 100.0, True),
        (float("nan"), 1.0, 1.0, False),
        (float("inf"), 1.0, 1.0, False),
    ],
)
def test_numbers_are_alike_up_to_rounding_and_a_tolerance(
    live: float, tolerance: float, scale: float, alike: bool
) -> None:
    assert (number_difference(2.0, live, tolerance, scale).share == 0) is alike


def test_rounding_of_small_numbers_is_small() -> None:
    assert number_difference(2e-3, 2.01e-3, 0.0, 1e-3).share == 1
    assert number_difference(2e6, 2e6 + 100, 0.0, 1e5).share == 0


@pytest.mark.parametrize(
    ("live", "tolerance", "alike"),
    [
        ((0.1, 0.8, 0.1), 0.0, True),
        ((0.8, 0.1, 0.1), 0.0, False),
        ((0.45005, 0.45, 0.1), 0.0, True),
        ((0.46, 0.44, 0.1), 0.0, False),
        ((0.46, 0.44, 0.1), 0.01, True),
        ((float("nan"),) * 3, 0.1, False),
    ],
)
def test_classes_are_alike_unless_the_live_model_clearly_finds_another(
    live: tuple[float, ...], tolerance: float, alike: bool
) -> None:
    found = class_difference("dog", 0.8, np.array(live, np.float32), LABELS, tolerance)
    assert (found.share == 0) is alike


def test_the_distance_of_classes_is_that_of_the_written_ones_probability() -> None:
    found = class_difference("dog", 0.7, np.array([0.8, 0.1, 0.1]), LABELS, 0.0)
    assert found.distance == pytest.approx(0.6)
    assert found.text == "'dog' here, 'cat' live"


@pytest.mark.parametrize(
    ("written", "live", "is_whole", "alike"),
    [
        ("the moon", "the moon", True, True),
        ("the moon", "the mo", True, False),
        ("the moon", "the mo", False, True),
        ("the moon", "the mu", False, False),
        ("the moon é", "the moon \ufffd", False, True),
        ("the moon", "the moon E", False, True),
        ("the moon", "the moon E", True, False),
        ("the moon", "the moon EN", False, True),
        ("the moon", "the moon ENT", False, False),
        ("", "", True, True),
        ("a", "", False, True),
    ],
)
def test_texts_are_alike_as_far_as_the_live_model_surely_went(
    written: str, live: str, is_whole: bool, alike: bool
) -> None:
    found = text_difference(written, live, (" END",), is_whole=is_whole, exact=True)
    assert (found.share == 0) is alike


@pytest.mark.parametrize(
    ("exact", "is_whole", "share"), [(True, True, 1), (False, True, 0.75), (False, False, 0.5)]
)
def test_a_text_that_may_part_counts_from_there(exact: bool, is_whole: bool, share: float) -> None:
    found = text_difference("abcdefgh", "abxx", (), is_whole=is_whole, exact=exact)
    assert found.share == share


FOUND = [
    ("1", Difference(0.0, 0.01)),
    ("2", Difference(1.0, 0.5, "'a' here, 'b' live")),
    ("3", Difference(0.0, 0.0)),
    ("4", Difference(1.0, None, "'a' here, 'c' live")),
]


def test_a_sample_is_summed_up() -> None:
    found = Agreement.of(FOUND, 5, endpoint="host:1", reason="10 s were not enough")
    assert (found.sample, found.compared, found.disagreed) == (5, 4, 2)
    assert (found.share, found.largest) == (0.5, 0.5)
    assert found.examples == ("2: 'a' here, 'b' live", "4: 'a' here, 'c' live")
    assert str(found) == (
        "2 of 4 answers agree with the live model at host:1, largest difference 5.0e-01; "
        "1 not compared: 10 s were not enough"
    )
    assert found.metrics() == {
        "agreement.compared": 4.0,
        "agreement.disagreed": 2.0,
        "agreement.share": 0.5,
        "agreement.largest": 0.5,
    }


def test_nothing_compared_says_why_and_holds_any_limit() -> None:
    found = Agreement(reason="m is not live")
    assert str(found) == "not compared with the live model: m is not live"
    assert found.metrics() == {"agreement.compared": 0.0}
    require_agreement(found, 0.0, "m", 3)


def test_too_much_that_differs_says_what_how_much_and_what_to_do() -> None:
    found = Agreement.of(FOUND, 4, endpoint="host:1")
    require_agreement(found, 0.5, "m", 3)
    with pytest.raises(InputError) as caught:
        require_agreement(found, 0.49, "m", 3)
    told = str(caught.value)
    assert "2 of 4 answers differ from those of the live m version 3" in told
    assert "nothing was committed" in told
    assert "50.00% of the sample differs from Triton at host:1; answers by key" in told
    assert "2: 'a' here, 'b' live; 4:" in told
    assert "at most 49.00% of the sample (batch.max_disagreement)" in told
    assert "commits the rows already scored" in told


def test_what_a_form_may_give_otherwise_is_no_fault() -> None:
    require_agreement(Agreement.of(FOUND, 4, admitted=0.5), 0.0, "m", 3)


REPORT = BatchReport(
    *("t", "t-dead", -1, "2026-01-05", "m", 3, "d", "f", "j"),
    *(4, 4, 0, 0, None, None, 1.0),
    agreement=Agreement.of(FOUND, 4),
)


def test_a_commit_keeps_it() -> None:
    kept = BatchReport.of_commit({**REPORT.metadata(), "version": "7"})
    assert kept == replace(REPORT, table_version=7, unchanged=True)


def test_a_commit_of_before_has_none() -> None:
    values = asdict(REPORT)
    del values["agreement"], values["input"]
    kept = BatchReport.of_commit({"millrace.report": json.dumps(values), "version": "7"})
    assert kept.agreement is None
