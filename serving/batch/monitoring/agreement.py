"""How the answers of a batch job compare with those of the live model: decisions, no effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os.path import commonprefix
from typing import Any, Self

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError

TOLERANCE = 1e-4
"""Of a number, and of its target's standard deviation where that is more: float32 rounds."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What the bytes of a character are that is not whole."""
SHOWN = 3
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Difference:
    """How the live model's answer to one row differs from the one that was written.

    Attributes:
        share: 0 where they are alike, 1 where they are not; of texts that may part, how much of
            them comes after that.
        distance: of the numbers; None for texts, and where one is no number.
        told: both answers, for people; empty where they are alike.
    """

    share: float = 0.0
    distance: float | None = None
    told: str = ""


@dataclass(frozen=True)
class Agreement:
    """How a sample of a job's answers compares with those of the live model.

    Attributes:
        sample: rows that were to be compared.
        compared: those that were.
        disagreed: those with another answer.
        share: mean over the compared rows of how much differs, which the limit holds.
        largest: largest difference of two numbers; None for texts.
        admitted: share that a form in short numbers may give otherwise anyway.
        endpoint: the server that was asked.
        reason: why not all rows were compared, or none.
        examples: some rows that disagree, by their `_key`, with both answers.
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
        """Sum up the differences of rows, each with its `_key`."""
        found = [difference for _, difference in differences]
        distances = [each.distance for each in found if each.distance is not None]
        told = [f"{key}: {each.told}" for key, each in differences if each.share]
        return cls(
            sample=sample,
            compared=len(found),
            disagreed=len(told),
            share=sum(each.share for each in found) / max(len(found), 1),
            largest=max(distances, default=None),
            admitted=admitted,
            endpoint=endpoint,
            reason=reason,
            examples=tuple(told[:SHOWN]),
        )

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what was kept as JSON."""
        return cls(**{**values, "examples": tuple(values["examples"])})

    def __str__(self) -> str:
        """Return it in a line, for people."""
        if not self.compared:
            return f"not compared with the live model: {self.reason}"
        alike = f"{self.compared - self.disagreed} of {self.compared} answers are those of"
        largest = f", largest difference {self.largest:.1e}" if self.largest is not None else ""
        rest = f"; {self.sample - self.compared} not compared: {self.reason}" if self.reason else ""
        return f"{alike} the live model at {self.endpoint}{largest}{rest}"

    def metrics(self) -> dict[str, float]:
        """Return it as MLflow's metrics."""
        found = {"agreement.compared": float(self.compared)}
        if self.compared:
            found["agreement.disagreed"] = float(self.disagreed)
            found["agreement.share"] = self.share
        if self.largest is not None:
            found["agreement.largest"] = self.largest
        return found


def require_agreement(found: Agreement, most: float, model: str, version: int) -> None:
    """Return if few enough answers differ from the live model's.

    Args:
        found: of the sample.
        most: share of it that may differ.
        model: the model.
        version: its version.

    Raises:
        InputError: more do.
    """
    limit = max(most, found.admitted)
    if found.share > limit:
        raise InputError(
            f"{found.disagreed} of {found.compared} answers are not those of {model} version "
            f"{version} where it is live; nothing was committed",
            seen=f"a share of {found.share:.2%} at {found.endpoint}; {'; '.join(found.examples)}",
            valid=f"at most {limit:.2%} of the sample, batch.max_disagreement",
            hint=f"see which is right, also with `millrace certify {model}`; with a higher "
            "batch.max_disagreement the same command commits what is scored already",
        )


def number_difference(written: float, live: float, tolerance: float, scale: float) -> Difference:
    """Compare two predicted numbers.

    Args:
        written: the job's.
        live: the live model's.
        tolerance: by how much they may differ, beside rounding.
        scale: standard deviation of the target.
    """
    distance = abs(written - live)
    if distance <= tolerance + TOLERANCE * max(abs(written), scale):  # which no NaN is
        return Difference(0.0, distance)
    return Difference(1.0, _finite(distance), f"{written:g} here, {live:g} live")


def class_difference(
    written: object, score: float, live: Array, labels: Sequence[object], tolerance: float
) -> Difference:
    """Compare two predicted classes; two that the live model finds as likely are alike.

    Args:
        written: the job's label.
        score: its probability.
        live: `[classes]`, the live model's probabilities.
        labels: of the classes.
        tolerance: by how much a probability may differ, beside rounding.
    """
    mine, best = labels.index(written), int(live.argmax())
    distance = _finite(abs(score - float(live[mine])))
    # Where each probability may move so far, two classes may pass each other from twice as far.
    if live[best] - live[mine] <= 2 * (tolerance + TOLERANCE):
        return Difference(0.0, distance)
    return Difference(1.0, distance, f"{shown(written)} here, {shown(labels[best])} live")


def text_difference(
    written: str, live: str, stops: Sequence[str], *, is_whole: bool, exact: bool
) -> Difference:
    """Compare two texts, as far as the live model went on.

    Args:
        written: the job's.
        live: the live model's.
        stops: texts that end an answer.
        is_whole: whether the live model came to an end, and was not cut off.
        exact: whether they must be the same; else it counts how much comes after they part.
    """
    live = live if is_whole else _certain(live, stops)
    if written == live or (written.startswith(live) and not is_whole):
        return Difference()
    longest = max(len(live), len(written)) if is_whole else len(live)
    share = 1.0 if exact else 1 - len(commonprefix([written, live])) / longest
    return Difference(share, told=f"{shown(written)} here, {shown(live)} live")


def shown(answer: object) -> str:
    """Return an answer, cut short, for people."""
    text = repr(answer)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _certain(cut: str, stops: Sequence[str]) -> str:
    """Return a text without its end that another token could still change."""
    begun = (n for n in range(len(cut)) if any(stop.startswith(cut[n:]) for stop in stops))
    return cut[: next(begun, len(cut))].rstrip(BROKEN)


def _finite(distance: float) -> float | None:
    return distance if isfinite(distance) else None
