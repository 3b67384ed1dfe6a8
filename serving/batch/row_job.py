"""Batch jobs with an ONNX model: rows are encoded where they are read; each actor has a session."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset

from millrace.models.common.arrays import Array
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.split import hash_keys, hash_rows
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import TEXT, Encoding, Feature
from millrace.models.inference.model_input import FEATURES
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.row_batches import PLACES, ROWS, answer_rows
from millrace.serving.batch.actor import ActorContext, in_actors
from millrace.serving.batch.beside_online.pause_file import Wait, go_on
from millrace.serving.batch.block_size import Blocks, Load, blocks_of
from millrace.serving.batch.carried_columns import carried_fields, carry
from millrace.serving.batch.input.input_pieces import cells_of, declared_keys
from millrace.serving.batch.job import DEAD, ERROR, ROW, Answers
from millrace.serving.batch.monitoring.drift import Bins

ANSWER_BYTES = 48
"""Estimated bytes per row of the output."""
TOKENS = "tokens"
"""Column with the number of tokens of a text, as the model reads it."""
SCORES = "scores"
"""Column of the output with the most probable classes, if `batch.scores` asks for them."""


@dataclass(frozen=True)
class RowJob:
    """A batch job with an ONNX model, as it is sent to readers and actors.

    Attributes:
        model: the registered model.
        version: the version that scores.
        digest: sha256 of the version's file.
        onnx: the ONNX file, on the node of the driver.
        encoding: turns rows into tensors.
        key: columns that identify a row; if empty, a hash of the row's features is the key.
        dataset_columns: the columns of the dataset; empty if the dataset is not known.
        threads: threads of each session.
        batch_size: rows in one call of the session, unless rows are texts.
        batch_tokens: tokens in one call, if rows are texts.
        bins: bins of the columns whose drift is measured; for texts, bins of `TOKENS`.
        output_bins: bins of the output columns whose drift is measured.
        carried: columns of the input that are written beside the predictions.
        top_scores: number of classes whose probabilities are written, the largest first; 0: none.
    """

    model: str
    version: int
    digest: str
    onnx: Path
    encoding: Encoding
    key: tuple[str, ...] = ()
    dataset_columns: tuple[Column, ...] = ()
    threads: int = 1
    batch_size: int = ROWS
    batch_tokens: int = PLACES
    bins: tuple[Bins, ...] = ()
    output_bins: tuple[Bins, ...] = ()
    carried: tuple[str, ...] = ()
    top_scores: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the features."""
        return tuple(feature.name for feature in self.encoding.features)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of the features, and those that `batch.columns` names."""
        named = (name for name in self.carried if name not in self.key)
        return tuple(dict.fromkeys((*self.features, *named)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that the job reads, as far as they exist."""
        return tuple(dict.fromkeys((KEY, *self.key, *self.features, *self.carried)))

    @property
    def advice(self) -> str:
        """Hint of the error about an input without the needed columns."""
        return "score rows with the columns that the model was trained on"

    @property
    def output(self) -> pa.Schema:
        """The columns of every table of predictions; a prediction has its label's type."""
        return pa.schema(
            [
                (KEY, pa.string()),
                ("prediction", self._label_type),
                ("score", pa.float32()),
                *([(SCORES, self._scores_type)] if self.top_scores else []),
                ("model_version", pa.int32()),
                (ROW, pa.int64()),
                *carried_fields(self.carried, self.dataset_columns),
            ]
        )

    @property
    def _label_type(self) -> pa.DataType:
        labels = self.encoding.labels
        return pa.array(labels).type if labels else pa.float64()

    @property
    def _scores_type(self) -> pa.DataType:
        return pa.list_(pa.struct([("label", self._label_type), ("score", pa.float32())]))

    @property
    def folder(self) -> Path:
        """The folder of the model's file."""
        return self.onnx.parent

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's file."""
        return (self.onnx,)

    def moved(self, folder: Path) -> "RowJob":
        """Return the same job with its file in another folder."""
        return replace(self, onnx=folder / self.onnx.name)

    def parameters(self) -> Mapping[str, Any]:
        """Return the settings that change the answers: column types and batch sizes."""
        columns = [asdict(column) for column in self.dataset_columns]
        return {
            "held": columns,
            "batch_size": self.batch_size,
            "batch_tokens": self.batch_tokens,
            **({"carried": list(self.carried)} if self.carried else {}),
            **({"top_scores": self.top_scores} if self.top_scores else {}),
        }

    def blocks(self, load: Load) -> Blocks:
        """Return the block sizes; the actors read the rows if there are enough pieces."""
        call = self.batch_size * (4 * self.encoding.input.width + 64)
        return blocks_of(load, self.batch_size, call, ANSWER_BYTES)

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, `features` and `error` for every row.

        A row that cannot be encoded (a missing value where none is allowed, an unknown category)
        has the reason in `error`. Cells are read as in ingestion, also cells that the input stores
        as text. A missing column counts as null.

        `_key` is the input's own column `_key`. Without this column, `_key` is the key columns,
        joined as in the dataset. Without key columns, `_key` is a hash of the row's features as the
        model reads them. The hash depends neither on other columns nor on the column types of the
        input. The hash is not the `_key` of the same row in a dataset, where the hash covers every
        column, including the target.
        """
        features = self.encoding.encode(self._read(rows))
        keys = declared_keys(rows, self.key, self.dataset_columns)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
        columns = {
            KEY: self._hashed(rows, features) if keys is None else keys,
            FEATURES: lists,
            ERROR: pa.array(self.encoding.errors(features), pa.string()),
        }
        return pa.table({**columns, **carry(rows, self.carried, self.dataset_columns)})

    def compared(
        self, rows: pa.RecordBatch | pa.Table, encoded: pa.Table
    ) -> pa.RecordBatch | pa.Table:
        """Return the columns of the input; for texts, the number of tokens that the model reads."""
        tokenizer = self.encoding.tokenizer
        if tokenizer is None:
            return rows
        ids = _features(encoded, self.encoding.raw_width)
        lengths = np.count_nonzero(ids != tokenizer.padding, axis=1)
        return pa.table({TOKENS: pa.array(lengths, mask=ids[:, 0] < 0)})

    def request(self, rows: pa.RecordBatch | pa.Table) -> dict[str, Array]:
        """Return the inputs that a client would send to the live model for these rows."""
        return self.encoding.request(self._read(rows))

    def answer_rows(self, rows: Dataset, context: ActorContext) -> Dataset:
        """Answer rows in a pool of actors."""
        return in_actors(rows, self, context)

    def worker(self, wait: Wait = go_on) -> "Scorer":
        """Open a session."""
        return Scorer(self, wait)

    def _read(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        return pa.table({f.name: self._cells(rows, f) for f in self.encoding.features})

    def _cells(self, rows: pa.RecordBatch | pa.Table, feature: Feature) -> pa.Array:
        """Return the column of a feature.

        In a column of booleans, true becomes 1 and false becomes 0. A cell that is not a boolean
        becomes infinity.
        """
        cells = cells_of(rows, feature.name)
        column = next(
            (column for column in self.dataset_columns if column.name == feature.name), None
        )
        if feature.kind != "number" or column is None or column.type != "bool":
            return cells
        read = cast(cells, column)
        values = read.values.cast(pa.float64())
        return pa.compute.if_else(pa.array(read.unparsable), float("inf"), values)

    def _hashed(self, rows: pa.RecordBatch | pa.Table, features: Array) -> pa.Array:
        if self.encoding.tokenizer is not None:
            # The whole text, even if the model reads only its beginning.
            cells = cells_of(rows, self.encoding.features[0].name)
            texts = cast(cells, Column("", "string")).values
            return hash_keys(hash_rows(pa.record_batch({TEXT: texts})))
        # Give every missing value the same bits.
        cells = np.where(np.isnan(features), np.float32("nan"), features)
        starts = np.arange(0, cells.size + 1, cells.shape[1], dtype=np.int32)
        lists = pa.ListArray.from_arrays(starts, cells.ravel())
        return hash_keys(hash_rows(pa.record_batch({FEATURES: lists})))


class Scorer:
    """Scores tables of rows with one ONNX session."""

    def __init__(self, job: RowJob, wait: Wait = go_on) -> None:
        self.job, self.wait = job, wait
        self.session = OnnxSession(job.onnx, job.threads)
        self.meaning = answers_of(job.encoding)

    def __call__(self, rows: pa.Table) -> Answers:
        """Return the predictions; a row whose score is not finite is refused.

        Args:
            rows: a table with `_row`, `_key` and `features`.
        """
        read, output = self.job.encoding.input, self.job.output
        features = _features(rows, read.width)
        calls = self.job.batch_size, self.job.batch_tokens
        answers = answer_rows(self._answer, features, read, *calls)
        scores = self.meaning.score(answers)
        top = self.job.top_scores
        columns = [
            rows[KEY],
            pa.array(self.meaning.prediction(answers), output.field("prediction").type),
            pa.array(scores, pa.float32()),
            *([self._best(answers, top, output.field(SCORES).type)] if top else []),
            pa.repeat(pa.scalar(self.job.version, pa.int32()), len(rows)),
            rows[ROW],
            *(rows[name] for name in self.job.carried),
        ]
        table, finite = pa.table(columns, schema=output), np.isfinite(scores)
        if finite.all():
            return Answers(table, DEAD.empty_table())
        bad = rows.filter(pa.array(~finite))
        reason = pa.repeat("the model's answer is not a number", len(bad))
        refused = pa.table(
            [bad[ROW], bad[KEY], reason, pa.nulls(len(bad), pa.string())], DEAD.names
        )
        return Answers(table.filter(pa.array(finite)), refused.cast(DEAD))

    def _answer(self, batch: Array) -> Array:
        self.wait()
        return self.session.answer(batch)

    def _best(self, answers: Array, top: int, kind: pa.DataType) -> pa.Array:
        """Return the most probable classes of each row with their probabilities."""
        best = np.argsort(-answers, axis=1, kind="stable")[:, :top]
        labels = pa.array([self.job.encoding.labels[place] for place in best.ravel()])
        values = pa.array(np.take_along_axis(answers, best, axis=1).ravel(), pa.float32())
        pairs = pa.StructArray.from_arrays([labels, values], fields=list(kind.value_type))
        starts = np.arange(0, best.size + 1, best.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(starts, pairs).cast(kind)


def _features(rows: pa.Table, width: int) -> Array:
    """Return encoded rows as one array, `[rows, width]`."""
    flat = rows[FEATURES].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(-1, width))
