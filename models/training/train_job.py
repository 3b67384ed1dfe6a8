"""What Ray Train's workers run, whatever is trained: one way to report, one to save and resume."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset

Write = Callable[[Path], None]
"""Writes one worker's part of a checkpoint into an empty folder."""
Report = Callable[[dict[str, Any], Write | None], None]
"""Takes the metrics of a worker, and how it writes its part of a checkpoint where one is due.

Every worker calls it equally often. The metrics have the job's `unit`, how much is done by then,
and `began_at`, how much was done when the worker started.
"""


class TrainJob(ABC):
    """All that a worker needs to know; it travels to the workers by pickle.

    Attributes:
        unit: what is counted: epoch, step or round.
        loss: the metric that must stay finite.
        advice: what to do where it does not.
    """

    unit: str
    loss: str
    advice: str

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Workers of the run."""

    @property
    @abstractmethod
    def max_failures(self) -> int:
        """How often workers may fail and start again."""

    @abstractmethod
    def run(self, start: Path | None, report: Report) -> None:
        """Train on one worker of Ray Train.

        Args:
            start: folder of the checkpoint to resume from; None to begin.
            report: called by all workers alike.
        """

    def require_trainable(self) -> None:
        """Refuse, before any worker is started, what they would refuse.

        Raises:
            InputError: the model cannot be built.
        """
        return

    def datasets(self) -> Mapping[str, "Dataset"]:
        """Return what Ray Data streams to the workers, by name."""
        return {}

    def trainer(self) -> Any:
        """Return Ray Train's class of trainer, which sets up how the workers communicate."""
        from ray.train.torch import TorchTrainer

        return TorchTrainer
