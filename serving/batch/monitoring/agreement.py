"""Compares the answers of a batch job with those of the live model, without side effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os.path import commonprefix
from typing import Any, Self

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError

TOLERANCE = 1e-4
"""Allowed difference for float32 rounding. For a predicted number it is a share of the number, or
of the target's standard deviation if the standard deviation is larger.
"""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""The character that a decoder writes for the bytes of an incomplete character."""
SHOWN = 3
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Difference:
    """How the live model's answer to one row differs from the job's answer.

    Attributes:
        share: 0 if the answers agree, 1 if they do not. For texts that need not be equal: the share
            of the text after the first difference.
        distance: absolute difference of two numbers or probabilities; None for texts, or if the
            difference is not finite.
        text: both answers in words; empty if they agree.
    """

    share: float = 0.0
    distance: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Agreement:
    """How a sample of a job's answers compares with those of the live model.

    Attributes:
        sample: number of rows in the sample.
        compared: number of rows that were compared.
        disagreed: number of rows with different answers.
        share: mean of `Difference.share` over the compared rows; `require_agreement` limits it.
        largest: largest difference of two numbers or probabilities; None for texts.
        admitted: share of answers that a low-precision variant may change; the limit of `share` is
            never lower.
        endpoint: the server of the live model.
        reason: why some or all rows were not compared; empty if all were.
        examples: some rows with different answers, by their `_key`, with both answers.
    """

    sample: int = 0
    compared: int = 0
    disagreed: int = 0
    share: float = 0.0
    largest: float | None = None
    admitted: float = 0.0
    endpoint: str = ""
    reason: str = ""
    examples: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        differences: Sequence[tuple[str, Difference]],
        sample: int,
        *,
        admitted: float = 0.0,
        endpoint: str = "",
        reason: str = "",
    ) -> Self:
        """Summarize the differences of rows, each with its `_key`."""
        found = [difference for _, difference in differences]
        distances = [each.distance for each in found if each.distance is not None]
        examples = [f"{key}: {each.text}" for key, each in differences if each.share]
        return cls(
            sample=sample,
            compared=len(found),
            disagreed=len(examples),
            share=sum(each.share for each in found) / max(len(found), 1),
            largest=max(distances, default=None),
            admitted=admitted,
            endpoint=endpoint,
            reason=reason,
            examples=tuple(examples[:SHOWN]),
        )

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the agreement from the dictionary that `asdict` gives, read from JSON."""
        return cls(**{**values, "examples": tuple(values["examples"])})

    def __str__(self) -> str:
        """Return a summary in one line."""
        if not self.compared:
            return f"not compared with the live model: {self.reason}"
        alike = f"{self.compared - self.disagreed} of {self.compared} answers agree with"
        largest = f", largest difference {self.largest:.1e}" if self.largest is not None else ""
        rest = f"; {self.sample - self.compared} not compared: {self.reason}" if self.reason else ""
        return f"{alike} the live model at {self.endpoint}{largest}{rest}"

    def metrics(self) -> dict[str, float]:
        """Return the metrics to log to MLflow."""
        found = {"agreement.compared": float(self.compared)}
        if self.compared:
            found["agreement.disagreed"] = float(self.disagreed)
            found["agreement.share"] = self.share
        if self.largest is not None:
            found["agreement.largest"] = self.largest
        return found


def require_agreement(found: Agreement, most: float, model: str, version: int) -> None:
    """Raise if too many answers differ from the live model's.

    Args:
        found: the comparison.
        most: largest share of the sample that may differ.
        model: the model.
        version: its version.

    Raises:
        InputError: a larger share differs.
    """
    limit = max(most, found.admitted)
    if found.share > limit:
        raise InputError(
            f"{found.disagreed} of {found.compared} answers differ from those of the live {model} "
            f"version {version}; nothing was committed",
            seen=f"{found.share:.2%} of the sample differs from Triton at {found.endpoint}; "
            f"answers by key, of this job (here) and of Triton (live): {'; '.join(found.examples)}",
            valid=f"at most {limit:.2%} of the sample (batch.max_disagreement)",
            hint=f"find out which answers are right, also with `millrace certify {model}`; with a "
            "higher batch.max_disagreement the same command commits the rows already scored",
        )


def number_difference(written: float, live: float, tolerance: float, scale: float) -> Difference:
    """Compare two predicted numbers.

    Args:
        written: the job's number.
        live: the live model's number.
        tolerance: largest allowed difference, apart from float32 rounding.
        scale: standard deviation of the target.
    """
    distance = abs(written - live)
    if distance <= tolerance + TOLERANCE * max(abs(written), scale):  # False for NaN
        return Difference(0.0, distance)
    return Difference(1.0, _finite_or_none(distance), f"{written:g} here, {live:g} live")


def class_difference(
    written: object, score: float, live: Array, labels: Sequence[object], tolerance: float
) -> Difference:
    """Compare two predicted classes; classes that are equally likely for the live model agree.

    Args:
        written: the job's label.
        score: the job's probability of that label.
        live: `[classes]`, the live model's probabilities.
        labels: the labels of the classes.
        tolerance: largest allowed difference of a probability, apart from float32 rounding.
    """
    own, best = labels.index(written), int(live.argmax())
    distance = _finite_or_none(abs(score - float(live[own])))
    # If each probability may differ by the tolerance, classes up to twice as far apart may swap.
    if live[best] - live[own] <= 2 * (tolerance + TOLERANCE):
        return Difference(0.0, distance)
    return Difference(1.0, distance, f"{_shorten(written)} here, {_shorten(labels[best])} live")


def text_difference(
    written: str, live: str, stops: Sequence[str], *, is_whole: bool, exact: bool
) -> Difference:
    """Compare two texts, up to the end of the live model's text.

    Args:
        written: the job's text.
        live: the live model's text.
        stops: texts that end an answer.
        is_whole: whether the live model's text is complete, and not cut off.
        exact: whether the texts must be equal; else the share after their first difference counts.
    """
    live = live if is_whole else _trim_uncertain(live, stops)
    if written == live or (written.startswith(live) and not is_whole):
        return Difference()
    longest = max(len(live), len(written)) if is_whole else len(live)
    share = 1.0 if exact else 1 - len(commonprefix([written, live])) / longest
    return Difference(share, text=f"{_shorten(written)} here, {_shorten(live)} live")


def _shorten(answer: object) -> str:
    text = repr(answer)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _trim_uncertain(cut: str, stops: Sequence[str]) -> str:
    """Return a text without the end that the next token could still change."""
    begun = (n for n in range(len(cut)) if any(stop.startswith(cut[n:]) for stop in stops))
    return cut[: next(begun, len(cut))].rstrip(BROKEN)


def _finite_or_none(distance: float) -> float | None:
    return distance if isfinite(distance) else None
