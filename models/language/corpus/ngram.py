"""Baselines that a language model has to beat: a unigram and a trigram model of the same tokens.

The trigram model is interpolated modified Kneser-Ney (Chen and Goodman 1999), interpolated down to
the uniform distribution as in KenLM (Heafield et al. 2013). Discounts that cannot be estimated are
KenLM's fallback of 0.5, 1 and 1.5. The unigram model adds one to every count (Laplace). As in the
language model, context does not cross chunks of a packed sequence (a document, or a part of a long
one), and the first token of a chunk is not predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

MAX_TOKENS = 4_000_000
"""Largest number of tokens to count; counting them takes half a GB of memory and ten seconds."""
FALLBACK = (0.5, 1.0, 1.5)

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[Any]


class Sequences(Protocol):
    """Packed sequences, by position."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def sequence(self, position: int) -> tuple[Tokens, Sequence[int] | Tokens, Tokens | None]:
        """Return the tokens, the chunks' lengths, and the loss mask (None if all tokens count)."""
        ...


@dataclass(frozen=True)
class Baselines:
    """Perplexity per token on held-out sequences.

    Attributes:
        unigram: perplexity of the unigram model.
        trigram: perplexity of the trigram model.
        tokens: number of held-out tokens that were predicted.
        counted: number of train tokens that the n-grams were counted in.
        base: perplexity of the pretrained model before this training; None if training started
            from scratch.
    """

    unigram: float
    trigram: float
    tokens: int
    counted: int
    base: float | None = None


@dataclass(frozen=True)
class Trigrams:
    """Each token with the two tokens before it; the first token of every chunk is left out.

    Attributes:
        before: int64 `[tokens, 2]`, the token two places before and the token one place before.
            The id `vocab_size` marks the beginning of a chunk.
        token: int64 `[tokens]`, the token to predict.
        counts: bool `[tokens]`, whether the token counts in the loss.
    """

    before: Counts
    token: Counts
    counts: npt.NDArray[np.bool_]


def baselines(
    train: Sequences, held_out: Sequences, vocab_size: int, max_tokens: int = MAX_TOKENS
) -> Baselines:
    """Count n-grams in the train split, and return both models' perplexity on another split.

    Args:
        train: sequences to count; the first `max_tokens` tokens are used.
        held_out: sequences to measure on; the first `max_tokens` tokens are used.
        vocab_size: vocabulary size; at most two million, so that three token ids fit into 64 bits.
        max_tokens: largest number of tokens of each split.
    """
    seen = trigrams_of(train, vocab_size, max_tokens)
    asked = trigrams_of(held_out, vocab_size, max_tokens)
    before, token = asked.before[asked.counts], asked.token[asked.counts]
    return Baselines(
        unigram=_perplexity(unigram_probabilities(seen, vocab_size)[token]),
        trigram=_perplexity(KneserNey(seen, vocab_size).probabilities(before, token)),
        tokens=len(token),
        counted=len(seen.token),
    )


def trigrams_of(sequences: Sequences, vocab_size: int, max_tokens: int = MAX_TOKENS) -> Trigrams:
    """Return every token with the two tokens before it in its chunk."""
    parts: list[tuple[Tokens, Tokens, Tokens]] = []
    tokens = position = 0
    while position < len(sequences) and tokens < max_tokens:
        ids, lengths, answer = sequences.sequence(position)
        ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
        place = np.arange(len(ids)) - np.repeat(ends - lengths, lengths)
        counted = np.ones(len(ids), np.bool_) if answer is None else np.asarray(answer, np.bool_)
        parts.append((np.asarray(ids, np.int64), place, counted))
        tokens += len(ids)
        position += 1
    if not parts:
        return Trigrams(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    ids, place, counted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    last, but_one = np.roll(ids, 1), np.roll(ids, 2)
    but_one[place < 2] = vocab_size
    follows = place > 0
    return Trigrams(np.stack([but_one, last], axis=1)[follows], ids[follows], counted[follows])


def unigram_probabilities(seen: Trigrams, vocab_size: int) -> Floats:
    """Return the probability of every token, float64 `[vocab_size]`."""
    counts = np.bincount(seen.token, minlength=vocab_size)
    probabilities: Floats = (counts + 1) / (counts.sum() + vocab_size)
    return probabilities


class KneserNey:
    """An interpolated modified Kneser-Ney trigram model.

    Args:
        seen: the tokens to count.
        vocab_size: vocabulary size.
    """

    def __init__(self, seen: Trigrams, vocab_size: int) -> None:
        self._base = base = vocab_size + 1
        keys = (seen.before[:, 0] * base + seen.before[:, 1]) * base + seen.token
        triples, counts = np.unique(keys, return_counts=True)
        # For shorter n-grams, Kneser-Ney counts the different contexts in which they were seen.
        pairs, in_contexts = np.unique(triples % (base * base), return_counts=True)
        singles, in_words = np.unique(pairs % base, return_counts=True)
        self._third = _Order(triples, counts, base)
        self._second = _Order(pairs, in_contexts, base)
        first = _Order(singles, in_words, base)
        everything = np.arange(vocab_size, dtype=np.int64)
        self._first = first.discounted(everything) + first.left_over(everything) / vocab_size

    def probabilities(self, before: Counts, token: Counts) -> Floats:
        """Return the probability of each token, float64 `[tokens]`.

        Args:
            before: int64 `[tokens, 2]`, as `Trigrams.before`.
            token: int64 `[tokens]`, the tokens to predict.
        """
        pairs = before[:, 1] * self._base + token
        triples = before[:, 0] * self._base**2 + pairs
        second = self._second.discounted(pairs) + self._second.left_over(pairs) * self._first[token]
        third = self._third.discounted(triples) + self._third.left_over(triples) * second
        return np.asarray(third, np.float64)


class _Order:
    """The discounted counts of the n-grams of one length.

    Args:
        keys: int64, ascending: each n-gram as a number in base `base`; `key // base` is its
            context.
        counts: how often each trigram was seen; for a shorter n-gram, in how many contexts.
        base: the base of the keys: the vocabulary size plus one.
    """

    def __init__(self, keys: Counts, counts: Counts, base: int) -> None:
        self._keys, self._counts, self._base = keys, counts.astype(np.float64), base
        discount = _discounts(counts)[np.minimum(counts, 3)]
        self._contexts, start = np.unique(keys // base, return_index=True)
        self._totals = np.add.reduceat(self._counts, start) if len(keys) else np.zeros(0)
        self._taken = np.add.reduceat(discount, start) if len(keys) else np.zeros(0)
        self._kept = self._counts - discount

    def discounted(self, keys: Counts) -> Floats:
        """Return the discounted probability of each n-gram in its context; 0 if unseen."""
        found, known = _find_keys(self._keys, keys)
        context, seen = _find_keys(self._contexts, keys // self._base)
        shares = np.zeros(len(keys))
        held = known & seen
        shares[held] = self._kept[found[held]] / self._totals[context[held]]
        return shares

    def left_over(self, keys: Counts) -> Floats:
        """Return the probability left to shorter n-grams in each context; 1 in unseen contexts."""
        context, seen = _find_keys(self._contexts, keys // self._base)
        left = np.ones(len(keys))
        left[seen] = self._taken[context[seen]] / self._totals[context[seen]]
        return left


def _find_keys(known: Counts, keys: Counts) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Return the position of each key in the ascending `known`, and whether `known` has it."""
    if not len(known):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return places, known[places] == keys


def _discounts(counts: Counts) -> Floats:
    """Return the discounts of counts 0, 1, 2 and 3 or more (Chen and Goodman 1999, section 3)."""
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return np.array([0.0, *FALLBACK])
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    # Outside these bounds a probability would be negative, or shorter n-grams would get none.
    sane = [0 < each < times for times, each in enumerate(found, 1)]
    return np.array([0.0, *(f if s else b for f, s, b in zip(found, sane, FALLBACK, strict=True))])


def _perplexity(probabilities: Floats) -> float:
    return float(np.exp(-np.log(probabilities).mean())) if len(probabilities) else float("nan")
