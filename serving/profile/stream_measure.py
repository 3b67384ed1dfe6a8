"""Measure how long the steps of a streaming model's engine take."""

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from millrace.models.common.errors import WorkError
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.stream_rates import SendsClients, with_rates
from millrace.serving.profile.stream_search import SEQUENCES
from millrace.serving.triton.open_streams import StreamedLoad

SINGLES = 12
"""Requests of each of two lengths, one after the other."""
IDLE = 0.2
"""Mean seconds without a request before each of half of them: an engine that was idle is slower."""
SHORTER = 8
"""How many times as long the longer prompts are."""
BURSTS, LONGEST = 3, 4.0
"""How often each number of answers is measured, and seconds after which no more of them are."""


class Sends(SendsClients, Protocol):
    """Sends prompts together, or one by one as independent clients do."""

    def send_at_once(self, prompts: Sequence[int], answers: Sequence[int]) -> StreamedLoad:
        """Send prompts of so many tokens, for answers of so many."""
        ...


def measure_steps(target: Sends, goal: SloSpec) -> StepTimes:
    """Return how long a step takes, and how many times as long at some rates.

    Args:
        target: the version.
        goal: the goal, with the lengths of prompts and answers.

    Raises:
        WorkError: the model does not answer.
    """
    return with_rates(_measure_together(target, goal), target, goal)


def _measure_together(target: Sends, goal: SloSpec) -> StepTimes:
    """Return how long a step takes: alone, with more answers under way, and for each prompt token.

    Prompts of two lengths, one after the other, show what a token of a prompt takes. Then more and
    more prompts are sent together; the last one to begin shows the step with so many answers, and
    the time until then what each request adds. Of the noise the largest and the smallest value are
    left out: one pause of the machine would be more than 1% of them.

    Args:
        target: the version.
        goal: the goal, with the lengths of prompts and answers.

    Raises:
        WorkError: the model does not answer.
    """
    long, answer = max(goal.prompt_tokens), max(goal.answer_tokens)
    short = max(1, long // SHORTER)
    singles = _measure_singles(target, (short, long), answer)
    prompts = np.array([each.prompts[0] for each in singles], np.float64)
    ttft = np.array([each.ttft[0] for each in singles])
    is_long = np.arange(len(singles)) % 2 == 1
    rise = np.median(ttft[is_long]) - np.median(ttft[~is_long])
    spread = max(float(np.median(prompts[is_long]) - np.median(prompts[~is_long])), 1.0)
    prompt_token = max(0.0, float(rise) / spread) if long > short else 0.0
    if answer < 2:
        alone = max(1e-6, float(np.median(ttft - prompt_token * prompts)))
        return StepTimes((1,), (alone,), prompt_token)
    sequences, seconds, noise = [1], [_step(singles)], _ratios(singles)
    begun = [float(np.median(ttft[~is_long]))]
    for many in SEQUENCES[1:]:
        began = time.monotonic()
        bursts = [target.send_at_once([short] * many, [answer] * many) for _ in range(BURSTS)]
        if any(each.errors for each in bursts):  # more than may wait
            break
        sequences.append(many)
        seconds.append(_step(bursts))
        noise += _ratios(bursts)
        begun.append(float(np.median([each.ttft.max() for each in bursts])))
        if time.monotonic() - began > LONGEST:
            break
    overhead = np.maximum(ttft - seconds[0] - prompt_token * prompts, 0.0)
    tokens = prompt_token * float(np.median(prompts[~is_long]))
    request = min(max(_slope(sequences, begun) - tokens, 0.0), float(np.median(overhead)))
    return StepTimes(
        *(tuple(sequences), tuple(seconds), prompt_token, request),
        overhead=np.maximum(overhead - request, 0.0),
        noise=np.array(sorted(noise)[1:-1]),
    )


def _measure_singles(target: Sends, prompts: Sequence[int], answer: int) -> list[StreamedLoad]:
    """Send prompts one after the other: half of them at once, half after a pause."""
    drawn, found = np.random.default_rng(0), list[StreamedLoad]()
    for number in range(SINGLES):
        for prompt in prompts:
            if number % 2:
                time.sleep(drawn.exponential(IDLE))
            found.append(_answered(target, [prompt], answer))
    return found


def _slope(sequences: Sequence[int], seconds: Sequence[float]) -> float:
    """Return by how much the time until all have begun rises with each request."""
    return float(np.polyfit(sequences, seconds, 1)[0]) if len(sequences) > 1 else 0.0


def _step(loads: Sequence[StreamedLoad]) -> float:
    return float(np.median([_seconds_of_a_step(each) for each in loads]))


def _ratios(loads: Sequence[StreamedLoad]) -> list[float]:
    """Return the step times of loads, divided by their median."""
    usual = _step(loads)
    return [_seconds_of_a_step(each) / usual for each in loads]


def _seconds_of_a_step(load: StreamedLoad) -> float:
    """Return the mean seconds of a step while all answers are under way."""
    latest = int(np.argmax(load.first))
    return float(load.tpot[latest])


def _answered(target: Sends, prompts: Sequence[int], answer: int) -> StreamedLoad:
    load = target.send_at_once(prompts, [answer] * len(prompts))
    if load.errors:
        raise WorkError(
            "the model did not answer on the Triton of its profile", seen=dict(load.errors)
        )
    return load
