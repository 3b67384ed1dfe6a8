"""Step: from a snapshot to trained weights."""

import os
from dataclasses import dataclass
from pathlib import Path

from models import cluster, snapshots
from models.features import Encoding, fit_encoding
from models.pipeline import Pipeline
from models.places import Places
from models.progress import EpochEnded, TrainEvent
from models.tracking import TrackedRun
from tasks import progress
from tasks.progress import log
from tasks.retry import step


@dataclass(frozen=True)
class Trained:
    """What training left.

    Attributes:
        encoding: rows to tensors, fitted on the train split.
        checkpoint: folder with the weights.
        history: metrics of every epoch.
        restarts: how often workers went back to a checkpoint.
    """

    encoding: Encoding
    checkpoint: Path
    history: tuple[dict[str, float], ...]
    restarts: int


@step(timeout_seconds=7 * 24 * 3600, retries=0)
def train_workers(
    pipeline: Pipeline, places: Places, snapshot: snapshots.Snapshot, run: TrackedRun
) -> Trained:
    """Train on Ray and log every epoch to the run while it happens."""
    from models.families import build_network
    from models.objective import objective_of
    from models.trainer import fit
    from models.training import TrainJob

    spec = pipeline.training
    shares, columns = pipeline.dataset.split, snapshot.schema.features
    rows = snapshots.count_rows(snapshot, "train", shares)
    encoding = fit_encoding(
        snapshot.schema, snapshots.scan(snapshot, "train", shares, columns=columns)
    )
    # A misfit of family and data is told here, before any worker is started.
    build_network(pipeline.model, pipeline.folder, encoding, objective_of(encoding))
    job = TrainJob(pipeline.model, spec, encoding, pipeline.folder, rows)
    cluster.connect(places.ray_address, max(os.cpu_count() or 1, spec.num_workers) + 2)
    storage = places.home / "training"
    with progress.bar("train", spec.epochs, "epochs") as bar:
        result = fit(job, snapshot, shares, storage, run.run_id, Teller(run, bar))
    if result.restarts:
        run.set_tags({"millrace.restarts": result.restarts})
    return Trained(encoding, result.checkpoint, result.history, result.restarts)


class Teller:
    """Tells MLflow and the user what happens in training."""

    def __init__(self, run: TrackedRun, bar: progress.Bar) -> None:
        self.run = run
        self.bar = bar
        self.restarts = 0

    def __call__(self, event: TrainEvent) -> None:
        """Log an epoch, or say which workers failed."""
        if not isinstance(event, EpochEnded):
            for rank, cause in event.causes.items():
                log.warning("worker %s failed: %s", rank, cause)
            return
        metrics = event.metrics
        epoch, restarts = int(metrics["epoch"]), int(metrics["restarts"])
        if restarts > self.restarts:
            self.restarts = restarts
            log.warning("resumed from the checkpoint after epoch %s", epoch - 1)
        kept = {name: value for name, value in metrics.items() if name not in ("epoch", "restarts")}
        self.run.log_metrics(kept, step=epoch)
        self.bar.update(epoch, _note(kept))


def _note(metrics: dict[str, float]) -> str:
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if "validation" in name]
    return "  ".join([*shown, f"{metrics['samples_per_second']:,.0f} samples/s"])
