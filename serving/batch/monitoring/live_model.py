"""Asks the live model for answers to rows that a batch job has scored, and compares both."""

import time
from collections.abc import Iterable
from typing import Protocol

from millrace.models.common.errors import InputError, MillraceError
from millrace.serving.batch.input.row_sample import Example
from millrace.serving.batch.monitoring.agreement import (
    Difference,
)
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.triton.server_index import ARMS, LoadedModel, live_version, ready_versions


class Live(Protocol):
    """The live model of a job."""

    @property
    def answers(self) -> tuple[str, ...]:
        """Names of the output columns to compare."""
        ...

    def difference(self, example: Example, seconds: float) -> Difference:
        """Request the live model's answer to one row, and compare it with the job's.

        Args:
            example: the row, and its columns in the output.
            seconds: the timeout.

        Raises:
            InputError: the live model refuses the row.
            MillraceError: the live model does not answer.
        """
        ...


def explain_not_live(
    index: Iterable[LoadedModel], state: ReleaseState, model: str, desired: DesiredVersion
) -> str:
    """Return why a server does not serve exactly the desired version; empty if it does.

    Args:
        index: the models that the server has loaded.
        state: the model's release state.
        model: the model.
        desired: the version that should be live, and its digest.
    """
    loaded = tuple(index)
    version = live_version(loaded, model)
    if version is None:
        return f"{model} is not live"
    if version != desired.version:
        return f"version {version} is live, not {desired.version}"
    if ready_versions(loaded, model + ARMS):
        return "a rollout is running, so another version answers too"
    if state.live is None or state.live.desired != desired:
        return f"no release event says that version {version} is live with these files"
    return ""


def compare_examples(
    live: Live, examples: Iterable[Example], seconds: float
) -> tuple[list[tuple[str, Difference]], str]:
    """Compare one row after the other until all are compared, or the time is up.

    Args:
        live: the live model.
        examples: the rows.
        seconds: time limit for all rows.

    Returns:
        The differences, each with the row's `_key`. The reason why some rows were not compared;
        empty if all rows were compared.
    """
    found: list[tuple[str, Difference]] = []
    reason, deadline = "", time.monotonic() + seconds
    for example in examples:
        if (left := deadline - time.monotonic()) <= 0:
            return found, f"the time limit of {seconds:g} s was reached"
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
