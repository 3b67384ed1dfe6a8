"""Step: from a snapshot to trained weights."""

from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.features import Encoding, fit_encoding, text_column
from millrace.models.inference.tokenizer import TextTokenizer
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import GraphPackage
from millrace.models.training.checkpoint import WEIGHTS
from millrace.models.training.progress import Recovered, TrainEvent, WorkersFailed
from millrace.tasks import progress
from millrace.tasks.progress import log, recovery
from millrace.tasks.reference_version import reference_of, teacher_of
from millrace.tasks.reports.metrics_log import MetricsLog
from millrace.tasks.retry import step
from millrace.tasks.tracking_outage import await_mlflow


@dataclass(frozen=True)
class Trained:
    """What training left.

    Attributes:
        encoding: rows to tensors, fitted on the train split.
        checkpoint: folder with the weights.
        history: metrics of every epoch.
        recoveries: the epochs that were done at each recovery from a failure.
        reference: the registered version that the certificate shows beside this one.
    """

    encoding: Encoding
    checkpoint: Path
    history: tuple[dict[str, float], ...]
    recoveries: tuple[int, ...]
    reference: GraphPackage | None = None


@step(timeout_seconds=7 * 24 * 3600, retries=0)
def train_workers(
    pipeline: Pipeline, places: Installation, snapshot: snapshots.Snapshot, run: TrackedRun
) -> Trained:
    """Train on Ray and log every epoch to the run while it happens."""
    from millrace.models.families.family import build_network
    from millrace.models.families.objective import objective_of
    from millrace.models.training.compression.compression import require_compressible
    from millrace.models.training.loop import TrainJob
    from millrace.models.training.trainer import fit, leaves_parameters_unused

    spec = pipeline.training
    shares = pipeline.dataset.split
    columns = (*snapshot.schema.features, snapshot.schema.target)
    rows = snapshots.count_rows(snapshot, "train", shares)
    _require_rows(pipeline, snapshot, rows)
    rows_to_fit = snapshots.scan(snapshot, "train", shares, columns=columns)
    encoding = fit_encoding(snapshot.schema, rows_to_fit, _tokenizer(pipeline, snapshot))
    # A misfit of family, data and compression is told here, before any worker is started.
    network = build_network(pipeline.model, pipeline.folder, encoding, objective_of(encoding))
    require_compressible(spec, network, encoding.input)
    unused = spec.find_unused_parameters
    if unused is None:
        unused = leaves_parameters_unused(network, encoding.input.example(2))
    registry = registry_of(places)
    reference = reference_of(spec, registry, encoding)
    teacher = teacher_of(spec.distillation, registry, encoding) if spec.distillation else None
    if teacher is not None:
        run.set_tags({"millrace.teacher": teacher.name})
        log.info("train: learns from %s too", teacher.name)
    job = TrainJob(pipeline.model, spec, encoding, pipeline.folder, rows, unused, teacher)
    storage = places.home / "training"
    log.info("train: starting %s workers on Ray, %s rows", spec.num_workers, f"{rows:,}")
    with progress.bar("train", spec.epochs, "epochs") as bar:
        result = fit(job, snapshot, shares, storage, run.run_id, Teller(run, bar))
    # At once: what the export may take is not known, and training took longer.
    await_mlflow(run.tracking_uri)
    run.log_file(result.checkpoint / WEIGHTS, "weights")
    if result.recoveries:
        told = "; ".join(recovery(epoch, "epoch") for epoch in result.recoveries)
        run.set_tags({"millrace.recoveries": told})
    return Trained(encoding, result.checkpoint, result.history, result.recoveries, reference)


def _tokenizer(pipeline: Pipeline, snapshot: snapshots.Snapshot) -> TextTokenizer | None:
    """Return the tokenizer of the text that is learnt from; None where none is."""
    from millrace.models.families.pretrained import load_tokenizer

    column = text_column(snapshot.schema)
    if column is None:
        return None
    shares = pipeline.dataset.split
    batches = snapshots.scan(snapshot, "train", shares, columns=(column,))
    texts = (text for batch in batches for text in batch[column].to_pylist() if text)
    return load_tokenizer(pipeline.model, pipeline.folder, texts)


def _require_rows(pipeline: Pipeline, snapshot: snapshots.Snapshot, train_rows: int) -> None:
    """Refuse a snapshot whose splits are too small to learn from and to judge by.

    Raises:
        InputError: a split has too few rows.
    """
    shares, workers = pipeline.dataset.split, pipeline.training.num_workers
    least = {"train": 2 * workers, "validation": 1, "test": 1}
    found = {
        "train": train_rows,
        "validation": snapshots.count_rows(snapshot, "validation", shares),
        "test": snapshots.count_rows(snapshot, "test", shares),
    }
    if all(found[split] >= least[split] for split in least):
        return
    raise InputError(
        "there are too few rows to train and to judge by",
        seen=", ".join(f"{split} {rows}" for split, rows in found.items()),
        valid=", ".join(f"{split} at least {rows}" for split, rows in least.items()),
        hint="bring more rows with different keys, or change dataset.split",
    )


class Teller:
    """Tells MLflow and the user what happens in training."""

    def __init__(self, run: TrackedRun, bar: progress.Bar) -> None:
        self.bar = bar
        self._metrics = MetricsLog(run, "epoch")

    def __call__(self, event: TrainEvent) -> None:
        """Log an epoch, or say which workers failed and where training went on."""
        if isinstance(event, WorkersFailed):
            for rank, cause in event.causes.items():
                log.warning("worker %s failed: %s", rank, cause)
        elif isinstance(event, Recovered):
            log.warning("%s", recovery(event.epoch, "epoch"))
        else:
            metrics = dict(event.metrics)
            epoch = int(metrics.pop("epoch"))
            self.bar.update(epoch, _note(metrics))
            self._metrics.send(epoch, metrics)


def _note(metrics: dict[str, float]) -> str:
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if "validation" in name]
    return "  ".join([*shown, f"{metrics['samples_per_second']:,.0f} samples/s"])
