import numpy as np
import pytest

from models.arrays import Array
from models.model_input import ModelInput
from models.pieces import ROWS, TEXTS, answered

NUMBERS, TOKENS = ModelInput("features", 1), ModelInput("input_ids", 9, padding=7)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3000])
def test_numbers_are_answered_in_pieces_of_bounded_size(rows: int) -> None:
    sizes = []

    def double(piece: Array) -> Array:
        sizes.append(len(piece))
        return piece * 2

    values = np.arange(rows)[:, None]
    np.testing.assert_array_equal(answered(double, values, NUMBERS), values * 2)
    assert max(sizes) <= ROWS


@pytest.mark.parametrize("rows", [1, TEXTS, 150])
def test_texts_are_answered_by_length_and_come_back_in_order(rows: int) -> None:
    lengths = np.random.default_rng(rows).integers(1, 10, rows)
    values = TOKENS.blank(rows)
    for row, length in enumerate(lengths):
        values[row, :length] = row % 7
    shapes = []

    def first(piece: Array) -> Array:
        shapes.append(piece.shape)
        return piece[:, :1]

    np.testing.assert_array_equal(answered(first, values, TOKENS), values[:, :1])
    widths = [width for _, width in shapes]
    assert widths == sorted(widths)
    assert widths[-1] == lengths.max()
    assert max(size for size, _ in shapes) <= TEXTS
