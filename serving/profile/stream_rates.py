"""How many times as long a streaming model's engine takes at a rate of independent clients.

Prompts that come one by one mostly have steps of their own; those that come together share steps.
So requests that are sent together do not show how long the engine takes for independent clients.
The event model gets the requests that were really sent, and the factor is the one with which its
mean of the seconds per token is the real one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.models.config.slo_spec import SloSpec, mean_of
from millrace.serving.profile.search import SEED
from millrace.serving.profile.stream_search import SEQUENCES, StreamDemand
from millrace.serving.profile.stream_twin import StepTimes, simulate_streams
from millrace.serving.profile.workload import Sent

SHARES = (0.08, 0.3, 0.6)
"""The rates that are measured, as shares of what the engine does where requests come together."""
SECONDS, FEWEST, MOST_REQUESTS = 6.0, 10, 2000
"""How long each is measured, the fewest requests for which it is, and the most that are sent."""
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
    rates = [share * most for share in SHARES if share * most * SECONDS >= FEWEST]
    slower = [_slower(target, goal, steps, rate) for rate in rates]
    found = [pair for pair in zip(rates, slower, strict=True) if np.isfinite(pair[1])]
    return replace(
        steps, rates=tuple(rate for rate, _ in found), slower=tuple(factor for _, factor in found)
    )


def _most_together(steps: StepTimes, goal: SloSpec) -> float:
    """Return how many requests per second the engine takes where they come together."""
    token = min(steps.step(many, 0) / many for many in steps.sequences)
    prompt = steps.prompt_token * mean_of(goal.prompt_tokens)
    return 1 / (mean_of(goal.answer_tokens) * token + prompt + steps.request)


def _slower(target: SendsClients, goal: SloSpec, steps: StepTimes, rate: float) -> float:
    many = min(int(rate * SECONDS), MOST_REQUESTS)
    arrivals = StreamDemand.of(goal, many, SEED).at(rate)
    has_further = max(goal.answer_tokens) > 1
    sent = target.send(rate, many, SEED).values["tpot_p99_ms" if has_further else "ttft_p99_ms"]

    def expected(factor: float) -> float:
        drawn, limit = np.random.default_rng(SEED), max(SEQUENCES)
        found = simulate_streams(arrivals, steps.times(factor), drawn, max_num_seqs=limit)
        return _mean(found.tpot if has_further else found.ttft)

    return _factor_of(expected, _mean(sent))


def _mean(seconds: NDArray[np.float64]) -> float:
    """Return the mean of the answers that have such a time; NaN if none has.

    An answer of one token has no seconds per further token: 0 as measured, NaN as expected.
    """
    answered = seconds[np.isfinite(seconds) & (seconds > 0)]
    return float(answered.mean()) if len(answered) else float("nan")


def _factor_of(expected: Callable[[float], float], real: float) -> float:
    """Return the factor, from a quarter to four, with which what is expected is real; NaN if none.

    Args:
        expected: returns seconds for a factor; they rise with it.
        real: seconds.
    """
    if not np.isfinite(real):
        return float("nan")
    low, high = 1 / MOST, MOST
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if expected(middle) < real else (low, middle)
    return float(np.sqrt(low * high))
