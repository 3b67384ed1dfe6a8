"""Bad rows of an ingestion, which are stored in a Delta table of their own.

Its columns are `reason`, `row` (JSON of the row as it was read), `source`, `at` (time in UTC),
`ingest` (a digest that identifies the ingestion), `file` and `record` (number of the row in the
file, from 1, without the header). This digest is also the Delta transaction identifier, so that an
ingestion is recorded only once. Tables of earlier versions get the last two columns when rows are
added; the rows of then have nulls there.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from millrace.models.common.arrays import Indices
from millrace.models.common.errors import TransientError
from millrace.models.data.row_checks import BAD, Checked, as_json, bad_rows
from millrace.models.data.sources.source import Chunk
from millrace.models.data.spool import Spool

MAX_ROWS = 100_000
"""Largest number of bad rows that are stored of one part; all bad rows are counted."""

NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}
"""Properties of the table: its log stays for ever, so it must not name values of rows that may be
erased."""
PLACED = pa.schema([*BAD, ("file", pa.string()), ("record", pa.int64())])
"""Bad rows and where they are; null if that is not known."""
_LABELS = pa.schema(
    [("source", pa.string()), ("at", pa.timestamp("us", "UTC")), ("ingest", pa.string())]
)
_SCHEMA = pa.schema([*BAD, *_LABELS, *list(PLACED)[len(BAD) :]])


def bad_of_chunk(chunk: Chunk, checked: Checked) -> tuple[pa.RecordBatch, Indices]:
    """Return the unreadable lines and the bad rows of a chunk, and their numbers in the file.

    Args:
        chunk: the chunk.
        checked: its rows after the check.

    Returns:
        A batch with the schema `BAD`, and the numbers, int64, from 1.
    """
    lines = bad_rows(
        [line.reason for line in chunk.unreadable],
        [as_json({"line": line.line}) for line in chunk.unreadable],
    )
    columns = zip(lines.columns, checked.bad.columns, strict=True)
    bad = pa.RecordBatch.from_arrays([pa.concat_arrays(pair) for pair in columns], schema=BAD)
    places = [chunk.unreadable_positions(), chunk.row_positions()[checked.places]]
    return bad, np.concatenate(places) + chunk.before + 1


@dataclass
class Quarantine:
    """Takes the bad rows of one part while it is read.

    Attributes:
        folder: staging folder.
        rows: number of bad rows.
        reasons: number of bad rows by reason.
        files: number of bad rows by path of their file.
    """

    folder: Path
    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._spool = Spool(self.folder / f"{uuid4().hex}.arrow", PLACED)
        self._digest = sha256()

    @property
    def room(self) -> int:
        """How many more bad rows can be stored."""
        return MAX_ROWS - self._spool.rows

    def add(self, bad: pa.RecordBatch, file: str = "", records: Indices | None = None) -> None:
        """Add bad rows.

        Args:
            bad: the rows, with the schema `BAD`.
            file: path of their file; empty if it is not known.
            records: number of each in the file, from 1; None if it is not known.
        """
        places = (
            pa.repeat(pa.scalar(file or None, pa.string()), bad.num_rows),
            pa.array(records) if file and records is not None else pa.nulls(bad.num_rows),
        )
        columns = [*bad.columns, places[0], places[1].cast(pa.int64())]
        if file and bad.num_rows:
            self.files[file] += bad.num_rows
        self.reasons.update(bad.column("reason").to_pylist())
        self.rows += bad.num_rows
        stored = pa.RecordBatch.from_arrays(columns, schema=PLACED).slice(0, self.room)
        for values in zip(*stored.to_pydict().values(), strict=True):
            self._digest.update("".join(f"{value}\0" for value in values).encode())
        self._spool.write(stored)

    def finish(self) -> "BadRows":
        """Return the bad rows; no more may be added."""
        self._spool.close()
        reasons = dict(self.reasons.most_common())
        files = dict(self.files.most_common())
        return BadRows(self._spool, self.rows, reasons, self._digest.hexdigest(), files)


@dataclass(frozen=True)
class BadRows:
    """The bad rows of one part, before they are published.

    Attributes:
        spool: the rows that are stored, with the schema `PLACED`.
        rows: number of bad rows.
        reasons: number of bad rows by reason, the most frequent first.
        digest: digest of the rows that are stored, and of their places.
        files: number of bad rows by path of their file, the most first.
    """

    spool: Spool
    rows: int
    reasons: Mapping[str, int]
    digest: str
    files: Mapping[str, int] = field(default_factory=dict)

    def publish(self, uri: str, source: str, rows_digest: str) -> None:
        """Append the rows in one commit, unless they are recorded already.

        Args:
            uri: URI of the quarantine table.
            source: the source, as the pipeline file names it.
            rows_digest: digest of the good rows.

        Raises:
            TransientError: another ingestion wrote to the quarantine table at the same time.
        """
        counted = repr((rows_digest, self.digest, sorted(self.reasons.items())))
        ingest = sha256(counted.encode()).hexdigest()[:32]
        if not self.rows or _is_recorded(uri, ingest):
            return
        labels = (source, datetime.now(UTC), ingest)
        batches = (_add_labels(batch, *labels) for batch in self.spool.reader())
        try:
            _leave_out_statistics(uri)
            write_deltalake(
                uri,
                pa.RecordBatchReader.from_batches(_SCHEMA, batches),
                mode="append",
                schema_mode="merge",
                configuration=NO_STATISTICS,
                commit_properties=CommitProperties(app_transactions=[Transaction(ingest, 1)]),
            )
        except CommitFailedError as error:
            raise TransientError(
                f"another ingestion wrote to the quarantine table {uri} at the same time",
                seen=error,
                hint="run again",
            ) from error


def _leave_out_statistics(uri: str) -> None:
    """Give the properties to a table of an earlier version; the writer sets those of a new one."""
    with suppress(TableNotFoundError):
        table = DeltaTable(uri)
        if not NO_STATISTICS.items() <= table.metadata().configuration.items():
            table.alter.set_table_properties(NO_STATISTICS)


def _is_recorded(uri: str, ingest: str) -> bool:
    try:
        return DeltaTable(uri).transaction_version(ingest) is not None
    except TableNotFoundError:
        return False


def _add_labels(batch: pa.RecordBatch, source: str, at: datetime, ingest: str) -> pa.RecordBatch:
    labels = [
        pa.repeat(pa.scalar(value, kind), batch.num_rows)
        for value, kind in zip((source, at, ingest), _LABELS.types, strict=True)
    ]
    reasons, rows, *places = batch.columns
    return pa.RecordBatch.from_arrays([reasons, rows, *labels, *places], schema=_SCHEMA)
