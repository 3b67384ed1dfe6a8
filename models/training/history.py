"""What happened in a training run, from the events as they come."""

import math
import re
from collections.abc import Iterable
from typing import Any

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.training.train_events import Reported, Resumed, TrainEvent, WorkersFailed
from millrace.models.training.train_job import TrainJob


class History:
    """Reports and recoveries so far.

    Attributes:
        recoveries: for each time that training resumed after a failure, the epochs or steps that
            were done; 0 is from the start.
    """

    def __init__(self, job: TrainJob) -> None:
        self.recoveries: list[int] = []
        self._job = job
        self._reports: dict[int, dict[str, Any]] = {}
        self._failed = False

    @property
    def reports(self) -> tuple[dict[str, Any], ...]:
        """The metrics of every report, in order; of what was done again, the later ones."""
        return tuple(self._reports[done] for done in sorted(self._reports))

    def add(self, event: TrainEvent) -> list[TrainEvent]:
        """Take in what happened, and return what there is to report of it.

        That training resumed is known with the first report after a failure, which says where its
        worker began.
        """
        if isinstance(event, WorkersFailed):
            self._failed = True
            return [event]
        if not isinstance(event, Reported):
            return []
        metrics = dict(event.metrics)
        began_at, done = int(metrics.pop("began_at", 0)), int(metrics[self._job.unit])
        self._reports = {known: each for known, each in self._reports.items() if known < done}
        self._reports[done] = metrics
        if not self._failed:
            return [Reported(metrics)]
        self._failed = False
        self.recoveries.append(began_at)
        return [Resumed(began_at), Reported(metrics)]

    def fault(self) -> WorkError | None:
        """Return what was wrong with a run that ended by itself, or None."""
        last = self.reports[-1] if self._reports else None
        if last is None or math.isfinite(last[self._job.loss]):
            return None
        return WorkError(
            f"the loss is not a number after {self._job.unit} {int(last[self._job.unit])}",
            seen=f"{self._job.loss} {last[self._job.loss]}",
            hint=self._job.advice,
        )


_UNUSED = "Expected to have finished reduction in the prior iteration"
_NAMES_AN_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b")


def failure_of(error: Exception, causes: Iterable[Exception], max_failures: int) -> MillraceError:
    """Return what to tell the user of a training run that failed for good.

    Args:
        error: what Ray Train raised.
        causes: the errors of the workers; an error of Ray's may hold the true one as `cause`.
        max_failures: how many failures were allowed.
    """
    found = [getattr(cause, "cause", None) or cause for cause in causes]
    for cause in found:
        if isinstance(cause, MillraceError):
            return cause
    text = str(found[0] if found else error).strip()
    if _UNUSED in text:
        return WorkError(
            "training failed: some steps leave parameters without a gradient, and others do not",
            seen=_UNUSED,
            hint="set training.find_unused_parameters: true",
        )
    lines = text.splitlines()
    named = [line for line in lines if _NAMES_AN_ERROR.match(line)]
    return WorkError(
        "training failed",
        seen=(named or lines or [type(error).__name__])[-1],
        hint=f"fix the cause, or raise training.max_failures (now {max_failures})",
    )
