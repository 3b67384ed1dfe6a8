"""Prepares the training of a `graph` model: its encoding, its network, its references."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.features import Encoding, fit_encoding, text_column
from millrace.models.inference.tokenizer import TextTokenizer
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.training.checkpoint import WEIGHTS
from millrace.tasks.kinds.graph.graph_files import GraphFiles
from millrace.tasks.kinds.graph.graph_references import reference_of, teacher_of
from millrace.tasks.kinds.steps import Prepared
from millrace.tasks.progress import log

LONG_WAIT = 0.1
"""Share of an epoch's time from which the wait for rows is shown."""


@dataclass(frozen=True)
class GraphTraining:
    """The parts of a training that only the kind `graph` has.

    Attributes:
        encoding: the encoding of rows as tensors, fitted on the train split.
        reference: the registered version that the certificate compares the model with.
    """

    encoding: Encoding
    reference: GraphFiles | None = None


def prepare_network(
    pipeline: Pipeline, installation: Installation, snapshot: snapshots.Snapshot, run: TrackedRun
) -> Prepared[GraphTraining]:
    """Fit the encoding, check the network, and return the prepared training.

    No worker is started yet.
    """
    from millrace.models.families.family import build_network
    from millrace.models.families.objective import objective_of
    from millrace.models.training.batches import choose_batch_size, choose_learning_rate
    from millrace.models.training.compression.compression import require_compressible
    from millrace.models.training.network_job import NetworkJob
    from millrace.models.training.network_learner import leaves_parameters_unused
    from millrace.models.training.table_job import Table
    from millrace.models.training.workers import choose_workers

    spec, shares = choose_workers(pipeline.training), pipeline.dataset.split
    rows = snapshots.count_rows(snapshot, "train", shares)
    require_rows(pipeline, snapshot, rows, spec.workers)
    encoding = fit_rows(pipeline, snapshot, _tokenizer(pipeline, snapshot))
    network = build_network(pipeline.model, pipeline.folder, encoding, objective_of(encoding))
    require_compressible(spec, network, encoding.input)
    unused = spec.find_unused_parameters
    if unused is None:
        unused = leaves_parameters_unused(network, encoding.input.example(2))
    registry = registry_of(installation)
    reference = reference_of(spec, registry, encoding)
    teacher = teacher_of(spec.distillation, registry, encoding) if spec.distillation else None
    if teacher is not None:
        log.info("train: distillation from the teacher %s", teacher.name)
    if spec.batch_size is None:
        size = choose_batch_size(rows // spec.workers, encoding.input.blank(1).nbytes)
        rate = spec.learning_rate or choose_learning_rate(size)
        spec = spec.model_copy(update={"batch_size": size, "learning_rate": rate})
    job = NetworkJob(
        *(pipeline.model, spec, encoding, pipeline.folder, rows, unused, teacher),
        table=Table(snapshot, shares),
    )
    return Prepared(
        job,
        GraphTraining(encoding, reference),
        total=spec.epochs,
        summary=f"{counted(rows, 'row')} in batches of {spec.batch_rows}",
        weights=WEIGHTS,
        artifact="weights",
        tags={} if teacher is None else {"millrace.teacher": teacher.name},
        chosen={
            "batch_size": spec.batch_rows,
            "learning_rate": spec.peak_rate,
            "num_workers": spec.workers,
        },
    )


def fit_rows(
    pipeline: Pipeline, snapshot: snapshots.Snapshot, tokenizer: TextTokenizer | None = None
) -> Encoding:
    """Return an encoding fitted on the train split."""
    columns = (*snapshot.schema.features, snapshot.schema.target)
    rows = snapshots.scan(snapshot, "train", pipeline.dataset.split, columns=columns)
    return fit_encoding(snapshot.schema, rows, tokenizer)


def _tokenizer(pipeline: Pipeline, snapshot: snapshots.Snapshot) -> TextTokenizer | None:
    """Return the tokenizer for the text column; None if there is no text column."""
    from millrace.models.families.pretrained import load_tokenizer

    column = text_column(snapshot.schema)
    if column is None:
        return None
    shares = pipeline.dataset.split
    batches = snapshots.scan(snapshot, "train", shares, columns=(column,))
    texts = (text for batch in batches for text in batch[column].to_pylist() if text)
    return load_tokenizer(pipeline.model, pipeline.folder, texts)


def require_rows(
    pipeline: Pipeline, snapshot: snapshots.Snapshot, train_rows: int, workers: int
) -> None:
    """Refuse a snapshot whose splits are too small for training and evaluation.

    Raises:
        InputError: a split has too few rows.
    """
    shares = pipeline.dataset.split
    least = {"train": 2 * workers, "validation": 1, "test": 1}
    found = {
        "train": train_rows,
        "validation": snapshots.count_rows(snapshot, "validation", shares),
        "test": snapshots.count_rows(snapshot, "test", shares),
    }
    if all(found[split] >= least[split] for split in least):
        return
    raise InputError(
        "there are too few rows for training and evaluation",
        seen=", ".join(f"{split} {rows}" for split, rows in found.items()),
        valid=", ".join(f"{split} at least {rows}" for split, rows in least.items()),
        hint="provide more rows with different keys, or change dataset.split",
    )


def describe_epoch(metrics: Mapping[str, Any]) -> str:
    """Return the validation metrics, the throughput and a long wait for rows as text."""
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if "validation" in name]
    shown.append(f"{metrics['samples_per_second']:,.0f} samples/s")
    if (waited := metrics.get("data_wait_share", 0.0)) >= LONG_WAIT:
        shown.append(f"{waited:.0%} of the time waiting for rows")
    return "  ".join(shown)
