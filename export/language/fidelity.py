"""Compares a variant with transformers on held-out text: perplexity, KL divergence and agreement.

The probabilities of an OpenVINO variant come from plain inference of the same model with the same
properties, because the serving engine (OpenVINO GenAI) does not return probabilities of a given
text. Only one chunk of text is in memory at a time.

The engine itself is compared by the tokens of its greedy continuations of prompts.
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
"""Function from tokens `[n]` to logits `[n, vocabulary]`, float32."""


@dataclass(frozen=True)
class Fidelity:
    """Measurements on held-out text, over the tokens that count in the loss.

    Attributes:
        perplexity: exp of the mean negative log-likelihood.
        mean_kl: mean of KL(transformers ‖ variant), in nats.
        top1_agreement: share of tokens for which the variant and transformers predict the same most
            likely token.
        tokens: number of tokens.
    """

    perplexity: float
    mean_kl: float
    top1_agreement: float
    tokens: int


def log_softmax(logits: Array) -> Array:
    """Return the log-probabilities of logits, `[rows, vocabulary]`, float64."""
    with np.errstate(invalid="ignore"):  # non-finite logits make the final metrics non-finite
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def fidelity(logits_of: LogitsOf, pieces: TokenPieces, reference: Path) -> Fidelity:
    """Compare a variant with transformers on held-out text.

    Args:
        logits_of: returns the variant's logits for one chunk of text.
        pieces: the held-out text.
        reference: folder with the results of transformers for this text.
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
    # a divergence of zero may be rounded to a negative number
    mean_kl = max(divergence / tokens, 0.0) if np.isfinite(divergence) else divergence
    return Fidelity(float(np.exp(loss / tokens)), mean_kl, agreed / tokens, row)


def parts(rows: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of the rows, each with at most `NUMBERS` logits.

    Without slices, the float64 log-probabilities of a long text would take gigabytes.
    """
    step = max(1, NUMBERS // vocabulary)
    yield from (slice(at, at + step) for at in range(0, rows, step))


def plain_inference(compiled: Any) -> LogitsOf:
    """Return a function from tokens to logits.

    Args:
        compiled: compiled OpenVINO model with state, as `to_ir` converts it.
    """
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
    """Counts of the engine's greedy continuations that equal those of transformers.

    Attributes:
        prompts: number of prompts.
        equal: number of continuations with the same tokens.
        ties: number of continuations whose first different token is a tie: in transformers, the
            largest logit there is at most `TIE` above the second largest. Later tokens are not
            compared.
    """

    prompts: int
    equal: int
    ties: int

    @property
    def exact(self) -> bool:
        """Whether all continuations are equal, except for ties."""
        return self.prompts > 0 and self.equal + self.ties == self.prompts


def compare_tokens(answers: Sequence[Answer], tokens: Sequence[Sequence[int]]) -> Greedy:
    """Compare the engine's greedy continuations with those of transformers.

    Args:
        answers: prompts and continuations of transformers.
        tokens: continuations of the engine for the same prompts, in the same order.
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
