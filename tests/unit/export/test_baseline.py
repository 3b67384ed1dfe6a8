"""A model has to beat the answer that never looks at a row."""

import math
from pathlib import Path

import numpy as np
import pytest

from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.onnx.graph_certificate import Baseline, GraphCandidate, GraphStage, baseline_of
from millrace.models.inference.answers import Answers, ClassAnswers, NumberAnswers
from millrace.tasks.kinds.graph.graph_export import beside_constant
from millrace.tasks.kinds.language.language_export import beside_unigram

CLASSES = ClassAnswers(("no", "yes"))
TRAIN = np.array([0] * 90 + [1] * 10)


def one_hot(*positions: int) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[list(positions)]


def refusal(meaning: Answers, train: np.ndarray, answers: np.ndarray, target: np.ndarray):  # type: ignore[no-untyped-def]
    found = baseline_of(meaning, train, target)
    metric = meaning.metric_of_answers(answers, target)
    return found.refusal(metric, lambda: meaning.balanced(answers, target))


@pytest.mark.parametrize(
    ("target", "answer", "metric"),
    [((0, 0, 1), "'no'", 2 / 3), ((0, 1, 1, 1), "'yes'", 0.75), ((1, 1), "'no'", 0.0)],
    ids=["the commonest of both splits", "that of the test split", "a split of one class"],
)
def test_the_constant_is_the_better_one(
    target: tuple[int, ...], answer: str, metric: float
) -> None:
    found = baseline_of(CLASSES, TRAIN, np.array(target))
    assert (found.answer, found.metric) == (answer, pytest.approx(metric))


def test_noise_about_more_classes_than_a_small_split_holds_does_not_pass() -> None:
    """The commonest class of the train split is not in the test split: its accuracy is 0."""
    meaning = ClassAnswers(tuple(map(str, range(88))))
    train, target = np.array([0, 0, *range(1, 88)]), np.array([*range(1, 31), 7, 7])
    given = np.eye(88, dtype=np.float32)[[*target[:2], *[0] * 30]]
    found = refusal(meaning, train, given, target)
    assert found == "its accuracy of 0.0625 is no better than 0.0938, that of always answering '7'"


def test_the_constant_of_a_number_is_the_mean() -> None:
    for train in ([1.0, 3.0], [9.0]):
        found = baseline_of(NumberAnswers(), np.array(train), np.array([1.0, 3.0]))
        assert (found.answer, found.metric) == ("2, the mean", 0.0)
    assert (
        baseline_of(NumberAnswers(), np.array([9.0]), np.array([3.0, 3.0])).answer == "9, the mean"
    )


@pytest.mark.parametrize(
    ("target", "answers", "passes"),
    [
        ((0, 0, 0, 1), (0, 0, 0, 1), True),
        ((0, 0, 0, 1), (0, 0, 0, 0), False),  # it is the constant
        ((0, 0, 0, 1), (0, 0, 1, 1), True),  # as often right, and not about one class only
        ((0, 0, 0, 1), (0, 1, 1, 0), False),
        ((0, 0, 0, 0), (0, 0, 0, 0), True),  # a split that tells nothing
        ((0, 0, 0, 0), (0, 0, 0, 1), False),
        ((1, 1), (1, 0), True),
        ((1, 1), (0, 0), False),
    ],
)
def test_classes(target: tuple[int, ...], answers: tuple[int, ...], passes: bool) -> None:
    found = refusal(CLASSES, TRAIN, one_hot(*answers), np.array(target))
    assert (found is None) is passes


def test_the_reason_says_both_figures() -> None:
    found = refusal(CLASSES, TRAIN, one_hot(0, 1, 1, 0), np.array([0, 0, 0, 1]))
    assert found == (
        "its accuracy of 0.2500 is no better than 0.7500, that of always answering 'no'"
    )


@pytest.mark.parametrize(
    ("answers", "passes"), [((1, 2, 3), True), ((2, 2, 2), False), ((3, 2, 1), False)]
)
def test_numbers(answers: tuple[float, ...], passes: bool) -> None:
    given = np.array(answers, np.float32)[:, None]
    found = refusal(NumberAnswers(), np.array([1.0, 3.0]), given, np.array([1.0, 2.0, 3.0]))
    assert (found is None) is passes


def test_what_is_no_number_is_no_better() -> None:
    assert Baseline("0", "r2", -1.0, 1.0, True).refusal(math.nan, lambda: 1.0) is not None


@pytest.mark.parametrize(("metric", "passes"), [(0.03, False), (0.10, False), (0.11, True)])
def test_a_form_that_beats_no_constant_does_not_pass(metric: float, passes: bool) -> None:
    stage = GraphStage("onnx-fp32", 0.0, 0.0, metric, 0.0)
    variant = GraphCandidate("onnx-fp32", Path("model.onnx"), stage=stage)
    baseline = Baseline("'no'", "accuracy", 0.1001, 0.5, True)
    found = beside_constant(variant, CLASSES, np.array([0, 1]), baseline)
    assert found.passed is passes
    assert passes or "no better than 0.1001, that of always answering" in str(found.reason)


def test_a_form_that_was_refused_keeps_its_reason() -> None:
    variant = GraphCandidate("onnx-fp32", Path("model.onnx"), reason="it is too large")
    baseline = Baseline("0", "r2", 0.0, 1.0, True)
    found = beside_constant(variant, NumberAnswers(), np.array([0.0, 1.0]), baseline)
    assert found.reason == "it is too large"


@pytest.mark.parametrize(("perplexity", "passes"), [(99.9, True), (100.0, False), (300, False)])
def test_a_language_model_has_to_beat_the_unigram(perplexity: float, passes: bool) -> None:
    variant = LanguageCandidate("openvino-fp32", stage=LanguageStage("openvino-fp32", perplexity))
    found = beside_unigram(variant, 100.0)
    assert found.passed is passes
    assert passes or "ignores the context" in str(found.reason)
