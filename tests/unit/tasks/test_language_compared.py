"""Two language models by one text."""

import math

import numpy as np
import pytest

from millrace.export.language.text_loss import TextLoss, summed
from millrace.tasks.kinds.language.language_evidence import beside


def test_a_model_beside_itself_has_its_own_perplexity() -> None:
    assert beside(20.0, TextLoss(300.0, 100), TextLoss(300.0, 55)) == pytest.approx(20.0)


def test_the_likelier_text_is_the_smaller_perplexity_whatever_the_tokens() -> None:
    # half a nat more for each of my tokens
    assert beside(20.0, TextLoss(300.0, 100), TextLoss(350.0, 10)) == pytest.approx(
        20.0 * math.exp(0.5)
    )


def test_the_loss_is_over_all_tokens_but_the_first() -> None:
    def uniform(ids: np.ndarray) -> np.ndarray:
        return np.zeros((len(ids), 8), np.float32)

    all_count = [(np.arange(5), np.ones(4, bool)), (np.arange(2), np.ones(1, bool))]
    found = summed(all_count, uniform)
    assert found.tokens == 5
    assert found.loss == pytest.approx(5 * math.log(8))
    answer = np.array([False, False, True, True])
    assert summed([(np.arange(5), answer)], uniform).tokens == 2
