"""The live model, asked for rows that a batch job has scored, as its clients ask it."""

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
"""Of an answer that is compared: the live model has others to serve."""


class Live(Protocol):
    """The live model of a job."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns of the output that it is compared with."""
        ...

    def difference(self, example: Example, seconds: float) -> Difference:
        """Ask for one row, and compare.

        Args:
            example: the row, and what was written.
            seconds: to wait.

        Raises:
            InputError: the live model does not take the row.
            MillraceError: it does not answer.
        """
        ...


@dataclass(frozen=True)
class LiveRows:
    """A graph that is live.

    Attributes:
        job: what scored the rows.
        ask: returns the outputs for a request, within seconds.
        tolerance: by how much an answer may differ from another to the same row, beside rounding:
            int8 with dynamic ranges depends on what else is in its batch.
    """

    job: RowJob
    ask: Callable[[Mapping[str, Array], float], Mapping[str, Array]]
    tolerance: float = 0.0

    @property
    def answers(self) -> tuple[str, ...]:
        """The prediction, and the probability of a class."""
        return ("prediction", "score")

    def difference(self, example: Example, seconds: float) -> Difference:
        """Ask for one row, alone, and compare."""
        encoding = self.job.encoding
        got = self.ask(self.job.request(example.row), seconds)
        live = got[answers_of(encoding).output][0]
        written, score = example.written["prediction"], example.written["score"]
        if encoding.labels:
            return class_difference(written, score, live, encoding.labels, self.tolerance)
        return number_difference(written, float(live[0]), self.tolerance, encoding.target_std)


@dataclass(frozen=True)
class LivePrompts:
    """A language model that is live; the job's answers are greedy.

    Attributes:
        job: what continued the prompts.
        ask: continues one, within seconds.
        exact: whether the form's answers are the same whatever else its engine works on.
    """

    job: Prompts
    ask: Callable[[str | Messages, Sampling, float], Piece]
    exact: bool = True

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer."""
        return ("completion",)

    def difference(self, example: Example, seconds: float) -> Difference:
        """Let the live model go on with a prompt for a while, and compare."""
        asked = self.job.sampling
        sampling = Sampling(
            temperature=0,
            repetition_penalty=asked.repetition_penalty,
            stop=asked.stop,
            max_tokens=min(asked.max_tokens, TOKENS),
        )
        got = self.ask(self.job.asked(example.row), sampling, seconds)
        return text_difference(
            example.written["completion"],
            got.texts[0],
            asked.stop,
            is_whole=got.finish_reasons[0] == "stop",
            exact=self.exact,
        )


def not_live(
    index: Iterable[LoadedModel], standing: ReleaseState, model: str, wish: DesiredVersion
) -> str:
    """Return why what a server has loaded is not a version; empty where it is.

    Args:
        index: what the server says that it has.
        standing: where the model stands, as its releases tell.
        model: the model.
        wish: the version, and its digest.
    """
    loaded = tuple(index)
    version = live_version(loaded, model)
    if version is None:
        return f"{model} is not live"
    if version != wish.version:
        return f"version {version} is live, not {wish.version}"
    if ready_versions(loaded, model + ARMS):
        return "a rollout is on, and another version answers too"
    if standing.live is None or standing.live.desired != wish:
        return f"no release tells that version {version} is live with these files"
    return ""


def compared(
    live: Live, examples: Iterable[Example], seconds: float
) -> tuple[list[tuple[str, Difference]], str]:
    """Ask for one row after the other until all are answered, or time is up.

    Args:
        live: the live model.
        examples: the rows.
        seconds: for all of them.

    Returns:
        The differences, each with the row's `_key`; and why some are missing, empty where none is.
    """
    found: list[tuple[str, Difference]] = []
    reason, deadline = "", time.monotonic() + seconds
    for example in examples:
        if (left := deadline - time.monotonic()) <= 0:
            return found, f"{seconds:g} s were not enough"
        try:
            found.append((example.key, live.difference(example, left)))
        except InputError as error:  # it is this row
            reason = in_a_line(error)
        except MillraceError as error:
            return found, in_a_line(error)
    return found, reason


def in_a_line(error: MillraceError) -> str:
    """Return what failed, and what was seen."""
    seen = (error.seen or "").splitlines()[:1]
    return ": ".join([error.what, *seen])
