"""The rows that a `graph` model is measured on, and a version's metric on them."""

import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.models.common.array_file import ArrayWriter
from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.row_batches import answer_rows
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
            features.append(encoding.encode(batch))
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
