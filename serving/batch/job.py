"""What a batch job knows of its model, whatever the family."""

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
"""Place of a row in the input: the file's number times `FILE_ROWS`, and the row's in the file."""
FILE_ROWS = 2**40
RowNumbers = npt.NDArray[np.int64]
"""`ROW`s."""
ERROR = "error"
TOKENS_IN, TOKENS_OUT = "prompt_tokens", "completion_tokens"
"""Columns of the output of a model that has tokens."""
REFUSED = pa.schema([(ROW, pa.int64()), (KEY, pa.string()), ("reason", pa.string())])
DEAD = REFUSED.append(pa.field("row", pa.string()))
"""A row that was not scored: its place, its key, why, and the row as it was seen, as JSON."""


@dataclass(frozen=True)
class Answers:
    """What a model made of some rows.

    Attributes:
        rows: of the job's `output`, one for each row that was answered.
        refused: the others, of `DEAD`.
    """

    rows: pa.Table
    refused: pa.Table


class Job(Protocol):
    """What every reader and every actor needs to know; it travels to them by pickle."""

    @property
    def model(self) -> str:
        """The registered model."""
        ...

    @property
    def version(self) -> int:
        """Its version."""
        ...

    @property
    def digest(self) -> str:
        """The digest of the version's files."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a row; a hash of what the model reads when empty."""
        ...

    @property
    def dataset_columns(self) -> tuple[Column, ...]:
        """The columns as the dataset has them, as far as that is known."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that the job reads, as far as there are any."""
        ...

    @property
    def needed(self) -> tuple[str, ...]:
        """Those of them without which nothing can be scored, the key's left out."""
        ...

    @property
    def advice(self) -> str:
        """What to do about an input without the columns that are needed."""
        ...

    @property
    def output(self) -> pa.Schema:
        """The columns of the output, without that of the partition."""
        ...

    @property
    def bins(self) -> tuple[Bins, ...]:
        """The columns whose drift is measured, in the bins of the training data."""
        ...

    @property
    def output_bins(self) -> tuple[Bins, ...]:
        """The same for columns of the output."""
        ...

    @property
    def folder(self) -> Path:
        """Where the files of the model are, on the node of the driver."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Those files."""
        ...

    def moved(self, folder: Path) -> Self:
        """Return the same job with its files in another folder."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return what else changes the answers, ready for JSON."""
        ...

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, what the model reads, and `ERROR` where a row cannot be read."""
        ...

    def compared(
        self, rows: pa.RecordBatch | pa.Table, encoded: pa.Table
    ) -> pa.RecordBatch | pa.Table:
        """Return the columns of `bins`.

        Args:
            rows: as they were read.
            encoded: what `encoded` returned of them.
        """
        ...

    def blocks(self, load: Load) -> Blocks:
        """Return how rows go through Ray."""
        ...
