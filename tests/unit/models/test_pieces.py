import numpy as np
import pytest

from millrace.models.common.arrays import Array
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.row_batches import ASKED, ROWS, answer_rows, golden_requests

NUMBERS, TOKENS = ModelInput("features", 1), ModelInput("input_ids", 9, padding=7)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3000])
def test_numbers_are_answered_in_pieces_of_bounded_size(rows: int) -> None:
    sizes = []

    def double(piece: Array) -> Array:
        sizes.append(len(piece))
        return piece * 2

    values = np.arange(rows)[:, None]
    np.testing.assert_array_equal(answer_rows(double, values, NUMBERS), values * 2)
    assert max(sizes) <= ROWS


@pytest.mark.parametrize("rows", [1, 20, 150])
def test_texts_are_answered_by_length_and_come_back_in_order(rows: int) -> None:
    lengths = np.random.default_rng(rows).integers(1, 10, rows)
    values = TOKENS.blank(rows)
    for row, length in enumerate(lengths):
        values[row, :length] = row % 7
    shapes = []

    def first(piece: Array) -> Array:
        shapes.append(piece.shape)
        return piece[:, :1]

    np.testing.assert_array_equal(answer_rows(first, values, TOKENS, most_tokens=90), values[:, :1])
    widths = [width for _, width in shapes]
    assert widths == sorted(widths)
    assert widths[-1] == lengths.max()
    assert max(size * width for size, width in shapes) <= 90


def test_a_golden_batch_is_asked_for_full_small_and_alone() -> None:
    parts = [part.tolist() for part in golden_requests(5, 4)]
    assert parts == [[0, 1, 2, 3], [4], [0, 1, 2], [3, 4], [0], [1], [2], [3], [4]]


def test_fewer_golden_rows_than_a_full_batch_are_repeated_in_one() -> None:
    parts = [part.tolist() for part in golden_requests(2, 5)]
    assert parts == [[0, 1, 0, 1, 0], [0, 1], [0], [1]]


def test_of_many_golden_rows_few_are_asked_for_alone() -> None:
    parts = golden_requests(4096, 64)
    assert sum(len(part) == 1 for part in parts) == ASKED
    assert sum(len(part) == 64 for part in parts) == 64


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_no_golden_request_is_larger_than_serving_takes(largest: int) -> None:
    assert max(map(len, golden_requests(10, largest))) == largest
