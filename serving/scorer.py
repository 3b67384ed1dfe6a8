"""The actor of a batch job: one ONNX Runtime session, rows in, predictions out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from models.answers import answers_of
from models.arrays import Array
from models.columns import KEY
from models.features import FEATURES, Encoding
from models.keys import hash_keys, hash_rows, joined_keys
from models.onnx_session import OnnxSession


@dataclass(frozen=True)
class ScoreJob:
    """What every actor needs to know.

    Attributes:
        model: registered model.
        version: its version.
        digest: sha256 of the file.
        onnx: the file, where every actor can read it.
        encoding: rows to tensors.
        key: columns that identify a row; a hash of the encoded row when empty.
        threads: threads of each session.
    """

    model: str
    version: int
    digest: str
    onnx: Path
    encoding: Encoding
    key: tuple[str, ...] = ()
    threads: int = 1


class Scorer:
    """Answers tables of rows with tables of predictions."""

    def __init__(self, job: ScoreJob) -> None:
        self.job = job
        self.session = OnnxSession(job.onnx, job.threads)
        self.meaning = answers_of(job.encoding)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `_key`, `prediction`, `score`, `model_version` and `error` for every row.

        A row that cannot be encoded (a missing value in a column that may not miss any, an
        unknown category) is kept, with no prediction and the reason in `error`.

        `_key` is the input's own, as a dataset's table has it; or else the key columns, joined;
        or else a hash of the row's features as the model reads them. That hash depends neither on
        other columns nor on the types that a reader gave, and is not the `_key` that the same row
        has in a dataset, where the hash covers every column, the target as well.
        """
        features = self.job.encoding.encode(rows)
        errors = self.job.encoding.errors(features)
        good = np.array([error is None for error in errors], dtype=bool)
        answers = self.session.answer(np.where(good[:, None], features, 0.0).astype(np.float32))
        schema = output_schema(self.job.encoding)
        predictions = pa.array(self.meaning.prediction(answers), schema.field("prediction").type)
        scores = pa.array(self.meaning.score(answers), pa.float32())
        columns = [
            _keys(rows, self.job.key, features),
            _masked(predictions, good),
            _masked(scores, good),
            pa.repeat(pa.scalar(self.job.version, pa.int32()), len(rows)),
            pa.array(errors, type=pa.string()),
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


def _keys(rows: pa.Table, key: tuple[str, ...], features: Array) -> pa.Array:
    if KEY in rows.column_names:
        return rows[KEY].cast(pa.string()).combine_chunks()
    if key:
        return joined_keys(
            pa.record_batch({name: rows[name].combine_chunks() for name in key}), key
        )
    # Every missing value has the same bits.
    cells = np.where(np.isnan(features), np.float32("nan"), features)
    starts = np.arange(0, cells.size + 1, cells.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(starts, cells.ravel())
    return hash_keys(hash_rows(pa.record_batch({FEATURES: lists})))


def _masked(values: pa.Array, keep: Array) -> pa.Array:
    return pc.if_else(pa.array(keep), values, pa.scalar(None, type=values.type))
