"""How long the steps of a streaming model's engine take, as measured, for the event model.

Requests that are sent together show how long a step takes. Real ones of independent clients, at a
few rates, show by how much the engine is slower for them, and where their times are longer or
shorter than the event model expects, from the shortest to the longest: those to the first token,
and those per further token. Between two rates all of that is interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLACES = np.linspace(0.0, 1.0, 101)
"""The quantiles at which times of real requests are kept."""


@dataclass(frozen=True)
class Correction:
    """How one kind of times of independent clients differs from what the event model expects.

    Attributes:
        slower: how many times as long the engine's steps take, so that the mean is the real one.
        ratio: how many times as long the real ones then are at each of `PLACES`, float64 `[101]`.
    """

    slower: float = 1.0
    ratio: NDArray[np.float64] = field(default_factory=lambda: np.ones(len(PLACES)))

    def between(self, other: "Correction", share: float) -> "Correction":
        """Return the correction at a share of the way to another one."""
        return Correction(
            self.slower + share * (other.slower - self.slower),
            self.ratio + share * (other.ratio - self.ratio),
        )

    def real(self, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the real times, float64 `[n]`.

        Args:
            expected: what the event model expects of steps that take `slower` times as long,
                float64 `[n]`, seconds; infinite or NaN without an answer.
        """
        found, finite = expected.copy(), np.isfinite(expected)
        ranks = np.argsort(np.argsort(expected[finite], kind="stable"))
        found[finite] *= np.interp(ranks / max(len(ranks) - 1, 1), PLACES, self.ratio)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the correction as values that JSON has."""
        return {"slower": self.slower, "ratio": self.ratio.tolist()}

    @classmethod
    def from_json(cls, values: Any) -> "Correction":
        """Return the correction from `to_json`; raise KeyError, TypeError or ValueError else."""
        ratio = np.array(values["ratio"], np.float64)
        if ratio.shape != PLACES.shape:
            raise ValueError("these are no times of steps: their lengths differ")
        return cls(float(values["slower"]), ratio)


@dataclass(frozen=True)
class StreamLevel:
    """What independent clients saw at a rate, beside what the event model expects.

    Attributes:
        rate: requests per second.
        ttft: how the times to the first token differ.
        tpot: how the times per further token differ.
    """

    rate: float
    ttft: Correction = Correction()
    tpot: Correction = Correction()

    def between(self, other: "StreamLevel", rate: float) -> "StreamLevel":
        """Return what is expected at a rate between this one's and that of another."""
        share = (rate - self.rate) / (other.rate - self.rate)
        ttft, tpot = self.ttft.between(other.ttft, share), self.tpot.between(other.tpot, share)
        return StreamLevel(rate, ttft, tpot)

    def to_json(self) -> dict[str, Any]:
        """Return the level as values that JSON has."""
        return {"rate": self.rate, "ttft": self.ttft.to_json(), "tpot": self.tpot.to_json()}

    @classmethod
    def from_json(cls, values: Any) -> "StreamLevel":
        """Return the level from `to_json`; raise KeyError, TypeError or ValueError otherwise."""
        ttft, tpot = (Correction.from_json(values[key]) for key in ("ttft", "tpot"))
        return cls(float(values["rate"]), ttft, tpot)


@dataclass(frozen=True)
class StepTimes:
    """How long a step takes.

    Attributes:
        sequences: numbers of answers under way that were measured, ascending.
        seconds: seconds of a step with so many answers, and no prompt.
        prompt_token: seconds that each token of a prompt adds.
        request: seconds that each request adds to the step that begins its prompt.
        overhead: seconds from when a request is due to when the engine has it, and from a token to
            its client, float64 `[n]`.
        noise: seconds of the steps of a whole answer divided by what is expected of them,
            float64 `[n]`.
        levels: what independent clients saw, by ascending rate.
    """

    sequences: tuple[int, ...]
    seconds: tuple[float, ...]
    prompt_token: float
    request: float = 0.0
    overhead: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    noise: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    levels: Sequence[StreamLevel] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the times as values that JSON has."""
        return {
            "sequences": list(self.sequences),
            "seconds": list(self.seconds),
            "prompt_token": self.prompt_token,
            "request": self.request,
            "overhead": self.overhead.tolist(),
            "noise": self.noise.tolist(),
            "levels": [each.to_json() for each in self.levels],
        }

    @classmethod
    def from_json(cls, values: Any) -> "StepTimes":
        """Return the times from `to_json`.

        Raises:
            ValueError: the values are not such times.
        """
        try:
            found = cls(
                sequences=tuple(map(int, values["sequences"])),
                seconds=tuple(map(float, values["seconds"])),
                prompt_token=float(values["prompt_token"]),
                request=float(values["request"]),
                overhead=np.array(values["overhead"], np.float64),
                noise=np.array(values["noise"], np.float64),
                levels=tuple(map(StreamLevel.from_json, values["levels"])),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"these are no times of steps: {error}") from error
        if not 0 < len(found.sequences) == len(found.seconds):
            raise ValueError("these are no times of steps: their lengths differ")
        return found

    def times(self, factor: float) -> "StepTimes":
        """Return the times of an engine that takes so many times as long."""
        return replace(
            self,
            seconds=tuple(factor * each for each in self.seconds),
            prompt_token=factor * self.prompt_token,
            request=factor * self.request,
            levels=(),
        )

    def level(self, rate: float) -> StreamLevel:
        """Return what independent clients see at a rate, in requests per second."""
        if not self.levels:
            return StreamLevel(rate)
        right = int(np.searchsorted([each.rate for each in self.levels], rate))
        if right in (0, len(self.levels)):
            return self.levels[min(right, len(self.levels) - 1)]
        return self.levels[right - 1].between(self.levels[right], rate)

    def step(self, answers: int, prompt_tokens: int) -> float:
        """Return the expected seconds of a step.

        Args:
            answers: answers under way of which it computes a token.
            prompt_tokens: tokens of prompts that it computes beside them.
        """
        base = float(np.interp(answers, self.sequences, self.seconds))
        beyond = answers - self.sequences[-1]
        if beyond > 0 and len(self.sequences) > 1:
            rise = (self.seconds[-1] - self.seconds[-2]) / (self.sequences[-1] - self.sequences[-2])
            base += beyond * max(rise, 0.0)
        return base + prompt_tokens * self.prompt_token
