import numpy as np
import pytest
from sklearn.metrics import accuracy_score, r2_score

from millrace.models.common.errors import InputError
from millrace.models.inference.answers import ClassAnswers, NumberAnswers, answers_of, r2
from millrace.models.inference.features import Encoding, Feature

FEATURES = (Feature("a", "number"),)
PROBABILITIES = np.float32([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2], [0.1, 0.2, 0.7]])


def test_labels_mean_classes() -> None:
    answers = answers_of(Encoding(FEATURES, "t", ("x", "y", "z")))
    assert isinstance(answers, ClassAnswers)
    assert (answers.metric, answers.output, answers.outputs) == ("accuracy", "probabilities", 3)


def test_no_labels_mean_a_number() -> None:
    answers = answers_of(Encoding(FEATURES, "t"))
    assert isinstance(answers, NumberAnswers)
    assert (answers.metric, answers.output, answers.outputs) == ("r2", "prediction", 1)


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="'t' has one class only") as caught:
        answers_of(Encoding(FEATURES, "t", ("x",)))
    assert "check dataset.target" in str(caught.value)


@pytest.mark.parametrize("labels", [("x", "y", "z"), (3, 5, 7)])
def test_a_prediction_is_the_most_probable_label(labels: tuple[str | int, ...]) -> None:
    predictions = ClassAnswers(labels).prediction(PROBABILITIES)
    assert predictions == [labels[1], labels[0], labels[2]]


def test_the_score_of_a_class_is_its_probability() -> None:
    score = ClassAnswers(("x", "y", "z")).score(PROBABILITIES)
    assert score.dtype == np.float32
    np.testing.assert_array_equal(score, np.float32([0.5, 0.7, 0.7]))


def test_the_metric_of_classes_is_sklearns_accuracy() -> None:
    target = np.array([1, 0, 1])
    exact = accuracy_score(target, PROBABILITIES.argmax(axis=1))
    assert ClassAnswers(("x", "y", "z")).metric_of_answers(PROBABILITIES, target) == exact


def test_a_number_is_its_own_prediction_and_score() -> None:
    answers = np.float32([[1.5], [-2.0]])
    assert NumberAnswers().prediction(answers) == [1.5, -2.0]
    np.testing.assert_array_equal(NumberAnswers().score(answers), np.float32([1.5, -2.0]))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_metric_of_a_number_is_sklearns_r2(kind: type) -> None:
    random = np.random.default_rng(0)
    target = (100 + 3 * random.normal(size=50)).astype(kind)
    answers = (target + random.normal(size=50))[:, None].astype(np.float32)
    exact = r2_score(target.astype(np.float64), answers[:, 0].astype(np.float64))
    assert NumberAnswers().metric_of_answers(answers, target) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("error", "spread", "squares", "metric"),
    [
        (0.0, 2.0, 10.0, 1.0),
        (1.0, 2.0, 10.0, 0.5),
        (4.0, 2.0, 10.0, -1.0),
        (1.0, 0.0, 10.0, 0.0),
        (1.0, -1e-15, 10.0, 0.0),
        (1.0, 1e-14, 10.0, 0.0),
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_r2(error: float, spread: float, squares: float, metric: float) -> None:
    assert r2(error, spread, squares) == metric
