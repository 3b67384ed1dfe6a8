"""Which of two versions is better: how often it is said wrongly, and how often rightly."""

import numpy as np
import pytest

from millrace.models.comparison.paired_scores import PairedScores

PAIRS = 1000


def scores(first, second, metric="accuracy", weights=None, spread=1.0):
    first, second = (np.asarray(each, dtype=np.float64) for each in (first, second))
    weights = np.ones(len(first)) if weights is None else weights
    return PairedScores(metric, first, second, weights, spread)


def hits(chance, rows, discordance, difference):
    """Draw hits of two versions, of which in a share of the rows only one is right."""
    won, lost = (discordance + difference) / 2, (discordance - difference) / 2
    drawn = chance.random(rows)
    first = np.where(drawn < won, 0.0, 1.0)
    second = np.where((drawn >= won) & (drawn < won + lost), 0.0, 1.0)
    both_wrong = drawn > 0.9
    return scores(np.where(both_wrong, 0, first), np.where(both_wrong, 0, second))


@pytest.mark.parametrize(("rows", "discordance"), [(60, 0.1), (500, 0.05), (5000, 0.1)])
def test_of_equal_versions_at_most_one_in_twenty_is_called_better(rows, discordance):
    chance = np.random.default_rng(0)
    verdicts = [hits(chance, rows, discordance, 0).result().verdict for _ in range(PAIRS)]
    assert verdicts.count("better") <= 0.05 * PAIRS
    assert verdicts.count("worse") <= 0.05 * PAIRS


def test_two_points_in_5000_rows_are_found():
    chance = np.random.default_rng(1)
    verdicts = [hits(chance, 5000, 0.1, 0.02).result().verdict for _ in range(PAIRS)]
    assert verdicts.count("better") >= 0.9 * PAIRS
    worse = [hits(chance, 5000, 0.1, -0.02).result().verdict for _ in range(100)]
    assert worse.count("worse") >= 90


def test_the_interval_holds_the_difference():
    chance = np.random.default_rng(2)
    results = [hits(chance, 800, 0.08, 0.02).result() for _ in range(PAIRS)]
    held = sum(each.low <= 0.02 <= each.high for each in results)
    assert 0.93 * PAIRS <= held <= 0.99 * PAIRS


@pytest.mark.parametrize("tail", ["normal", "heavy"])
def test_equal_errors_are_seldom_called_different(tail):
    chance = np.random.default_rng(3)

    def errors():
        size = (2, 400)
        noise = chance.normal(size=size) if tail == "normal" else chance.standard_t(3, size)
        return np.square(noise + chance.normal(size=400))

    results = [scores(*errors(), metric="r2", spread=2.0).result() for _ in range(PAIRS)]
    verdicts = [each.verdict for each in results]
    assert verdicts.count("better") <= 0.05 * PAIRS
    assert verdicts.count("worse") <= 0.05 * PAIRS


def test_smaller_errors_are_found_and_given_in_r2():
    chance = np.random.default_rng(4)
    target = chance.normal(size=2000)
    shared = chance.normal(size=2000) * 0.5
    first, second = (np.square(shared + chance.normal(size=2000) * s) for s in (0.3, 0.1))
    found = scores(first, second, metric="r2", spread=float(target.var())).result()
    assert found.verdict == "better"
    assert found.first == pytest.approx(1 - first.mean() / target.var())
    assert found.difference == pytest.approx(found.second - found.first)
    assert found.low < found.difference < found.high


def test_texts_count_by_their_tokens():
    tokens = np.array([10.0, 1000.0] * 20)
    first, second = 2.0 * tokens, 2.0 * tokens
    second[1::2] -= 0.1 * tokens[1::2] * (1 + np.arange(20) / 100)
    second[0::2] += 0.1 * tokens[0::2]
    found = scores(first, second, "perplexity", tokens).result()
    assert found.first == pytest.approx(np.exp(2.0))
    assert found.difference == pytest.approx((first.sum() - second.sum()) / tokens.sum())
    assert found.verdict == "better"


def test_equal_losses_of_texts_are_seldom_called_different():
    chance = np.random.default_rng(5)
    verdicts = []
    for _ in range(PAIRS):
        tokens = chance.integers(10, 400, 100).astype(float)
        first, second = (tokens * 2 + chance.normal(size=100) * np.sqrt(tokens) for _ in range(2))
        verdicts.append(scores(first, second, "perplexity", tokens).result().verdict)
    assert verdicts.count("better") <= 0.05 * PAIRS


@pytest.mark.parametrize("metric", ["accuracy", "r2", "perplexity"])
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_the_same_answers_show_no_difference(metric, rows):
    found = scores(np.ones(rows), np.ones(rows), metric).result()
    assert (found.verdict, found.difference, found.rows) == ("no difference shown", 0.0, rows)


def test_one_row_shows_nothing():
    assert scores([0], [1]).result().verdict == "no difference shown"
    assert scores([4.0], [1.0], "r2").result().verdict == "no difference shown"


def test_a_test_says_what_changed():
    found = scores([1, 1, 0, 0, 1], [1, 0, 1, 1, 1]).result()
    assert "only the second is right in 2 rows, only the first in 1" in found.test
    assert (found.first, found.second) == pytest.approx((0.6, 0.8))
