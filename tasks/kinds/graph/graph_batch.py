"""Batch scoring with a `graph` model: the job, its drift reference, and the live model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.export.onnx.graph_certificate import GraphCertificate
from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.data.snapshots import Snapshot, sample_rows
from millrace.models.inference.answers import answers_of
from millrace.models.inference.row_batches import PLACES
from millrace.models.registry.version_files import Package
from millrace.serving.batch.carried_columns import select_carried
from millrace.serving.batch.input.input_pieces import cells_of
from millrace.serving.batch.input.row_sample import Example
from millrace.serving.batch.job import ERROR, ROW
from millrace.serving.batch.monitoring.agreement import (
    Difference,
    class_difference,
    number_difference,
)
from millrace.serving.batch.monitoring.drift import Bins, bins_of_values
from millrace.serving.batch.row_job import TOKENS, RowJob
from millrace.serving.triton.client import TritonClient
from millrace.tasks.batch.drift_reference import (
    PREDICTION,
    SAMPLE_ROWS,
    bins_of,
    bins_unless_gone,
)
from millrace.tasks.kinds.certified import certificate_of
from millrace.tasks.kinds.graph.graph_files import graph_files
from millrace.tasks.kinds.steps import LiveSample

CALL_ROWS = 1024
"""Rows in one call of the model, unless the pipeline file sets `batch.batch_size`."""


def row_job(
    pipeline: Pipeline,
    package: Package,
    installation: Installation,
    dataset_columns: tuple[Column, ...],
) -> RowJob:
    """Return the batch job that scores rows with a version.

    Args:
        pipeline: the pipeline with the batch settings.
        package: the version's files.
        installation: not used.
        dataset_columns: the columns with their types in the dataset; empty if there is no dataset.
    """
    files = graph_files(package)
    version, batch = files.version, pipeline.batch
    key, classes = batch.key or pipeline.dataset.key, len(files.encoding.labels)
    return RowJob(
        *(pipeline.name, version.version, version.digest),
        files.model,
        files.encoding,
        key,
        dataset_columns,
        batch.threads_per_actor,
        batch.batch_size or CALL_ROWS,
        batch.max_num_batched_tokens or PLACES,
        carried=select_carried(batch.columns, key),
        top_scores=_top_scores(batch.scores, classes, files.version.model),
    )


def _top_scores(wanted: int | Literal["all"] | None, classes: int, model: str) -> int:
    """Return the number of classes whose probabilities are written.

    Raises:
        InputError: the model predicts a number, which has no probabilities.
    """
    if wanted is None:
        return 0
    if not classes:
        raise InputError(
            f"batch.scores is for classes, and {model} predicts a number",
            seen=f"batch.scores: {wanted}",
            hint="leave batch.scores out",
        )
    return classes if wanted == "all" else min(wanted, classes)


def with_row_bins(job: RowJob, snapshot: Snapshot) -> RowJob:
    """Return the job with the reference bins of the features and of the predictions."""
    features, target = bins_of(snapshot)
    bins = (*features, *bins_unless_gone(partial(text_bins, job), snapshot))
    answers = bins_unless_gone(partial(answer_bins, job), snapshot)
    return replace(job, bins=bins, output_bins=answers or target)


def answer_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the model's predictions for rows of the snapshot.

    Returns:
        Empty for a text model, because a text model is slow. Also empty if the model can answer
        no row of the sample. Without these bins, a job's predictions are compared with the target.
    """
    if job.encoding.tokenizer is not None:
        return ()
    rows = sample_rows(snapshot, job.features, SAMPLE_ROWS)
    encoded = job.encoded(rows)
    good = encoded.filter(pc.is_null(encoded[ERROR])).drop_columns([ERROR])
    if not good.num_rows:
        return ()
    numbers = pa.array(range(good.num_rows), pa.int64())
    answers = job.worker()(good.append_column(ROW, numbers)).rows[PREDICTION]
    codes = bool(job.encoding.labels)
    return (bins_of_values(PREDICTION, answers.combine_chunks(), codes=codes),)


def text_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the lengths of texts, in the tokens that the model reads.

    Returns:
        Empty for a model that reads no text.
    """
    if job.encoding.tokenizer is None:
        return ()
    rows = sample_rows(snapshot, job.features, SAMPLE_ROWS)
    lengths = cells_of(job.compared(rows, job.encoded(rows)), TOKENS)
    return (bins_of_values(TOKENS, lengths),)


def sample_size(job: RowJob) -> LiveSample:
    """Return how many rows of the job are compared with the live model's answers."""
    return LiveSample(rows=64, seconds=10.0, share=0.05)


@dataclass(frozen=True)
class LiveRows:
    """A live model of the kind `graph`.

    Attributes:
        job: the job that scored the rows.
        ask: a function that returns the outputs for a request, with a timeout in seconds.
        tolerance: the largest allowed difference, in addition to rounding, of two answers to the
            same row. Answers differ because int8 with dynamic ranges depends on the other rows of
            the batch.
    """

    job: RowJob
    ask: Callable[[Mapping[str, Array], float], Mapping[str, Array]]
    tolerance: float = 0.0

    @property
    def answers(self) -> tuple[str, ...]:
        """The output columns to compare: the prediction, and the probability of a class."""
        return ("prediction", "score")

    def difference(self, example: Example, seconds: float) -> Difference:
        """Request the live answer to one row, and compare it with the job's answer."""
        encoding = self.job.encoding
        outputs = self.ask(self.job.request(example.row), seconds)
        live = outputs[answers_of(encoding).output][0]
        written, score = example.written["prediction"], example.written["score"]
        if encoding.labels:
            return class_difference(written, score, live, encoding.labels, self.tolerance)
        return number_difference(written, float(live[0]), self.tolerance, encoding.target_std)


def live_rows(
    job: RowJob, package: Package, installation: Installation, client: TritonClient
) -> tuple[LiveRows, float]:
    """Return the live model, and 0.0 as the share of answers that may differ by chance."""

    def predict(request: Mapping[str, Array], seconds: float) -> Mapping[str, Array]:
        return client.predict(job.model, request, version=job.version, timeout=seconds)

    difference = certificate_of(package, GraphCertificate).golden_difference
    # Both the job's and the live answers may differ from PyTorch's by `difference`.
    return LiveRows(job, predict, 2 * difference), 0.0
