import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

from millrace.models.language.corpus.ngram import (
    KneserNey,
    baselines,
    trigrams_of,
    unigram_probabilities,
)


@dataclass(frozen=True)
class Held:
    rows: list[tuple[list[int], list[int], list[bool] | None]]

    def __len__(self) -> int:
        return len(self.rows)

    def sequence(self, position: int):  # type: ignore[no-untyped-def]
        ids, lengths, answer = self.rows[position]
        return (
            np.array(ids, np.int32),
            np.array(lengths, np.int32),
            None if answer is None else np.array(answer),
        )


def text(seed: int, tokens: int, vocab: int) -> Held:
    """A chain in which the next token mostly follows from the last two."""
    draw = np.random.default_rng(seed)
    ids = [0, 1]
    for _ in range(tokens):
        likely = (3 * ids[-1] + 5 * ids[-2] + 1) % vocab
        ids.append(likely if draw.random() < 0.8 else int(draw.integers(vocab)))
    cut = len(ids) // 3
    return Held([(ids[:cut], [cut], None), (ids[cut:], [10, len(ids) - cut - 10], None)])


def test_tokens_know_what_stands_before_them_in_their_piece() -> None:
    held = Held([([4, 5, 6, 7, 8], [3, 2], None), ([9], [1], None), ([1, 2], [2], [True, False])])
    found = trigrams_of(held, 10)
    assert found.token.tolist() == [5, 6, 8, 2]
    assert found.before.tolist() == [[10, 4], [4, 5], [10, 7], [10, 1]]
    assert found.counts.tolist() == [True, True, True, False]


def test_only_the_first_tokens_are_counted_of_many() -> None:
    held = Held([([1, 2, 3], [3], None)] * 10)
    assert len(trigrams_of(held, 4, max_tokens=5).token) == 4


@pytest.mark.parametrize("seed", range(3))
def test_the_probabilities_of_all_tokens_are_one_in_any_context(seed: int) -> None:
    seen = trigrams_of(text(seed, 400, 12), 12)
    model = KneserNey(seen, 12)
    everything = np.arange(12)
    for before in [[0, 1], [12, 0], [11, 11], [12, 7], [3, 9]]:
        found = model.probabilities(np.tile(before, (12, 1)), everything)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert (found > 0).all()
    assert unigram_probabilities(seen, 12).sum() == pytest.approx(1)


def slow(ids: list[tuple[int, int, int]], vocab: int) -> dict[tuple[int, int, int], float]:
    """Modified Kneser-Ney by dictionaries, as the paper writes it."""
    third = Counter(ids)
    second = Counter((b, c) for _, b, c in set(ids))
    first = Counter(c for _, c in set(second))

    def discounts(counts: Counter) -> list[float]:  # type: ignore[type-arg]
        n = Counter(counts.values())
        y = n[1] / (n[1] + 2 * n[2])
        return [0, *(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))]

    d3, d2 = discounts(third), discounts(second)
    d1 = [0, 0.5, 1.0, 1.5]  # of twelve words none is in one context alone: the fallback

    def parts(counts, d, context):  # type: ignore[no-untyped-def]
        total, taken = defaultdict(float), defaultdict(float)
        for key, count in counts.items():
            total[context(key)] += count
            taken[context(key)] += d[min(count, 3)]
        return total, taken

    t3, g3 = parts(third, d3, lambda key: key[:2])
    t2, g2 = parts(second, d2, lambda key: key[:1])
    t1, g1 = parts(first, d1, lambda key: ())
    found = {}
    for a, b, c in ids:
        p1 = max(first[c] - d1[min(first[c], 3)], 0) / t1[()] + g1[()] / t1[()] / vocab
        p2 = (second[b, c] - d2[min(second[b, c], 3)]) / t2[(b,)] + g2[(b,)] / t2[(b,)] * p1
        shared = (third[a, b, c] - d3[min(third[a, b, c], 3)]) / t3[a, b]
        found[a, b, c] = shared + g3[a, b] / t3[a, b] * p2
    return found


def test_the_trigram_model_is_that_of_the_paper() -> None:
    seen = trigrams_of(text(1, 600, 12), 12)
    ids = [(int(a), int(b), int(c)) for (a, b), c in zip(seen.before, seen.token, strict=True)]
    wanted = slow(ids, 12)
    found = KneserNey(seen, 12).probabilities(seen.before, seen.token)
    assert found == pytest.approx([wanted[each] for each in ids], rel=1e-9)


def test_a_text_that_repeats_itself_is_known_by_three_tokens_and_not_by_one() -> None:
    ids = [1, 2, 1, 3] * 500
    held = Held([(ids, [len(ids)], None)])
    found = baselines(held, held, 4)
    assert found.trigram < 1.05
    assert found.unigram == pytest.approx(2**1.5, rel=0.01)  # half of the tokens are 1
    assert (found.tokens, found.counted) == (1999, 1999)


def test_held_out_text_of_another_kind_is_harder() -> None:
    train = text(0, 3000, 40)
    same, other = baselines(train, text(1, 500, 40), 40), baselines(train, text(1, 500, 37), 40)
    assert same.trigram < 0.5 * same.unigram
    assert other.trigram > 2 * same.trigram


def test_only_answers_are_measured() -> None:
    train = Held([([1, 2, 3, 1, 2, 3, 1, 2, 0], [9], None)])
    asked = Held([([1, 2, 0, 0], [4], [False, True, False, False])])
    found = baselines(train, asked, 4)
    assert found.tokens == 1
    assert found.trigram < 2


def test_a_vocabulary_of_a_million_fits() -> None:
    largest = 999_999
    held = Held([([largest, largest - 1, largest, largest - 1] * 50, [200], None)])
    assert baselines(held, held, 1_000_000).trigram < 2


def test_a_million_tokens_take_seconds() -> None:
    draw = np.random.default_rng(0)
    ids = np.minimum(draw.zipf(1.2, 1_000_000), 4096) - 1
    held = Held([(part.tolist(), [256], None) for part in ids[: 256 * 3900].reshape(-1, 256)])
    begun = time.process_time()
    baselines(held, held, 4096)
    assert time.process_time() - begun < 20
