"""An event model of continuous batching: time to first token, and time per token, at a load.

The engine works in steps. A step computes one token of every answer that is under way, and with the
rest of its tokens parts of the prompts that wait, in their order. Each request makes the
step that begins it longer, and all answers wait for that. An answer's first token comes at the end
of the step that computes the last part of its prompt. At most `max_num_seqs` answers are under way;
further requests wait, and those beyond `max_queue_size` are refused.

What it does not model: prompts that share their beginning, drafted tokens, a full KV cache, and
pieces of more than one token, which come later than their first token.

Source: the scheduler of OpenVINO GenAI with `dynamic_split_fuse` (Holmes et al., DeepSpeed-FastGen,
2024).
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.twin import OVERLOAD

DRAWN = 256
"""How many random numbers are drawn at a time."""


@dataclass(frozen=True)
class StreamArrivals:
    """Requests of an open loop.

    Attributes:
        times: float64 `[n]`, seconds, ascending.
        prompts: int64 `[n]`, tokens of each prompt.
        answers: int64 `[n]`, tokens of each answer.
    """

    times: NDArray[np.float64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]


@dataclass(frozen=True)
class StreamOutcome:
    """What became of each request.

    Attributes:
        ttft: float64 `[n]`, seconds to the first token; infinite if it was refused.
        tpot: float64 `[n]`, mean seconds of each further token; NaN if there is none.
        queue: float64 `[n]`, seconds until its prompt was begun.
        utilisation: share of the time in which the engine worked.
        mean_answers: mean answers under way in a step.
    """

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    queue: NDArray[np.float64]
    utilisation: float
    mean_answers: float

    @property
    def is_overload(self) -> bool:
        """Whether the engine is never idle."""
        return self.utilisation > OVERLOAD


@dataclass
class _Answer:
    """A request under way."""

    number: int
    prompt_left: int
    answer_left: int
    is_begun: bool = False


class _Engine:
    """The engine, with what waits for it and what is under way."""

    def __init__(
        self,
        arrivals: StreamArrivals,
        steps: StepTimes,
        drawn: np.random.Generator,
        limits: tuple[int, int, int],
    ) -> None:
        many = len(arrivals.times)
        self.first, self.last = np.full(many, np.inf), np.full(many, np.inf)
        self.begun = np.full(many, np.inf)
        self.now = self.busy = 0.0
        self.count = self.answered = 0
        self._arrivals, self._steps, self._drawn = arrivals, steps, drawn
        self._most, self._most_waiting, self._room = limits
        self._times = arrivals.times.tolist()
        self._coming = 0
        self._waiting: deque[int] = deque()
        self._running: list[_Answer] = []
        self._noise: list[float] = []
        # how many steps are alike: the noise was measured over whole answers
        self._alike = max(1, round(float(arrivals.answers.mean()))) if many else 1

    @property
    def is_done(self) -> bool:
        """Whether no request is left."""
        return not (self._coming < len(self._times) or self._waiting or self._running)

    def admit(self) -> None:
        """Take in the requests that have come; wait for one if there is none."""
        if not self._running and not self._waiting:
            self.now = max(self.now, self._times[self._coming])
        while self._coming < len(self._times) and self._times[self._coming] <= self.now:
            if len(self._waiting) < self._most_waiting:
                self._waiting.append(self._coming)
            self._coming += 1
        while self._waiting and len(self._running) < self._most:
            number = self._waiting.popleft()
            self.begun[number] = self.now
            prompt, answer = self._arrivals.prompts[number], self._arrivals.answers[number]
            self._running.append(_Answer(number, int(prompt), int(answer)))

    def step(self) -> None:
        """Compute a token of each answer, and parts of the prompts."""
        if not self._running:
            return
        decoding = [each for each in self._running if not each.prompt_left]
        parts = _prompt_parts(self._running, max(self._room - len(decoding), 1))
        seconds = self._steps.step(len(decoding), sum(parts.values())) * self._draw_noise()
        seconds += self._steps.request * self._begin(parts)
        self.now, self.busy = self.now + seconds, self.busy + seconds
        self.count, self.answered = self.count + 1, self.answered + len(decoding)
        for each in decoding:
            each.answer_left -= 1
            self.last[each.number] = self.now
        for each in self._running:
            each.prompt_left -= parts.get(each.number, 0)
            if each.number in parts and not each.prompt_left:
                self.first[each.number] = self.last[each.number] = self.now
                each.answer_left -= 1
        self._running = [each for each in self._running if each.prompt_left or each.answer_left > 0]

    def _begin(self, parts: dict[int, int]) -> int:
        """Begin the requests of which the first part of the prompt is computed; return how many."""
        begun = [each for each in self._running if each.number in parts and not each.is_begun]
        for each in begun:
            each.is_begun = True
        return len(begun)

    def _draw_noise(self) -> float:
        if not self._noise:
            drawn = self._drawn.choice(self._steps.noise, DRAWN)
            self._noise = np.repeat(drawn, self._alike).tolist()
        return self._noise.pop()


def simulate_streams(
    arrivals: StreamArrivals,
    steps: StepTimes,
    drawn: np.random.Generator,
    *,
    max_num_seqs: int,
    max_queue_size: int = 10**9,
    batched_tokens: int = 256,
) -> StreamOutcome:
    """Return what becomes of requests.

    Args:
        arrivals: the requests.
        steps: how long a step takes.
        drawn: source of randomness.
        max_num_seqs: most answers under way.
        max_queue_size: most requests that wait.
        batched_tokens: most tokens of a step.
    """
    engine = _Engine(arrivals, steps, drawn, (max_num_seqs, max_queue_size, batched_tokens))
    while not engine.is_done:
        engine.admit()
        engine.step()
    first, last, further = engine.first, engine.last, arrivals.answers - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(further > 0, (last - first) / further, np.nan)
    span = engine.now - float(arrivals.times[0]) if len(arrivals.times) else 0.0
    return StreamOutcome(
        ttft=first - arrivals.times + drawn.choice(steps.overhead, len(first)),
        tpot=tpot,
        queue=engine.begun - arrivals.times,
        utilisation=engine.busy / span if span else 0.0,
        mean_answers=engine.answered / engine.count if engine.count else 0.0,
    )


def _prompt_parts(running: list[_Answer], room: int) -> dict[int, int]:
    """Return how many tokens of each unfinished prompt a step computes, in their order."""
    parts: dict[int, int] = {}
    for each in running:
        if each.prompt_left and room:
            parts[each.number] = min(each.prompt_left, room)
            room -= parts[each.number]
    return parts
