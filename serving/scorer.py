"""The actor of a batch job: one ONNX Runtime session, rows in, predictions out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from models.answers import answers_of
from models.arrays import Array
from models.columns import KEY
from models.features import Encoding
from models.keys import hash_rows, row_keys
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
        key: columns that identify a row; a hash of the whole row when empty.
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
        """
        features = self.job.encoding.encode(rows)
        errors = self.job.encoding.errors(features)
        good = np.array([error is None for error in errors], dtype=bool)
        answers = self.session.answer(np.where(good[:, None], features, 0.0).astype(np.float32))
        predictions = pa.array(self.meaning.prediction(answers))
        scores = pa.array(self.meaning.score(answers), type=pa.float32())
        return pa.table(
            {
                KEY: _keys(rows, self.job.key),
                "prediction": _masked(predictions, good),
                "score": _masked(scores, good),
                "model_version": pa.repeat(pa.scalar(self.job.version, pa.int32()), len(rows)),
                "error": pa.array(errors, type=pa.string()),
            }
        )


def _keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Array | pa.ChunkedArray:
    if KEY in rows.column_names:
        return rows[KEY]
    batch = rows.combine_chunks().to_batches()[0]
    return row_keys(batch, key, hash_rows(batch))


def _masked(values: pa.Array, keep: Array) -> pa.Array:

    return pc.if_else(pa.array(keep), values, pa.scalar(None, type=values.type))
