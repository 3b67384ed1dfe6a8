"""Reads a source once: checks and counts rows, spools good rows, puts bad rows into quarantine.

The quarantine is a Delta table of the bad rows. Its columns are `reason`, `row` (JSON of the row as
it was read), `source`, `at` (time in UTC) and `ingest` (a digest that identifies the ingestion).
This digest is also the Delta transaction identifier, so that an ingestion is recorded only once.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from millrace.models.common.errors import InputError, TransientError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.column_statistics import ColumnStatistics, merge, statistics_of
from millrace.models.data.infer_schema import MAX_CATEGORIES, resolve_schema
from millrace.models.data.row_checks import BAD, as_json, bad_rows, check
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.source import CHUNK_ROWS, Chunk, Source, Unreadable, read_error
from millrace.models.data.split import Digest, hash_rows, with_keys
from millrace.models.data.spool import Spool

MAX_ROWS = 100_000
"""Largest number of bad rows that one ingestion stores; all bad rows are counted."""

_SCHEMA = pa.schema(
    [
        *BAD,
        ("source", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("ingest", pa.string()),
    ]
)


@dataclass
class Quarantine:
    """Bad rows of one ingestion, before they are published.

    Attributes:
        folder: staging folder.
        rows: number of bad rows.
        reasons: number of bad rows by reason.
    """

    folder: Path
    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._spool = Spool(self.folder / "quarantine.arrow", BAD)
        self._digest = sha256()

    @property
    def room(self) -> int:
        """How many more bad rows can be stored."""
        return MAX_ROWS - self._spool.rows

    def add(self, bad: pa.RecordBatch, unreadable: tuple[Unreadable, ...] = ()) -> None:
        """Add bad rows and unreadable lines."""
        if unreadable:
            texts = [as_json({"line": line.line}) for line in unreadable]
            self.add(bad_rows([line.reason for line in unreadable], texts))
        self.reasons.update(bad.column("reason").to_pylist())
        self.rows += bad.num_rows
        stored = bad.slice(0, self.room)
        for reason, row in zip(*stored.to_pydict().values(), strict=True):
            self._digest.update(f"{reason}\0{row}\0".encode())
        self._spool.write(stored)

    def publish(self, uri: str, source: str, rows_digest: str) -> None:
        """Append the rows in one commit, unless this ingestion is recorded already.

        Args:
            uri: URI of the quarantine table.
            source: the source, as the pipeline file names it.
            rows_digest: digest of the good rows.

        Raises:
            TransientError: another ingestion wrote to the quarantine table at the same time.
        """
        self._spool.close()
        counted = repr((rows_digest, self._digest.hexdigest(), sorted(self.reasons.items())))
        ingest = sha256(counted.encode()).hexdigest()[:32]
        if not self.rows or _is_recorded(uri, ingest):
            return
        labels = (source, datetime.now(UTC), ingest)
        batches = (_add_labels(batch, *labels) for batch in self._spool.reader())
        try:
            write_deltalake(
                uri,
                pa.RecordBatchReader.from_batches(_SCHEMA, batches),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(ingest, 1)]),
            )
        except CommitFailedError as error:
            raise TransientError(
                f"another ingestion wrote to the quarantine table {uri} at the same time",
                seen=error,
                hint="run again",
            ) from error


def _is_recorded(uri: str, ingest: str) -> bool:
    try:
        return DeltaTable(uri).transaction_version(ingest) is not None
    except TableNotFoundError:
        return False


def _add_labels(batch: pa.RecordBatch, source: str, at: datetime, ingest: str) -> pa.RecordBatch:
    labels = [
        pa.repeat(pa.scalar(value, kind), batch.num_rows)
        for value, kind in zip((source, at, ingest), _SCHEMA.types[2:], strict=True)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *labels], schema=_SCHEMA)


SAMPLE_BYTES = 64 * 1024 * 1024
"""Types are inferred from about this many bytes of documents, because a row may be a whole book."""

Progress = Callable[[int], None]


@dataclass
class Reading:
    """The rows of a source read so far: good rows in the spool, bad rows in quarantine, counts."""

    schema: TableSchema
    spool: Spool
    quarantine: Quarantine
    digest: Digest = field(default_factory=Digest)
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Check and count rows, and spool the good ones."""
        checked = check(chunk.rows, self.schema, self.quarantine.room)
        self.quarantine.add(checked.bad, chunk.unreadable)
        hashes = hash_rows(checked.good)
        self.digest.update(hashes)
        self.statistics = merge(self.statistics, statistics_of(checked.good, self.schema))
        _require_few_categories(self.schema, self.statistics)
        self.spool.write(with_keys(checked.good, self.schema, hashes))

    def snapshot(self, name: str, uri: str, manifest: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot to publish.

        A category column without declared categories gets the values of its rows as categories.

        Args:
            name: the dataset's name.
            uri: URI of the dataset's table.
            manifest: manifest of the source.
        """
        categories = {
            column.name: tuple(value for value, _ in self.statistics[column.name].counts or ())
            for column in self.schema.columns
            if column.type == "category" and column.categories is None
        }
        return Snapshot(
            name=name,
            uri=uri,
            version=-1,
            digest=self.digest.hexdigest(),
            rows=self.digest.rows,
            schema=self.schema.with_categories(categories),
            statistics=self.statistics,
            source=manifest,
            quarantined=self.quarantine.rows,
            reasons=dict(self.quarantine.reasons.most_common()),
            created=True,
        )


def read_source(
    source: Source,
    spec: DatasetSpec,
    stored: TableSchema | None,
    folder: Path,
    on_progress: Progress | None = None,
) -> Reading:
    """Read a whole source: good rows into a spool, bad rows into quarantine, and counts.

    Args:
        source: the rows; memory does not grow with their number.
        spec: the pipeline file's `dataset` part.
        stored: schema of the newest snapshot, from which types are taken; None if there is none.
        folder: staging folder for the rows.
        on_progress: called after each batch with the number of rows read so far.

    Raises:
        InputError: there are no rows, a column does not fit, or the source cannot be read.
        TransientError: a source on the network cannot be read to the end.
    """
    chunks = source.chunks()
    try:
        first = _first_chunks(chunks, SAMPLE_BYTES if spec.continued else None)
        columns = (name for chunk in first for name in chunk.rows.schema.names)
        names = source.schema.names if source.schema else list(dict.fromkeys(columns))
    except OSError as error:
        raise read_error(spec.source, error) from error
    if not any(chunk.rows.num_rows for chunk in first):
        raise _no_rows_error(first, spec)
    schema = resolve_schema(spec, names, [chunk.rows for chunk in first], stored)
    reading = Reading(schema, Spool(folder / "rows.arrow", schema.stored), Quarantine(folder))
    done = 0
    try:
        for chunk in _drain(first, chunks):
            reading.add(chunk)
            done += chunk.rows.num_rows
            if on_progress:
                on_progress(done)
    except OSError as error:
        raise read_error(spec.source, error) from error
    finally:
        reading.spool.close()
    return reading


def _first_chunks(chunks: Iterator[Chunk], most_bytes: int | None) -> deque[Chunk]:
    """Take the chunks to infer types from, until they have `CHUNK_ROWS` rows or `most_bytes`."""
    first: deque[Chunk] = deque()
    rows = size = 0
    while rows < CHUNK_ROWS and (most_bytes is None or size < most_bytes):
        chunk = next(chunks, None)
        if chunk is None:
            break
        first.append(chunk)
        rows += chunk.rows.num_rows
        size += chunk.rows.nbytes
    return first


def _drain(first: deque[Chunk], rest: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the first chunks, without keeping them in memory, and then the rest."""
    while first:
        yield first.popleft()
    yield from rest


def _no_rows_error(first: deque[Chunk], spec: DatasetSpec) -> InputError:
    lines = [line for chunk in first for line in chunk.unreadable]
    return InputError(
        f"{spec.source} holds no rows",
        seen=f"{lines[0].reason}: {lines[0].line[:200]}" if lines else None,
        valid="at least one row",
        hint="check that the source is fully written, and that dataset.source and dataset.format "
        "are right",
    )


def _require_few_categories(
    schema: TableSchema, statistics: Mapping[str, ColumnStatistics]
) -> None:
    for column in schema.columns:
        counts = statistics[column.name].counts
        if column.type == "category" and counts is not None and len(counts) > MAX_CATEGORIES:
            raise InputError(
                f"column {column.name!r} has more than {MAX_CATEGORIES} different values",
                seen=", ".join(str(value) for value, _ in counts[:5]) + ", …",
                valid=f"a category with at most {MAX_CATEGORIES} values",
                hint="set dataset.task: regression to predict a number"
                if column.name == schema.target
                else f"if it identifies a row, set dataset.key: [{column.name}]; else leave it "
                "out of dataset.features; or declare it as {type: string} to store it without "
                "learning from it, or as {type: text} for model.family: text_classifier",
            )
