"""Held-out text as pieces, which the variants of a language model are measured on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from millrace.export.language.token_pieces import Held, TokenPieces
from millrace.models.language.corpus.sequences import Packed
from millrace.models.language.held_out import HELD_OUT_TOKENS, spread_over

if TYPE_CHECKING:
    from millrace.models.language.corpus.stored_sequences import StoredSequences


def pieces_of(sequences: "StoredSequences", tokens: int) -> TokenPieces:
    """Return sequences, evenly apart, as pieces, about so many tokens of them."""
    ids, lengths, answers = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for position in spread_over(sequences, tokens):
        some, of_pieces, answer = sequences.sequence(int(position))
        ids.append(np.asarray(some, np.int64))
        lengths.append(np.asarray(of_pieces, np.int64))
        counted = np.ones(len(some), bool) if answer is None else np.asarray(answer, bool)
        answers.append(counted)
    return TokenPieces(np.concatenate(ids), np.concatenate(lengths), np.concatenate(answers))


def measured_alone(test: "StoredSequences", context: int, vocab_size: int) -> Iterator[Packed]:
    """Yield the pieces that the variants of a model are measured on, each as a sequence of its own.

    Args:
        test: the test split.
        context: tokens that the model sees at a time.
        vocab_size: tokens that it chooses from.
    """
    held_out = pieces_of(test, HELD_OUT_TOKENS)
    for ids, counted in Held().of(held_out, vocab_size, context).pieces():
        yield ids, [len(ids)], np.concatenate([[False], counted])
