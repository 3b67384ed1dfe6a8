"""The interface of a batch job, for all kinds of models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.models.data.schema import KEY, Column
from millrace.serving.batch.block_size import Blocks, Load
from millrace.serving.batch.monitoring.drift import Bins

ROW = "_row"
"""Column: place of a row in the input, file number × `FILE_ROWS` + row number in the file."""
FILE_ROWS = 2**40
RowNumbers = npt.NDArray[np.int64]
"""Values of `ROW`."""
ERROR = "error"
TOKENS_IN, TOKENS_OUT = "prompt_tokens", "completion_tokens"
"""Columns of the output of a model that has tokens."""
OUTPUTS = frozenset(
    {
        *(KEY, ROW, "model_version", "prediction", "score"),
        *("completion", "finish_reason", TOKENS_IN, TOKENS_OUT),
    }
)
"""Columns that predictions always have, by the kind of model; others are carried from the input."""
REFUSED = pa.schema([(ROW, pa.int64()), (KEY, pa.string()), ("reason", pa.string())])
DEAD = REFUSED.append(pa.field("row", pa.string()))
"""Columns of a row that was not scored: place, key, reason, and the row as it was seen, in JSON."""


@dataclass(frozen=True)
class Answers:
    """The answers of a model to some rows.

    Attributes:
        rows: the answered rows, with the columns of the job's `output`.
        refused: the refused rows, with the columns of `DEAD`.
    """

    rows: pa.Table
    refused: pa.Table


class Job(Protocol):
    """A batch job, as it is sent, by pickle, to every reader and every actor."""

    @property
    def model(self) -> str:
        """The registered model."""
        ...

    @property
    def version(self) -> int:
        """The version of the model that scores."""
        ...

    @property
    def digest(self) -> str:
        """The digest of the version's files."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a row; if empty, a hash of what the model reads is the key."""
        ...

    @property
    def dataset_columns(self) -> tuple[Column, ...]:
        """The columns of the dataset; empty if the dataset is not known."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that the job reads, as far as they exist."""
        ...

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that the input must have, apart from the key columns."""
        ...

    @property
    def advice(self) -> str:
        """Hint of the error about an input without the needed columns."""
        ...

    @property
    def output(self) -> pa.Schema:
        """The schema of the output, without the partition column."""
        ...

    @property
    def bins(self) -> tuple[Bins, ...]:
        """The drift bins of columns that `compared` returns, made from the training data."""
        ...

    @property
    def output_bins(self) -> tuple[Bins, ...]:
        """The drift bins of columns of the output, made from the training data."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of the model's files, on the node of the driver."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's files."""
        ...

    def moved(self, folder: Path) -> Self:
        """Return the same job with its files in another folder."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return the settings besides model and key that change the answers, ready for JSON."""
        ...

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, the model's input and `ERROR` of each row.

        `ERROR` says why a row cannot be encoded. It is null for a row that can be encoded.
        """
        ...

    def compared(
        self, rows: pa.RecordBatch | pa.Table, encoded: pa.Table
    ) -> pa.RecordBatch | pa.Table:
        """Return a table with the columns whose drift is measured; `bins` names them.

        Args:
            rows: the rows as they were read.
            encoded: what `encoded` returned for these rows.
        """
        ...

    def blocks(self, load: Load) -> Blocks:
        """Return the sizes of the blocks in which rows go through Ray."""
        ...
