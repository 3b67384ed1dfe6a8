"""Metrics of training in MLflow, which may be away for a while."""

from dataclasses import dataclass, field

from millrace.models.registry.tracking import TrackedRun
from millrace.tasks.progress import log


@dataclass
class MetricsLog:
    """Sends the metrics of a run; hours of training outlive an outage of MLflow.

    Attributes:
        run: which run.
        unit: what its steps are: epoch or step.
    """

    run: TrackedRun
    unit: str
    _unsent: dict[int, dict[str, float]] = field(default_factory=dict)

    def send(self, step: int, metrics: dict[str, float]) -> None:
        """Send metrics, and before them all that MLflow has not got yet."""
        from mlflow.exceptions import MlflowException

        self._unsent[step] = metrics
        try:
            for known in sorted(self._unsent):
                self.run.log_metrics(self._unsent[known], step=known)
                del self._unsent[known]
        except (MlflowException, OSError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            log.warning("MLflow did not take %s %s yet: %s", self.unit, step, why)
