import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from millrace.models.families.network import Network, Preprocess, Served
from millrace.models.families.objective import Classification, Regression
from millrace.models.inference.features import Encoding, Feature

NUMBER = Feature("a", "number", mean=2.0, std=4.0)
CATEGORY = Feature("c", "category", categories=("x", "y", "z"))
VECTOR = Feature("v", "vector", width=2, mean=-1.0, std=0.5)
MIXED = Encoding((NUMBER, CATEGORY, VECTOR), "t", ("no", "yes"))
ROWS = pa.record_batch(
    {"a": [6.0, -2.0, 1.5], "c": ["z", "x", "y"], "v": [[0.0, 1.0], [2.0, -3.0], [0.5, 0.25]]}
)


def preprocessed(encoding: Encoding, rows: pa.RecordBatch) -> list[list[float]]:
    return Preprocess(encoding)(torch.from_numpy(encoding.encode(rows))).tolist()  # type: ignore[no-any-return]


def test_numbers_are_standardized_as_numpy_does() -> None:
    encoding = Encoding((NUMBER, VECTOR), "t")
    numbers, vectors = np.array([[6.0], [-2.0], [1.5]]), np.array(ROWS["v"].to_pylist())
    expected = np.concatenate([(numbers - 2.0) / 4.0, (vectors + 1.0) / 0.5], axis=1)
    np.testing.assert_allclose(preprocessed(encoding, ROWS), expected, rtol=1e-6)


def test_categories_are_one_hot() -> None:
    assert preprocessed(Encoding((CATEGORY,), "t"), ROWS) == np.eye(3)[[2, 0, 1]].tolist()


def test_numbers_come_first_and_categories_behind_them() -> None:
    numbers, vectors = np.array([[6.0], [-2.0], [1.5]]), np.array(ROWS["v"].to_pylist())
    expected = np.concatenate(
        [(numbers - 2.0) / 4.0, (vectors + 1.0) / 0.5, np.eye(3)[[2, 0, 1]]], axis=1
    )
    np.testing.assert_allclose(preprocessed(MIXED, ROWS), expected, rtol=1e-6)


def test_the_width_is_what_the_encoding_says() -> None:
    assert len(preprocessed(MIXED, ROWS)[0]) == MIXED.in_features


def test_a_missing_number_becomes_the_mean() -> None:
    feature = Feature("a", "number", mean=2.0, std=4.0, nullable=True)
    rows = pa.record_batch({"a": [None, 2.0]})
    assert preprocessed(Encoding((feature,), "t"), rows) == [[0.0], [0.0]]


def test_a_missing_category_is_a_row_of_zeros() -> None:
    feature = Feature("c", "category", categories=("x", "y"), nullable=True)
    rows = pa.record_batch({"c": [None, "y"]})
    assert preprocessed(Encoding((feature,), "t"), rows) == [[0.0, 0.0], [0.0, 1.0]]


def test_the_preprocessing_is_not_part_of_the_checkpoint() -> None:
    assert set(Network(MIXED, nn.Linear(6, 2)).state_dict()) == {"net.weight", "net.bias"}


class _Fixed(nn.Module):
    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.register_buffer("logits", torch.tensor([logits]))

    def forward(self, rows: Tensor) -> Tensor:
        return self.logits.expand(len(rows), -1)  # type: ignore[operator, no-any-return]


def test_classes_are_served_as_probabilities() -> None:
    served = Served(Network(MIXED, _Fixed([0.0, float(np.log(3.0))])), Classification(MIXED.labels))
    answers = served(torch.from_numpy(MIXED.encode(ROWS)))
    np.testing.assert_allclose(answers, [[0.25, 0.75]] * 3, rtol=1e-6)


def test_a_number_is_served_as_it_is() -> None:
    served = Served(Network(MIXED, _Fixed([-7.5])), Regression())
    assert served(torch.from_numpy(MIXED.encode(ROWS))).tolist() == [[-7.5]] * 3


def test_answers_are_float32_whatever_the_network_computes_in() -> None:
    network = Network(MIXED, nn.Sequential(nn.Linear(6, 1), _AsHalf()))
    answers = Served(network, Regression())(torch.from_numpy(MIXED.encode(ROWS)))
    assert answers.dtype == torch.float32


class _AsHalf(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.half()
