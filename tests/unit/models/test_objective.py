import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, r2_score
from torch import Tensor
from torch.nn import functional

from millrace.models.common.errors import InputError
from millrace.models.families.objective import Classification, Objective, Regression, objective_of
from millrace.models.inference.features import Encoding, Feature

FEATURES = (Feature("a", "number"),)
CLASSES = Classification(("low", "mid", "high"))


def classes(rows: int = 50) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 3), torch.randint(0, 3, (rows,))


def numbers(rows: int = 50) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    target = torch.randn(rows) * 3 + 100
    return (target + torch.randn(rows))[:, None], target


def test_labels_ask_for_classes() -> None:
    objective = objective_of(Encoding(FEATURES, "t", ("x", "y", "z")))
    assert (objective.metric, objective.output, objective.outputs) == (
        "accuracy",
        "probabilities",
        3,
    )


def test_no_labels_ask_for_a_number() -> None:
    objective = objective_of(Encoding(FEATURES, "t"))
    assert (objective.metric, objective.output, objective.outputs) == ("r2", "prediction", 1)


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="'t' has one class only"):
        objective_of(Encoding(FEATURES, "t", ("x",)))


def test_the_loss_of_classes_is_the_mean_cross_entropy() -> None:
    logits, target = classes()
    probabilities = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=1, keepdims=True)
    exact = -np.log(probabilities[np.arange(len(target)), target]).mean()
    assert float(CLASSES.loss(logits, target)) == pytest.approx(float(exact), rel=1e-5)


def test_the_loss_of_a_number_is_the_mean_squared_error() -> None:
    logits, target = numbers()
    exact = functional.mse_loss(logits.flatten(), target)
    assert float(Regression().loss(logits, target)) == pytest.approx(float(exact))


@pytest.mark.parametrize(
    ("objective", "logits", "target"), [(CLASSES, *classes()), (Regression(), *numbers())]
)
def test_sums_add_up_over_batches(objective: Objective, logits: Tensor, target: Tensor) -> None:
    whole = objective.sums(logits, target)
    parts = zip(logits.split(7), target.split(7), strict=True)
    added = torch.stack([objective.sums(*part) for part in parts]).sum(dim=0)
    torch.testing.assert_close(added, whole)


@pytest.mark.parametrize(
    ("objective", "logits", "target"), [(CLASSES, *classes()), (Regression(), *numbers())]
)
def test_the_first_sum_counts_the_rows(
    objective: Objective, logits: Tensor, target: Tensor
) -> None:
    assert objective.sums(logits, target)[0] == 50


def test_the_metric_of_classes_is_sklearns_accuracy() -> None:
    logits, target = classes()
    exact = accuracy_score(target, logits.argmax(dim=1))
    assert CLASSES.metric_of(CLASSES.sums(logits, target)) == pytest.approx(exact)


def test_the_metric_of_a_number_is_sklearns_r2() -> None:
    logits, target = numbers()
    exact = r2_score(target.double(), logits.double())
    assert Regression().metric_of(Regression().sums(logits, target)) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("objective", "logits", "target"), [(CLASSES, *classes()), (Regression(), *numbers())]
)
def test_served_answers_have_the_metric_of_their_logits(
    objective: Objective, logits: Tensor, target: Tensor
) -> None:
    answers = objective.activation(logits).numpy()
    of_answers = objective.metric_of_answers(answers, target.numpy())
    assert of_answers == pytest.approx(objective.metric_of(objective.sums(logits, target)))


@pytest.mark.parametrize("value", [0.0, 0.1, 3.3, -1e6])
def test_a_target_that_does_not_vary_has_an_r2_of_zero(value: float) -> None:
    target = torch.full((7,), value)
    logits = target[:, None] + 1
    assert Regression().metric_of(Regression().sums(logits, target)) == 0.0
    assert Regression().metric_of_answers(logits.numpy(), target.numpy()) == 0.0


def test_a_target_that_varies_a_little_far_from_zero_has_an_r2() -> None:
    target = torch.tensor([1000.0, 1000.25, 1000.5])
    logits = target[:, None] + 0.1
    exact = r2_score(target.double(), logits.double())
    assert Regression().metric_of(Regression().sums(logits, target)) == pytest.approx(exact)


@pytest.mark.parametrize("objective", [CLASSES, Regression()])
def test_the_metric_of_no_rows_is_zero(objective: Objective) -> None:
    empty = torch.zeros(0, objective.outputs), torch.zeros(0, dtype=torch.long)
    assert objective.metric_of(objective.sums(*empty)) == 0.0


def test_probabilities_add_up_to_one() -> None:
    torch.testing.assert_close(CLASSES.activation(classes()[0]).sum(dim=1), torch.ones(50))


def test_the_prediction_is_the_most_probable_label_with_its_probability() -> None:
    answers = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]], dtype=np.float32)
    assert CLASSES.prediction(answers) == ["mid", "low"]
    np.testing.assert_array_equal(CLASSES.score(answers), np.float32([0.5, 0.7]))


def test_a_predicted_number_is_its_own_score() -> None:
    answers = np.array([[1.5], [-2.0]], dtype=np.float32)
    assert Regression().prediction(answers) == [1.5, -2.0]
    np.testing.assert_array_equal(Regression().score(answers), np.float32([1.5, -2.0]))


def test_a_regression_learns_in_standard_deviations_and_answers_in_the_targets_unit() -> None:
    objective = Regression(mean=300.0, std=50.0)
    target = torch.tensor([250.0, 350.0, 400.0])
    exact = torch.tensor([[-1.0], [1.0], [2.0]])
    assert objective.loss(exact, target).item() == 0.0
    assert objective.activation(exact)[:, 0].tolist() == target.tolist()
    assert objective.metric_of(objective.sums(exact, target)) == 1.0
