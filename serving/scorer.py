"""A batch job's rows: encoded where they are read, answered by actors with one session each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from models.answers import answers_of
from models.arrays import Array
from models.casts import cast
from models.columns import KEY, Column
from models.features import TEXT, Encoding, Feature
from models.keys import hash_keys, hash_rows, joined_keys
from models.model_input import FEATURES
from models.onnx_session import OnnxSession
from models.pieces import answered
from models.source import Unreadable

SHOWN = 200
"""Characters of an unreadable line that its error shows."""


@dataclass(frozen=True)
class ScoreJob:
    """What every reader and every actor needs to know.

    Attributes:
        model: registered model.
        version: its version.
        digest: sha256 of the file.
        onnx: the file, where every actor can read it.
        encoding: rows to tensors.
        key: columns that identify a row; a hash of the encoded row when empty.
        held: columns as the dataset holds them, as far as that is known.
        threads: threads of each session.
    """

    model: str
    version: int
    digest: str
    onnx: Path
    encoding: Encoding
    key: tuple[str, ...] = ()
    held: tuple[Column, ...] = ()
    threads: int = 1

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that are looked at, where they are there."""
        return tuple(dict.fromkeys((KEY, *self.key, *(f.name for f in self.encoding.features))))

    def column(self, name: str) -> Column | None:
        """Return the column as the dataset holds it, None where that is not known."""
        return next((column for column in self.held if column.name == name), None)


def encoded(rows: pa.RecordBatch | pa.Table, job: ScoreJob) -> pa.Table:
    """Return `_key`, `features` and `error` for every row, as `Scorer` takes them.

    A row that cannot be encoded (a missing value in a column that may not miss any, an unknown
    category) is kept, with the reason in `error`. A cell means what it means to ingestion, also
    when it comes as text; a column that is not there counts as null.

    `_key` is the input's own, as a dataset's table has it; or else the key columns, joined, as the
    dataset holds them; or else a hash of the row's features as the model reads them. That hash
    depends neither on other columns nor on the types that a reader gave, and is not the `_key` that
    the same row has in a dataset, where the hash covers every column, the target as well.
    """
    cells = {f.name: _numbers(_cells(rows, f.name), f, job) for f in job.encoding.features}
    features = job.encoding.encode(pa.table(cells))
    return _table(_keys(rows, job, features), features, job.encoding.errors(features))


def unreadable(lines: Sequence[Unreadable], job: ScoreJob) -> pa.Table:
    """Return lines that are no rows as `encoded` returns rows: no key, and the line in `error`."""
    features = job.encoding.input.blank(len(lines))
    errors = [f"{line.reason}: {line.line[:SHOWN]}" for line in lines]
    return _table(pa.nulls(len(lines), pa.string()), features, errors)


class Scorer:
    """Answers tables of rows with tables of predictions."""

    def __init__(self, job: ScoreJob) -> None:
        self.job = job
        self.session = OnnxSession(job.onnx, job.threads)
        self.meaning = answers_of(job.encoding)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `_key`, `prediction`, `score`, `model_version` and `error` for every row.

        Args:
            rows: what `encoded` returned; a row with an error gets no prediction.
        """
        good = rows["error"].is_null().to_numpy()
        flat = rows[FEATURES].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        read = self.job.encoding.input
        features = np.where(good[:, None], flat.reshape(-1, read.width), read.blank(1))
        answers = answered(self.session.answer, features, read)
        schema = output_schema(self.job.encoding)
        predictions = pa.array(self.meaning.prediction(answers), schema.field("prediction").type)
        scores = pa.array(self.meaning.score(answers), pa.float32())
        columns = [
            rows[KEY],
            _masked(predictions, good),
            _masked(scores, good),
            pa.repeat(pa.scalar(self.job.version, pa.int32()), len(rows)),
            rows["error"],
        ]
        return pa.table(columns, schema=schema)


def output_schema(encoding: Encoding) -> pa.Schema:
    """Return the columns of every table of predictions; a prediction has its label's type."""
    prediction = pa.array(encoding.labels).type if encoding.labels else pa.float64()
    return pa.schema(
        [
            (KEY, pa.string()),
            ("prediction", prediction),
            ("score", pa.float32()),
            ("model_version", pa.int32()),
            ("error", pa.string()),
        ]
    )


def _table(keys: pa.Array, features: Array, errors: Sequence[str | None]) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
    return pa.table({KEY: keys, FEATURES: lists, "error": pa.array(errors, pa.string())})


def _cells(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return a column in one piece."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows)
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(cells: pa.Array, feature: Feature, job: ScoreJob) -> pa.Array:
    """Return cells of true and false as 1 and 0, infinite where they are neither."""
    column = job.column(feature.name)
    if feature.kind != "number" or column is None or column.type != "bool":
        return cells
    read = cast(cells, column)
    return pc.if_else(pa.array(read.unparsable), float("inf"), read.values.cast(pa.float64()))


def _keys(rows: pa.RecordBatch | pa.Table, job: ScoreJob, features: Array) -> pa.Array:
    if KEY in rows.schema.names:
        return _cells(rows, KEY).cast(pa.string())
    if job.key:
        texts = {name: _key_cells(_cells(rows, name), name, job) for name in job.key}
        return joined_keys(pa.record_batch(texts), job.key)
    if job.encoding.tokenizer is not None:  # all of the text, not what is left where it is cut
        texts = cast(_cells(rows, job.encoding.features[0].name), Column("", "string")).values
        return hash_keys(hash_rows(pa.record_batch({TEXT: texts})))
    # Every missing value has the same bits.
    cells = np.where(np.isnan(features), np.float32("nan"), features)
    starts = np.arange(0, cells.size + 1, cells.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(starts, cells.ravel())
    return hash_keys(hash_rows(pa.record_batch({FEATURES: lists})))


def _key_cells(cells: pa.Array, name: str, job: ScoreJob) -> pa.Array:
    """Return cells as text as ingestion writes it; what is not of the held type stays as it is."""
    text = cast(cells, Column(name, "string")).values
    column = job.column(name)
    return (
        text if column is None else pc.coalesce(cast(cells, column).values.cast(pa.string()), text)
    )


def _masked(values: pa.Array, keep: Array) -> pa.Array:
    return pc.if_else(pa.array(keep), values, pa.scalar(None, type=values.type))
