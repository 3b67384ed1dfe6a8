"""How far a variant is from transformers on held-out text: perplexity, KL and agreement.

By OpenVINO's plain inference of the same graph with the same properties as the engine's: of the
engine no probabilities of a given text are to be had. Only one piece is in memory at a time.

The engine itself is compared token by token, by what it continues prompts with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.transformers_reference import LOG_PROBABILITIES, TIE, Answer
from millrace.models.common.arrays import Array

NUMBERS = 2**22
LogitsOf = Callable[[Array], Array]
"""Tokens `[n]` to logits `[n, vocabulary]`, float32."""


@dataclass(frozen=True)
class Fidelity:
    """What was measured on held-out text.

    Attributes:
        perplexity: exp of the mean negative log-likelihood, over the tokens that count.
        mean_kl: mean of KL(transformers ‖ variant) over the same tokens, in nats.
        top1_agreement: share of these tokens where both hold the same one for the likeliest.
        tokens: that counted.
    """

    perplexity: float
    mean_kl: float
    top1_agreement: float
    tokens: int


def log_softmax(logits: Array) -> Array:
    """Return logarithms of probabilities, `[rows, vocabulary]`, float64."""
    with np.errstate(invalid="ignore"):  # what is not finite is found out by what it leads to
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def fidelity(logits_of: LogitsOf, pieces: TokenPieces, reference: Path) -> Fidelity:
    """Compare a variant with a reference.

    Args:
        logits_of: answers one piece at a time.
        pieces: the text of the reference.
        reference: its folder.
    """
    expected = np.load(reference / LOG_PROBABILITIES, mmap_mode="r")
    row, loss, divergence, agreed = 0, 0.0, 0.0, 0
    for ids, counted in pieces.pieces():
        logits, labels = logits_of(ids)[:-1][counted], ids[1:][counted]
        for part in parts(*logits.shape):
            logs, some = log_softmax(logits[part]), labels[part]
            wanted = np.asarray(expected[row : row + len(logs)], np.float64)
            loss -= float(np.take_along_axis(logs, some[:, None], axis=1).sum())
            divergence += float((np.exp(wanted) * (wanted - logs)).sum())
            agreed += int((logs.argmax(axis=1) == wanted.argmax(axis=1)).sum())
            row += len(logs)
    tokens = max(row, 1)
    # a divergence of nothing may round to less than nothing
    mean_kl = max(divergence / tokens, 0.0) if np.isfinite(divergence) else divergence
    return Fidelity(float(np.exp(loss / tokens)), mean_kl, agreed / tokens, row)


def parts(rows: int, vocabulary: int) -> Iterator[slice]:
    """Yield rows in parts of few numbers: in float64 a long piece is gigabytes."""
    step = max(1, NUMBERS // vocabulary)
    yield from (slice(at, at + step) for at in range(0, rows, step))


def plain_inference(compiled: Any) -> LogitsOf:
    """Return what answers pieces with a compiled model with state, as `to_ir` makes it."""
    request = compiled.create_infer_request()

    def logits_of(ids: Array) -> Array:
        request.reset_state()
        request.infer(
            {
                "input_ids": ids[None],
                "attention_mask": np.ones((1, len(ids)), np.int64),
                "position_ids": np.arange(len(ids), dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return np.asarray(request.get_tensor("logits").data[0])

    return logits_of


@dataclass(frozen=True)
class Greedy:
    """Prompts that were continued, and how.

    Attributes:
        prompts: all of them.
        equal: those with the same tokens.
        ties: those that part from transformers at a token whose logit is no more than `TIE` above
            the next one, and are not compared from there on.
    """

    prompts: int
    equal: int
    ties: int

    @property
    def exact(self) -> bool:
        """Whether nothing but a tie tells the variant from transformers."""
        return self.prompts > 0 and self.equal + self.ties == self.prompts


def compare_tokens(answers: Sequence[Answer], tokens: Sequence[Sequence[int]]) -> Greedy:
    """Compare what the engine continued with transformers' answers.

    Args:
        answers: of transformers.
        tokens: of the engine, for the same prompts in their order.
    """
    equal, ties = 0, 0
    for answer, generated in zip(answers, tokens, strict=True):
        wanted = answer.tokens.tolist()
        if list(generated) == wanted:
            equal += 1
            continue
        parted = (
            n for n, pair in enumerate(zip(wanted, generated, strict=False)) if len({*pair}) == 2
        )
        step = next(parted, None)  # None where the engine stopped early
        ties += step is not None and bool(answer.margins[step] <= TIE)
    return Greedy(len(answers), equal, ties)
