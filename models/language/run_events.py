"""What happened in the training of a decoder, made out of the events as they come."""

import math
from dataclasses import dataclass
from typing import Any

from millrace.models.common.errors import WorkError
from millrace.models.training.progress import EpochEnded, TrainEvent, WorkersFailed


@dataclass(frozen=True)
class StepsDone:
    """Every worker reported; `metrics` are the same on all, and have `step` and `epoch`."""

    metrics: dict[str, Any]


@dataclass(frozen=True)
class Resumed:
    """After a failure training went on; `step` steps were done already, 0 is from the start."""

    step: int


RunEvent = StepsDone | WorkersFailed | Resumed


class RunHistory:
    """Reports and recoveries so far.

    Attributes:
        recoveries: for each time that training went on after a failure, the steps that were done
            already.
    """

    def __init__(self) -> None:
        self.recoveries: list[int] = []
        self._reports: dict[int, dict[str, Any]] = {}
        self._failed = False

    @property
    def reports(self) -> tuple[dict[str, Any], ...]:
        """The metrics of every report, in order; of steps that were done again, the later ones."""
        return tuple(self._reports[step] for step in sorted(self._reports))

    def add(self, event: TrainEvent) -> list[RunEvent]:
        """Take in what happened, and return what there is to tell of it.

        That training went on is known with the first report after a failure, which says from where
        its worker began (`began_at`).
        """
        if isinstance(event, WorkersFailed):
            self._failed = True
            return [event]
        if not isinstance(event, EpochEnded):
            return []
        metrics: dict[str, Any] = dict(event.metrics)
        began_at = int(metrics.pop("began_at", 0))
        step = int(metrics["step"])
        self._reports = {known: each for known, each in self._reports.items() if known < step}
        self._reports[step] = metrics
        if not self._failed:
            return [StepsDone(metrics)]
        self._failed = False
        self.recoveries.append(began_at)
        return [Resumed(began_at), StepsDone(metrics)]

    def fault(self) -> WorkError | None:
        """Return what was wrong with a run that ended by itself, or None."""
        last = self.reports[-1] if self._reports else None
        if last is None or math.isfinite(last["loss"]):
            return None
        return WorkError(
            f"the loss is not a number after step {int(last['step'])}",
            seen=f"loss {last['loss']}",
            hint="lower training.learning_rate, raise training.warmup_ratio, or set "
            "training.max_grad_norm",
        )
