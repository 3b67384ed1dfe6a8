"""The profile of a version that streams its answers: how many answers may be under way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from millrace.models.common.errors import InputError
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.profiled_model import MODEL, OwnTriton, own_triton
from millrace.serving.profile.prompt_texts import PromptTexts
from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.stream_measure import measure_steps
from millrace.serving.profile.stream_search import (
    SEQUENCES,
    StreamConfiguration,
    StreamDemand,
    rank_streams,
)
from millrace.serving.profile.workload import (
    Configuration,
    Considered,
    Effort,
    Kept,
    Sent,
    Values,
    client_of,
    never,
)
from millrace.serving.triton.open_streams import StreamedLoad, send_streams
from millrace.serving.triton.version_folder import Artifact

WARM_UP = 4
CALIBRATED = 16
"""Prompts whose tokens are counted, to know how long a text of so many tokens is."""
SHORTER = 0.9
"""Share of the tokens of an answer that the model must be able to give."""


@dataclass(frozen=True)
class StreamWorkload:
    """A version that streams its answers, with its goal; a `Workload`.

    Attributes:
        artifact: the version.
        texts: texts of which prompts are made.
        goal: the goal, with `ttft_p99_ms` or `tpot_p99_ms`.
        kept: what was measured before.
        say: reports what is done.
    """

    artifact: Artifact
    texts: Sequence[str]
    goal: SloSpec
    kept: Kept
    say: Callable[[str], None]
    effort: ClassVar[Effort] = Effort(shortlist=2, probes=4, longest=8.0, proof_seconds=150.0)

    @property
    def current(self) -> StreamConfiguration:
        """The configuration of the pipeline file."""
        return StreamConfiguration(self.artifact.serving.generation.max_num_seqs)

    def rank(self) -> list[Considered]:
        """Measure the engine's steps, and rank by them."""
        steps = self.kept.read("steps", StepTimes.from_json)
        if steps is None:
            self.say("measuring steps")
            with self.running() as target:
                target.serve(StreamConfiguration(max(SEQUENCES)))
                steps = measure_steps(target, self.goal)
            self.kept.write("steps", steps.to_json())
        else:
            self.say("steps: measured before")
        return rank_streams(steps, self.goal, self.artifact.serving)

    @contextmanager
    def running(self) -> Iterator["StreamTarget"]:
        """Run a Triton with the version."""
        with own_triton(self.artifact) as triton:
            target = StreamTarget(triton, PromptTexts(self.texts), self.goal)
            target.serve(self.current)
            target.calibrate()
            yield target


@dataclass
class StreamTarget:
    """A version on a Triton of its own, and requests of a goal; a `Target`.

    Attributes:
        triton: serves the version.
        texts: makes prompts.
        goal: the goal.
        count: how many prompts were made, so that no two are the same.
    """

    triton: OwnTriton
    texts: PromptTexts
    goal: SloSpec
    count: int = 0

    def serve(self, configuration: Configuration) -> None:
        """Serve a configuration, and warm it up."""
        self.triton.serve(configuration)
        for _ in range(WARM_UP):
            self.send_at_once([max(self.goal.prompt_tokens)], [max(self.goal.answer_tokens)])

    def calibrate(self) -> None:
        """Learn how long a text of so many tokens is, and check that the model takes them.

        Raises:
            InputError: the model's context is too short, or it does not answer.
        """
        prompt, answer = max(self.goal.prompt_tokens), max(self.goal.answer_tokens)
        for _ in range(2):
            # One after the other, as only few may wait.
            loads = [self.send_at_once([prompt], [1]) for _ in range(CALIBRATED)]
            errors = [error for each in loads for error in each.errors]
            if errors:
                raise self._too_long(errors[0])
            self.texts.learn(prompt, float(np.mean([each.prompts[0] for each in loads])))
        load = self.send_at_once([prompt], [answer])
        if load.errors or load.answers[0] < SHORTER * answer:
            seen = f"an answer of {load.answers[0]} tokens to a prompt of {load.prompts[0]}"
            raise self._too_long(next(iter(load.errors), seen))

    def _too_long(self, seen: str) -> InputError:
        return InputError(
            "the model cannot answer the requests of serving.slo",
            seen=seen,
            valid="prompts and answers that fit into the model's context together",
            hint="set serving.slo.prompt_tokens and serving.slo.answer_tokens to what clients send",
        )

    def send_at_once(self, prompts: Sequence[int], answers: Sequence[int]) -> StreamedLoad:
        """Send prompts of so many tokens together."""
        requests = self._requests(prompts, answers)
        return send_streams(self.triton.endpoint, MODEL, np.zeros(len(requests)), requests)

    def send(
        self,
        rate: float,
        requests: int,
        seed: int,
        looks: Sequence[int] = (),
        is_decided: Callable[[Values], bool] = never,
    ) -> Sent:
        """Send requests of independent clients."""
        arrivals = StreamDemand.of(self.goal, requests, seed).at(rate)
        load = send_streams(
            *(self.triton.endpoint, MODEL, arrivals.times),
            self._requests(arrivals.prompts.tolist(), arrivals.answers.tolist()),
            looks=looks,
            is_decided=lambda load: is_decided(values_of(load)),
        )
        return Sent(values_of(load), client_of(load), figures_of(load))

    def _requests(self, prompts: Sequence[int], answers: Sequence[int]) -> list[tuple[str, int]]:
        first = self.count
        self.count += len(prompts)
        numbered = enumerate(zip(prompts, answers, strict=True), start=first)
        return [(self.texts.make(prompt, number), many) for number, (prompt, many) in numbered]


def values_of(load: StreamedLoad) -> Values:
    """Return the times that a goal bounds."""
    return {"ttft_p99_ms": load.ttft, "tpot_p99_ms": load.tpot}


def figures_of(load: StreamedLoad) -> dict[str, float]:
    """Return further figures of a load, in milliseconds and tokens; without answers, none."""
    is_answered = np.isfinite(load.last)
    if not is_answered.any():
        return {}
    with_first = np.quantile(load.tpot_with_first[is_answered], 0.99, method="higher")
    return {
        "tpot_with_first_token_p99_ms": float(with_first) * 1e3,
        "mean_prompt_tokens": float(load.prompts[is_answered].mean()),
        "mean_answer_tokens": float(load.answers[is_answered].mean()),
    }
