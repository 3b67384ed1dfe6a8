import numpy as np
import pytest

from millrace.models.inference.model_input import FEATURES, INPUT_IDS, ModelInput

NUMBERS, TOKENS = ModelInput(FEATURES, 3), ModelInput(INPUT_IDS, 20, padding=0)


def test_nothing_is_zeros_or_padding() -> None:
    assert NUMBERS.blank(2).tolist() == [[0.0] * 3] * 2
    assert NUMBERS.blank(2).dtype == np.float32
    assert ModelInput(INPUT_IDS, 3, padding=5).blank(1).tolist() == [[5, 5, 5]]
    assert TOKENS.blank(1).dtype == np.int64


@pytest.mark.parametrize("padding", [0, 5])
def test_an_example_of_a_text_has_tokens(padding: int) -> None:
    read = ModelInput(INPUT_IDS, 20, padding)
    assert (read.example(3) != padding).all()
    assert read.example(3).shape == (3, 8)
    assert ModelInput(INPUT_IDS, 4, padding).example(1).shape == (1, 4)


def test_a_length_counts_up_to_the_last_token_even_behind_padding() -> None:
    rows = np.array([[1, 2, 0, 0], [1, 0, 3, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert TOKENS.lengths(rows).tolist() == [2, 3, 0, 4]


def test_columns_of_padding_alone_are_trimmed() -> None:
    rows = np.array([[1, 2, 0, 0], [1, 0, 3, 0]])
    assert TOKENS.trimmed(rows).tolist() == [[1, 2, 0], [1, 0, 3]]
    assert TOKENS.trimmed(np.zeros((2, 4), np.int64)).shape == (2, 1)
    assert NUMBERS.trimmed(np.zeros((2, 3))).shape == (2, 3)
