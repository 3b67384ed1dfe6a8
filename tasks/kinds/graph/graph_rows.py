"""The rows that a `graph` model is measured on, and a version's metric on them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.models.common.array_file import ArrayWriter
from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.comparison.paired_scores import PairedScores
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.data.schema import Category
from millrace.models.inference.answers import NumberAnswers, answers_of
from millrace.models.inference.features import Encoding
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.row_batches import answer_rows
from millrace.tasks.kinds.compared_rows import slice_columns, slice_values
from millrace.tasks.kinds.graph.graph_files import GraphFiles


def split_rows(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    encoding: Encoding,
    folder: Path,
    split: Literal["validation", "test"] = "test",
) -> tuple[Array, Array]:
    """Return a split as `(features [rows, raw_width], target [rows])`, memory-mapped, read-only.

    Args:
        pipeline: gives the shares of the splits.
        snapshot: the rows.
        encoding: the encoding of rows as tensors.
        folder: where the arrays are written, as npy files.
        split: the split.

    Raises:
        InputError: the split has no rows.
    """
    count = snapshots.count_rows(snapshot, split, pipeline.dataset.split)
    if not count:
        share = getattr(pipeline.dataset.split, split)
        raise InputError(
            f"the {split} split has no rows",
            seen=f"{snapshot.rows} rows in total, {share:.0%} of them for {split}",
            valid="at least one row in each split",
            hint=f"provide more rows, or raise dataset.split.{split}",
        )
    columns = (*snapshot.schema.features, snapshot.schema.target)
    files = [folder / f"{split}.{name}.npy" for name in ("features", "target")]
    with ArrayWriter(files[0], count) as features, ArrayWriter(files[1], count) as target:
        for batch in snapshots.scan(snapshot, split, pipeline.dataset.split, columns=columns):
            features.append(encoding.encode_for_comparison(batch))
            target.append(encoding.encode_target(batch))
    return np.load(files[0], mmap_mode="r"), np.load(files[1], mmap_mode="r")


def metric_of(
    files: GraphFiles, pipeline: Pipeline, snapshot: snapshots.Snapshot, metric_name: str
) -> float | None:
    """Return a registered version's metric on a test split.

    Return None if the metric of this version is not `metric_name`.

    Raises:
        MillraceError: the rows cannot be read, or the model cannot answer them.
        KeyError: the rows lack a column that the model needs.
    """
    meaning = answers_of(files.encoding)
    if meaning.metric != metric_name:
        return None
    session = OnnxSession(files.model, threads=this_machine().cores)
    with tempfile.TemporaryDirectory() as folder:
        features, target = split_rows(pipeline, snapshot, files.encoding, Path(folder))
        answers = answer_rows(session.answer, features, files.encoding.input)
        return meaning.metric_of_answers(answers, target)


def paired_scores(
    first: GraphFiles,
    second: GraphFiles,
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    columns: Sequence[str] | None,
) -> PairedScores | None:
    """Return the scores of two registered versions on the same test split.

    Return None if one predicts classes and the other one numbers.

    Args:
        first: the first version.
        second: the second version.
        pipeline: gives the shares of the splits.
        snapshot: the rows.
        columns: the columns whose values are slices; None: those with few values.

    Raises:
        MillraceError: the rows cannot be read, or a model cannot answer them.
        KeyError: the rows lack a column that a model needs.
    """
    both = [_RowScores(each) for each in (first, second)]
    if both[0].meaning.metric != both[1].meaning.metric:
        return None
    names = slice_columns(snapshot, columns)
    slices: dict[str, list[Array]] = {name: [] for name in names}
    scores: list[list[Array]] = [[], []]
    targets = []
    for batch in snapshots.scan(snapshot, "test", pipeline.dataset.split):
        target = second.encoding.encode_target(batch)
        targets.append(target)
        for each, found in zip(both, scores, strict=True):
            found.append(each.of(batch, target, second.encoding.labels))
        for name, values in slices.items():
            values.append(slice_values(batch.column(name).to_pylist()))
    one, two = (np.concatenate(each) for each in scores)
    exact = np.concatenate(targets).astype(np.float64)
    is_number = isinstance(both[0].meaning, NumberAnswers)
    return PairedScores(
        "r2" if is_number else "accuracy",
        one,
        two,
        np.ones(len(one)),
        float(exact.var()) if is_number else 1.0,
        {name: np.concatenate(values) for name, values in slices.items()},
    )


class _RowScores:
    """Scores a version's answers row by row."""

    def __init__(self, files: GraphFiles) -> None:
        self._encoding = files.encoding
        self.meaning = answers_of(files.encoding)
        self._session = OnnxSession(files.model, threads=this_machine().cores)

    def of(self, batch: pa.RecordBatch, target: Array, labels: tuple[Category, ...]) -> Array:
        """Return 1 for each right row and else 0, or the squared errors, float64 `[rows]`.

        Args:
            batch: rows of the snapshot.
            target: their targets, as positions in `labels` or as numbers.
            labels: the classes that the targets are positions of; another version may have others.
        """
        features = self._encoding.encode_for_comparison(batch)
        answers = answer_rows(self._session.answer, features, self._encoding.input)
        if isinstance(self.meaning, NumberAnswers):
            errors = answers[:, 0].astype(np.float64) - target.astype(np.float64)
            return np.asarray(np.square(errors))
        places = {label: place for place, label in enumerate(labels)}
        mine = np.array([places.get(label, -1) for label in self._encoding.labels])
        return np.asarray(mine[answers.argmax(axis=1)] == target, dtype=np.float64)


def first_rows(pipeline: Pipeline, snapshot: snapshots.Snapshot, rows: int) -> pa.Table:
    """Return the feature columns of the first rows of the test split, not encoded."""
    batches, left = [], rows
    columns, shares = snapshot.schema.features, pipeline.dataset.split
    for batch in snapshots.scan(snapshot, "test", shares, columns=columns):
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if left <= 0:
            break
    return pa.Table.from_batches(batches)
