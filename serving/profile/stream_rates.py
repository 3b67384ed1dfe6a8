"""What independent clients of a streaming model see at some rates, beside the event model.

Prompts that come one by one mostly have steps of their own; those that come together share steps.
So requests that are sent together do not show how long the engine takes for independent clients.
The event model gets the requests that were really sent. The factor by which the engine is slower is
the one with which its mean is the real one: one factor for the seconds to the first token, which
grow with the queue, and one for those per further token. What then still differs is kept by
quantile. Where the machine paused, requests are left out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.models.config.slo_spec import SloSpec, mean_of
from millrace.serving.profile.pauses import is_usual
from millrace.serving.profile.search import SEED
from millrace.serving.profile.step_times import PLACES, Correction, StepTimes, StreamLevel
from millrace.serving.profile.stream_search import SEQUENCES, StreamDemand
from millrace.serving.profile.stream_twin import simulate_streams
from millrace.serving.profile.workload import Sent

SHARES = (0.08, 0.3, 0.6)
"""The rates that are measured, as shares of what the engine does where requests come together."""
SECONDS, LONGEST, ENOUGH = 10.0, 20.0, 100
"""How long each is measured, and how long where that has not as many requests: p99 is of them."""
FEWEST, MOST_REQUESTS = 32, 2000
"""The fewest requests in that time for which a rate is measured, and the most that are sent."""
MOST, HALVINGS = 4.0, 12
"""The largest factor that is looked for, and how often the range is halved."""


class SendsClients(Protocol):
    """Sends requests of independent clients."""

    def send(self, rate: float, requests: int, seed: int) -> Sent:
        """Send so many requests, so many per second."""
        ...


def with_rates(steps: StepTimes, target: SendsClients, goal: SloSpec) -> StepTimes:
    """Return times of steps with what was measured at rates of independent clients.

    Args:
        steps: the times where requests come together.
        target: the version, which may have as many answers under way as a profile considers.
        goal: the goal, with the lengths of prompts and answers.
    """
    most = _most_together(steps, goal)
    rates = [share * most for share in SHARES if share * most * LONGEST >= FEWEST]
    levels = (_measure(target, goal, steps, rate) for rate in rates)
    return replace(steps, levels=tuple(each for each in levels if each is not None))


def _most_together(steps: StepTimes, goal: SloSpec) -> float:
    """Return how many requests per second the engine takes where they come together."""
    token = min(steps.step(many, 0) / many for many in steps.sequences)
    prompt = steps.prompt_token * mean_of(goal.prompt_tokens)
    return 1 / (mean_of(goal.answer_tokens) * token + prompt + steps.request)


def _measure(
    target: SendsClients, goal: SloSpec, steps: StepTimes, rate: float
) -> StreamLevel | None:
    """Return what clients see at a rate; None without an answer."""
    many = int(rate * np.clip(ENOUGH / rate, SECONDS, LONGEST))
    many = min(many, MOST_REQUESTS)
    arrivals = StreamDemand.of(goal, many, SEED).at(rate)
    sent = target.send(rate, many, SEED).values
    usual = is_usual(sent["ttft_p99_ms"])
    real = [_answered(sent[key][usual]) for key in ("ttft_p99_ms", "tpot_p99_ms")]
    if not len(real[0]):
        return None

    def expected(factor: float) -> list[NDArray[np.float64]]:
        drawn, limit = np.random.default_rng(SEED), max(SEQUENCES)
        found = simulate_streams(arrivals, steps.times(factor), drawn, max_num_seqs=limit)
        return [_answered(each[usual]) for each in (found.ttft, found.tpot)]

    ttft = _correction(real[0], lambda factor: expected(factor)[0])
    has_further = max(goal.answer_tokens) > 1 and len(real[1])
    tpot = _correction(real[1], lambda factor: expected(factor)[1]) if has_further else Correction()
    return StreamLevel(rate, ttft, tpot)


def _correction(
    real: NDArray[np.float64], expected: Callable[[float], NDArray[np.float64]]
) -> Correction:
    """Return how real seconds differ from those that are expected of a factor."""
    slower = _factor_of(lambda factor: float(expected(factor).mean()), float(real.mean()))
    ratio = np.quantile(real, PLACES) / np.quantile(expected(slower), PLACES)
    return Correction(slower, ratio)


def _answered(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times of the answers that have one.

    An answer of one token has no seconds per further token: 0 as measured, NaN as expected.
    """
    return seconds[np.isfinite(seconds) & (seconds > 0)]


def _factor_of(expected: Callable[[float], float], real: float) -> float:
    """Return the factor, from a quarter to four, with which what is expected is real.

    Args:
        expected: returns seconds for a factor; they rise with it.
        real: seconds.
    """
    low, high = 1 / MOST, MOST
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if expected(middle) < real else (low, middle)
    return float(np.sqrt(low * high))
