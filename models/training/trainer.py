"""Ray Train around a training job: workers, checkpoints, restarts and the result."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.interrupts import interruptible
from millrace.models.training.event_log import Reported, Resumed, TrainEvent, WorkersFailed
from millrace.models.training.lean_trainer import lean
from millrace.models.training.train_events import events_of_workers
from millrace.models.training.train_job import TrainJob, Write
from millrace.models.training.workers import scaling_config


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    Attributes:
        checkpoint: folder of the last checkpoint.
        history: the metrics of every report, in order; for epochs or steps that were repeated after
            a failure, the metrics of the repetition.
        recoveries: for each failure, the number of epochs or steps in the checkpoint that training
            resumed from; 0 if it restarted from the beginning.
    """

    checkpoint: Path
    history: tuple[dict[str, Any], ...]
    recoveries: tuple[int, ...]


def fit(
    job: TrainJob, storage: Path, name: str, on_event: Callable[[TrainEvent], None]
) -> TrainResult:
    """Train on the connected Ray cluster.

    Args:
        job: the training job.
        storage: folder that all nodes can access; checkpoints go to `storage/name`.
        name: name of this run.
        on_event: called in a thread of this process for every report and failure.

    Raises:
        InputError: the model cannot be built, or cannot be trained with these settings.
        WorkError: the workers failed more often than `training.max_failures`, or the loss is not a
            number.
    """
    job.require_trainable()
    history = History(job)

    def keep(event: TrainEvent) -> None:
        for known in history.add(event):
            on_event(known)

    with events_of_workers(keep) as callback:
        trainer = lean(job.trainer())(
            train_worker,
            train_loop_config={"job": job},
            scaling_config=scaling_config(job.num_workers),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=ray.train.FailureConfig(max_failures=job.max_failures),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
                callbacks=[callback],  # type: ignore[list-item]
            ),
        )
        try:
            with interruptible():
                result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            causes = getattr(error, "worker_failures", {}).values()
            raise failure_of(error, causes, job.max_failures) from error
    if (fault := history.fault()) is not None:
        raise fault
    if result.checkpoint is None:
        raise WorkError("training ended without a checkpoint", hint="read the Ray Train log above")
    return TrainResult(Path(result.checkpoint.path), history.reports, tuple(history.recoveries))


def train_worker(config: dict[str, Any]) -> None:
    """Run the job on one worker; resume from Ray Train's checkpoint if there is one.

    Args:
        config: `{"job": TrainJob}`; Ray Train hands a dictionary to its workers.
    """
    # Ray sets this variable when it starts the worker's task. A worker that was forked with torch
    # imported has read it before.
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    job: TrainJob = config["job"]
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        job.run(None, _report)
        return
    with checkpoint.as_directory() as folder:
        job.run(Path(folder), _report)


def _report(metrics: dict[str, Any], write: Write | None) -> None:
    """Report metrics, and this worker's part of a checkpoint, to Ray Train.

    All workers must call this equally often.
    """
    if write is None:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


class History:
    """The reports and recoveries of a training run so far.

    Attributes:
        recoveries: for each failure, the number of epochs or steps in the checkpoint that training
            resumed from; 0 if it restarted from the beginning.
    """

    def __init__(self, job: TrainJob) -> None:
        self.recoveries: list[int] = []
        self._job = job
        self._reports: dict[int, dict[str, Any]] = {}
        self._failed = False

    @property
    def reports(self) -> tuple[dict[str, Any], ...]:
        """The metrics of every report, in order; a repeated epoch or step has only its last one."""
        return tuple(self._reports[done] for done in sorted(self._reports))

    def add(self, event: TrainEvent) -> list[TrainEvent]:
        """Record an event, and return the events to show to the user.

        A `Resumed` event is added before the first report after a failure, because only that report
        says from which epoch or step training resumed (`began_at`).
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
        """Return an error if the last reported loss is not finite, else None."""
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
    """Return the error to show to the user after a failed training run.

    Args:
        error: the error that Ray Train raised.
        causes: the errors of the workers; an error of Ray may have the original one as `cause`.
        max_failures: how many failures were allowed.
    """
    found = [getattr(cause, "cause", None) or cause for cause in causes]
    for cause in found:
        if isinstance(cause, MillraceError):
            return cause
    text = str(found[0] if found else error).strip()
    if _UNUSED in text:
        return WorkError(
            "training failed: in some steps, some parameters of the model get no gradient",
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
