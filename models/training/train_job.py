"""The interface of a training job for Ray Train: run, report, save and resume, for all models."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

Write = Callable[[Path], None]
"""Writes one worker's part of a checkpoint into an empty folder."""
Report = Callable[[dict[str, Any], Write | None], None]
"""Reports a worker's metrics, and writes its part of a checkpoint if a `Write` is given.

Every worker calls it equally often. Two metrics are required, both counted in the job's `unit`
(epochs, steps or rounds). The metric with the name of the unit says how many are done. `began_at`
says how many were done when the worker started.
"""


class TrainJob(ABC):
    """A training job; it is pickled and sent to the workers.

    Attributes:
        unit: unit of progress: epoch, step or round.
        loss: name of the metric that must stay finite.
        advice: hint for the user if the metric named by `loss` is not finite.
    """

    unit: str
    loss: str
    advice: str

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Number of Ray Train workers."""

    @property
    @abstractmethod
    def max_failures(self) -> int:
        """How often training may restart after a worker failed."""

    @abstractmethod
    def run(self, start: Path | None, report: Report) -> None:
        """Train on one worker of Ray Train.

        Args:
            start: folder of the checkpoint to resume from; None to start from the beginning.
            report: reports metrics; all workers must call it equally often.
        """

    def require_trainable(self) -> None:
        """Check, before any worker starts, that the model can be built and trained.

        Raises:
            InputError: the model cannot be built, or cannot be trained with these settings.
        """
        return

    def trainer(self) -> Any:
        """Return the Ray Train trainer class, which sets up the communication of the workers."""
        from ray.train.torch import TorchTrainer

        return TorchTrainer
