"""`serving.slo`: which goals there are, and which model may have which."""

from typing import Any

import pytest
from pydantic import ValidationError

from millrace.models.config.pipeline import Pipeline
from millrace.models.config.slo_spec import SloSpec, mean_of


def goal(**keys: Any) -> SloSpec:
    return SloSpec.model_validate({"rate": 10, "p99_ms": 5, **keys})


def pipeline(family: str, slo: dict[str, Any]) -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": "m",
            "dataset": {"source": "r.csv", "target": "y"},
            "model": {"family": family},
            "serving": {"slo": slo},
        }
    )


@pytest.mark.parametrize("key", ["rows", "prompt_tokens", "answer_tokens"])
def test_one_number_is_short_for_a_size_that_always_occurs(key: str) -> None:
    assert getattr(goal(**{key: 4}), key) == {4: 1}
    assert goal(**{key: 4}) == goal(**{key: {4: 1}})


def test_a_request_has_one_row_unless_the_goal_says_otherwise() -> None:
    assert goal().rows == {1: 1}


def test_the_mean_counts_how_often_each_size_occurs() -> None:
    assert goal(rows={1: 9, 16: 1}).mean_rows == pytest.approx(2.5)
    assert mean_of({2: 0.5, 4: 1.5}) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("keys", "is_streamed"),
    [
        ({"p99_ms": 5}, False),
        ({"ttft_p99_ms": 200}, True),
        ({"tpot_p99_ms": 20}, True),
        ({"ttft_p99_ms": 200, "tpot_p99_ms": 20}, True),
    ],
)
def test_a_goal_without_p99_is_one_of_streams(keys: dict[str, float], is_streamed: bool) -> None:
    assert SloSpec.model_validate({"rate": 1, **keys}).is_streamed is is_streamed


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"ttft_p99_ms": 5}, (), "has p99_ms, or ttft_p99_ms and tpot_p99_ms, not both"),
        ({"tpot_p99_ms": 5}, (), "not both"),
        ({"p99_ms": None}, (), "needs p99_ms, or for a causal_lm ttft_p99_ms"),
        ({"p99_ms": 0}, ("p99_ms",), "greater than 0"),
        ({"p99_ms": float("nan")}, ("p99_ms",), "finite"),
        ({"p99_ms": float("inf")}, ("p99_ms",), "finite"),
        ({"p99_ms": True}, ("p99_ms",), "true is not a number"),
        ({"p99_ms": None, "ttft_p99_ms": -1}, ("ttft_p99_ms",), "greater than 0"),
        ({"p99_ms": None, "tpot_p99_ms": 0}, ("tpot_p99_ms",), "greater than 0"),
        ({"rate": 0}, ("rate",), "greater than 0"),
        ({"rate": -3}, ("rate",), "greater than 0"),
        ({"rate": True}, ("rate",), "true is not a number"),
        ({"rows": True}, ("rows",), "true is not a number"),
        ({"rows": False}, ("rows",), "false is not a number"),
        ({"rows": 0}, ("rows", 0, "[key]"), "greater than or equal to 1"),
        ({"rows": -4}, ("rows", -4, "[key]"), "greater than or equal to 1"),
        ({"rows": {1: 9, 0: 1}}, ("rows", 0, "[key]"), "greater than or equal to 1"),
        ({"rows": {1: 0}}, ("rows", 1), "greater than 0"),
        ({"rows": {1: -1}}, ("rows", 1), "greater than 0"),
        ({"rows": {1: float("inf")}}, ("rows", 1), "finite"),
        ({"rows": {}}, ("rows",), "at least 1"),
        ({"rows": "many"}, ("rows",), "dictionary"),
        ({"prompt_tokens": 0}, ("prompt_tokens", 0, "[key]"), "greater than or equal to 1"),
        ({"answer_tokens": {}}, ("answer_tokens",), "at least 1"),
        ({"p99": 5}, ("p99",), "not permitted"),
    ],
)
def test_what_is_no_goal_is_refused_with_words(
    keys: dict[str, object], place: tuple[object, ...], words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        goal(**keys)
    (error,) = caught.value.errors()
    assert error["loc"] == place
    assert words in error["msg"]


def test_a_goal_has_a_rate() -> None:
    with pytest.raises(ValidationError, match=r"rate\n.*required"):
        SloSpec.model_validate({"p99_ms": 5})


P99 = {"rate": 10, "p99_ms": 5}
TTFT = {"rate": 1, "ttft_p99_ms": 200}
TPOT = {"rate": 1, "tpot_p99_ms": 20}


@pytest.mark.parametrize(
    ("family", "slo"),
    [
        ("mlp", P99),
        ("gradient_boosting", P99),
        ("text_classifier", P99),
        ("causal_lm", TTFT),
        ("causal_lm", TPOT),
    ],
)
def test_a_model_has_a_goal_of_its_kind(family: str, slo: dict[str, Any]) -> None:
    assert pipeline(family, slo).serving.slo == SloSpec.model_validate(slo)


@pytest.mark.parametrize(
    ("family", "slo", "valid"),
    [
        ("mlp", TTFT, "p99_ms"),
        ("mlp", TPOT, "p99_ms"),
        ("gradient_boosting", TTFT, "p99_ms"),
        ("text_classifier", TTFT, "p99_ms"),
        ("causal_lm", P99, "ttft_p99_ms and tpot_p99_ms"),
    ],
)
def test_a_goal_of_another_kind_of_model_is_refused(
    family: str, slo: dict[str, Any], valid: str
) -> None:
    told = f"serving.slo of the family {family} is a goal for {valid}\\b"
    with pytest.raises(ValidationError, match=told):
        pipeline(family, slo)
