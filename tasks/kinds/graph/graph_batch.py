"""Batch scoring with a graph: the job, what its rows are compared with, and the live model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.arrays import Array
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.data.snapshots import Snapshot, sample_rows
from millrace.models.inference.answers import answers_of
from millrace.models.inference.row_batches import PLACES
from millrace.models.registry.version_files import Package
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
from millrace.tasks.kinds.graph.graph_evidence import graph_evidence
from millrace.tasks.kinds.graph.graph_files import graph_files
from millrace.tasks.kinds.steps import LiveSample

CALL_ROWS = 1024
"""Of one call of the model, where the pipeline file does not say."""


def row_job(
    pipeline: Pipeline, package: Package, installation: Installation, held: tuple[Column, ...]
) -> RowJob:
    """Return what scores rows with a version.

    Args:
        pipeline: how.
        package: the version's files.
        installation: not needed.
        held: columns as the dataset holds them; none where there is no dataset.
    """
    files = graph_files(package)
    version, batch = files.version, pipeline.batch
    return RowJob(
        *(pipeline.name, version.version, version.digest),
        files.model,
        files.encoding,
        batch.key or pipeline.dataset.key,
        held,
        batch.threads_per_actor,
        batch.batch_size or CALL_ROWS,
        batch.max_num_batched_tokens or PLACES,
    )


def with_row_bins(job: RowJob, snapshot: Snapshot) -> RowJob:
    """Return the job with the bins of the features and of the predictions."""
    features, target = bins_of(snapshot)
    bins = (*features, *bins_unless_gone(partial(text_bins, job), snapshot))
    answers = bins_unless_gone(partial(answer_bins, job), snapshot)
    return replace(job, bins=bins, output_bins=answers or target)


def answer_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of what the model predicts for the rows of the snapshot.

    Returns:
        Nothing for a model of texts, which are slow to answer, and where it can answer no row of
        the sample: predictions are then compared with the target.
    """
    if job.encoding.tokenizer is not None:
        return ()
    rows = sample_rows(snapshot, job.needed, SAMPLE_ROWS)
    encoded = job.encoded(rows)
    good = encoded.filter(pc.is_null(encoded[ERROR])).drop_columns([ERROR])
    if not good.num_rows:
        return ()
    numbers = pa.array(range(good.num_rows), pa.int64())
    answers = job.worker()(good.append_column(ROW, numbers)).rows[PREDICTION]
    codes = bool(job.encoding.labels)
    return (bins_of_values(PREDICTION, answers.combine_chunks(), codes=codes),)


def text_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the lengths of texts in tokens, as the model reads them.

    Returns:
        None for a model that reads no text.
    """
    if job.encoding.tokenizer is None:
        return ()
    rows = sample_rows(snapshot, job.needed, SAMPLE_ROWS)
    lengths = cells_of(job.compared(rows, job.encoded(rows)), TOKENS)
    return (bins_of_values(TOKENS, lengths),)


def sample_size(job: RowJob) -> LiveSample:
    """Return how many rows are asked of the live model."""
    return LiveSample(rows=64, seconds=10.0, share=0.05)


@dataclass(frozen=True)
class LiveRows:
    """A live graph.

    Attributes:
        job: the job that scored the rows.
        ask: returns the outputs for a request, within seconds.
        tolerance: largest difference, beside rounding, of two answers to the same row: int8 with
            dynamic ranges depends on the other rows of the batch.
    """

    job: RowJob
    ask: Callable[[Mapping[str, Array], float], Mapping[str, Array]]
    tolerance: float = 0.0

    @property
    def answers(self) -> tuple[str, ...]:
        """The prediction, and the probability of a class."""
        return ("prediction", "score")

    def difference(self, example: Example, seconds: float) -> Difference:
        """Request an answer to one row alone, and compare."""
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
    """Return the live model; of its answers none may differ by chance."""

    def predict(request: Mapping[str, Array], seconds: float) -> Mapping[str, Array]:
        return client.predict(job.model, request, version=job.version, timeout=seconds)

    difference = graph_evidence(package, installation).expected().difference
    # The job's answers and the live ones may both be so far from PyTorch's.
    return LiveRows(job, predict, 2 * difference), 0.0
