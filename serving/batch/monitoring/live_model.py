"""The live model, which answers rows that a batch job has scored, as it answers its clients."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.inference.answers import answers_of
from millrace.serving.batch.input.row_sample import Example
from millrace.serving.batch.monitoring.agreement import (
    Difference,
    class_difference,
    number_difference,
    text_difference,
)
from millrace.serving.batch.prompts.prompt_rows import Prompts
from millrace.serving.batch.row_job import RowJob
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.triton.language.stream_request import Messages, Piece, Sampling
from millrace.serving.triton.server_index import ARMS, LoadedModel, live_version, ready_versions

TOKENS = 32
"""Tokens of an answer that are compared: the live model has other clients to serve."""


class Live(Protocol):
    """The live model of a job."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns of the output to compare."""
        ...

    def difference(self, example: Example, seconds: float) -> Difference:
        """Request an answer to one row, and compare.

        Args:
            example: the row, and its columns in the output.
            seconds: the timeout.

        Raises:
            InputError: the live model refuses the row.
            MillraceError: it does not answer.
        """
        ...


@dataclass(frozen=True)
class LiveRows:
    """A live graph.

    Attributes:
        job: the job that scored the rows.
        ask: returns the outputs for a request, within seconds.
        tolerance: largest difference, beside rounding, of two answers to the same row: int8 with
            dynamic ranges depends on the other rows of the batch.
    """

    job: RowJob
    ask: Callable[[Mapping[str, Array], float], Mapping[str, Array]]
    tolerance: float = 0.0

    @property
    def answers(self) -> tuple[str, ...]:
        """The prediction, and the probability of a class."""
        return ("prediction", "score")

    def difference(self, example: Example, seconds: float) -> Difference:
        """Request an answer to one row alone, and compare."""
        encoding = self.job.encoding
        outputs = self.ask(self.job.request(example.row), seconds)
        live = outputs[answers_of(encoding).output][0]
        written, score = example.written["prediction"], example.written["score"]
        if encoding.labels:
            return class_difference(written, score, live, encoding.labels, self.tolerance)
        return number_difference(written, float(live[0]), self.tolerance, encoding.target_std)


@dataclass(frozen=True)
class LivePrompts:
    """A live language model; the job's answers are greedy.

    Attributes:
        job: the job that continued the prompts.
        ask: continues one prompt, within seconds.
        exact: whether an answer does not depend on what else the engine works on.
    """

    job: Prompts
    ask: Callable[[str | Messages, Sampling, float], Piece]
    exact: bool = True

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer."""
        return ("completion",)

    def difference(self, example: Example, seconds: float) -> Difference:
        """Let the live model continue a prompt for some tokens, and compare."""
        own = self.job.sampling
        sampling = Sampling(
            temperature=0,
            repetition_penalty=own.repetition_penalty,
            stop=own.stop,
            max_tokens=min(own.max_tokens, TOKENS),
        )
        answer = self.ask(self.job.asked(example.row), sampling, seconds)
        return text_difference(
            example.written["completion"],
            answer.texts[0],
            own.stop,
            is_whole=answer.finish_reasons[0] == "stop",
            exact=self.exact,
        )


def explain_not_live(
    index: Iterable[LoadedModel], state: ReleaseState, model: str, desired: DesiredVersion
) -> str:
    """Return why a server does not serve exactly this version; empty if it does.

    Args:
        index: the models that the server has loaded.
        state: the model's release state.
        model: the model.
        desired: the version, and its digest.
    """
    loaded = tuple(index)
    version = live_version(loaded, model)
    if version is None:
        return f"{model} is not live"
    if version != desired.version:
        return f"version {version} is live, not {desired.version}"
    if ready_versions(loaded, model + ARMS):
        return "a rollout is on, and another version answers too"
    if state.live is None or state.live.desired != desired:
        return f"no release tells that version {version} is live with these files"
    return ""


def compare_examples(
    live: Live, examples: Iterable[Example], seconds: float
) -> tuple[list[tuple[str, Difference]], str]:
    """Compare one row after the other until all are compared, or the time is up.

    Args:
        live: the live model.
        examples: the rows.
        seconds: for all of them.

    Returns:
        The differences, each with the row's `_key`; and why some are missing, empty if none is.
    """
    found: list[tuple[str, Difference]] = []
    reason, deadline = "", time.monotonic() + seconds
    for example in examples:
        if (left := deadline - time.monotonic()) <= 0:
            return found, f"{seconds:g} s were not enough"
        try:
            found.append((example.key, live.difference(example, left)))
        except InputError as error:  # only this row failed
            reason = summarize_error(error)
        except MillraceError as error:
            return found, summarize_error(error)
    return found, reason


def summarize_error(error: MillraceError) -> str:
    """Return what failed and what was seen, in one line."""
    seen = (error.seen or "").splitlines()[:1]
    return ": ".join([error.what, *seen])
