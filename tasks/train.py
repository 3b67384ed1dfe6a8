"""Steps: ingest the source as a snapshot, and train a model on a snapshot."""

from dataclasses import dataclass, field
from typing import Any

from millrace.models.common.counted import counted
from millrace.models.common.installation import Installation
from millrace.models.common.slow_step import report_while
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest
from millrace.models.data.files_read import describe_files
from millrace.models.data.forgotten_keys import describe_left_out
from millrace.models.data.lacked_columns import describe_lacked
from millrace.models.data.publish_decision import nulls_hint
from millrace.models.data.repeated_keys import describe_repeated
from millrace.models.data.sample_check import describe_reasons
from millrace.models.data.schema import describe_schema
from millrace.models.data.snapshots import QUARANTINE, Snapshot
from millrace.models.data.sources.csv_quotes import describe_line_breaks
from millrace.models.registry.tracking import TrackedRun
from millrace.models.training.event_log import Resumed, TrainEvent, WorkersFailed
from millrace.tasks import progress
from millrace.tasks.kinds.steps import KindSteps, Prepared, Trained, steps_of
from millrace.tasks.progress import log, recovery
from millrace.tasks.retry import step
from millrace.tasks.tracking_outage import await_mlflow

OF_WORKERS = frozenset(
    (
        *("began_at", "data_wait_share", "epoch_seconds", "estimated_memory_mib", "mfu"),
        *("peak_memory_mib", "samples_per_second", "tokens", "tokens_per_second"),
        "worker_memory_mib",
    )
)
"""Metrics of a training that say how fast, and in how much memory, workers learn."""


@step(timeout_seconds=6 * 3600)
def ingest_dataset(pipeline: Pipeline, installation: Installation) -> Snapshot:
    """Ingest the source into the dataset's table, and return the snapshot."""
    with progress.bar("ingest", None, "rows") as bar:
        snapshot = ingest.ingest(pipeline, installation, on_progress=bar.update)
    log.info("ingest: %s", snapshot.files_read)
    state = "new" if snapshot.created else "unchanged"
    log.info("snapshot %s (%s): %s rows", snapshot.version, state, f"{snapshot.rows:,}")
    log.info("%s", describe_schema(snapshot.schema))
    if snapshot.quarantined:
        where = f"; in {describe_files(snapshot.bad_files)}" if snapshot.bad_files else ""
        reasons = describe_reasons(snapshot.reasons)
        log.warning("%s rows in quarantine: %s%s", f"{snapshot.quarantined:,}", reasons, where)
        log.info("quarantine: %s", installation.table(QUARANTINE, pipeline.name))
    if snapshot.left_out:
        log.warning("%s", describe_left_out(snapshot.left_out))
    if snapshot.line_breaks:
        log.warning("%s", describe_line_breaks(snapshot.line_breaks))
    for line in describe_lacked(snapshot.lacked_columns):
        log.warning("%s", line)
    if snapshot.repeated_keys:
        log.warning("%s", describe_repeated(snapshot.repeated_keys, snapshot.schema.key))
    if hint := nulls_hint(snapshot):
        log.warning("%s", hint)
    return snapshot


@step(timeout_seconds=24 * 3600)
def prepare_training(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    run: TrackedRun,
) -> Prepared[Any]:
    """Prepare the training job, and raise if its settings do not fit, before a worker starts."""
    kind.check_model(pipeline.model, pipeline.folder)
    with report_while("preparing the training"):
        prepared = steps_of(kind).prepare(pipeline, installation, snapshot, run)
    if prepared.tags:
        run.set_tags(prepared.tags)
    if prepared.chosen:
        run.log_params({"chosen": prepared.chosen})
    return prepared


@step(timeout_seconds=7 * 24 * 3600, retries=0)
def train_on_ray(
    kind: ModelKind, installation: Installation, prepared: Prepared[Any], run: TrackedRun
) -> Trained[Any]:
    """Train on Ray, and log every report to the MLflow run during the training."""
    from millrace.models.training.trainer import fit

    job, storage = prepared.job, installation.home / "training"
    log.info("train: starting %s on Ray, %s", counted(job.num_workers, "worker"), prepared.summary)
    with progress.bar("train", prepared.total, f"{job.unit}s") as bar:
        result = fit(job, storage, run.run_id, TrainingLog(steps_of(kind), job.unit, run, bar))
    trained = Trained(prepared, result.checkpoint, result.history, result.recoveries)
    # The weights are logged now, and not after the export, which may take long.
    await_mlflow(run.tracking_uri)
    run.log_file(trained.weights, prepared.artifact)
    if result.recoveries:
        recoveries = "; ".join(recovery(done, job.unit) for done in result.recoveries)
        run.set_tags({"millrace.recoveries": recoveries})
    return trained


class TrainingLog:
    """Reports the events of training to MLflow and to the user."""

    def __init__(self, steps: KindSteps, unit: str, run: TrackedRun, bar: progress.Bar) -> None:
        self._steps, self._unit, self._bar = steps, unit, bar
        self._metrics = MetricsLog(run, unit)

    def __call__(self, event: TrainEvent) -> None:
        """Log a report, or say which workers failed and where training resumed."""
        if isinstance(event, WorkersFailed):
            for rank, cause in event.causes.items():
                log.warning("worker %s failed: %s", rank, cause)
        elif isinstance(event, Resumed):
            log.warning("%s", recovery(event.done, self._unit))
        else:
            metrics = dict(event.metrics)
            done = int(metrics.pop(self._unit))
            self._bar.update(done, self._steps.describe_progress(metrics))
            self._metrics.send(
                done, {_shown(name): float(value) for name, value in metrics.items()}
            )


def _shown(name: str) -> str:
    """Return a metric's name in MLflow, whose pages have charts in the order of their names.

    Loss and scores come first; what says how fast and in how much memory a worker learns is last.
    """
    return f"worker.{name.removeprefix('worker_')}" if name in OF_WORKERS else name


@dataclass
class MetricsLog:
    """Sends the metrics of a run to MLflow; during an outage it keeps them and training goes on.

    Attributes:
        run: the run.
        unit: the unit of the number `step` in `send`, for example epoch or step.
    """

    run: TrackedRun
    unit: str
    _unsent: dict[int, dict[str, float]] = field(default_factory=dict)

    def send(self, step: int, metrics: dict[str, float]) -> None:
        """Send metrics, and before them the metrics that MLflow has not received yet."""
        from mlflow.exceptions import MlflowException

        self._unsent[step] = metrics
        try:
            for known in sorted(self._unsent):
                self.run.log_metrics(self._unsent[known], step=known)
                del self._unsent[known]
        except (MlflowException, OSError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            log.warning("MLflow has not stored the metrics of %s %s yet: %s", self.unit, step, why)
