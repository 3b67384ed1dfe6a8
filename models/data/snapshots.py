"""Snapshots: versions of a dataset's Delta table, and how their rows are read.

Schema, statistics and source of a snapshot are in the custom metadata of its commit, so that they
appear together with the rows in one atomic step. The table keeps its log for ever.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from millrace.models.common.arrays import spread
from millrace.models.common.errors import InputError, list_names, nearest
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.pipeline import NAME_PATTERN
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.files_read import FilesRead
from millrace.models.data.folder import Folder
from millrace.models.data.lacked_columns import LackedColumns
from millrace.models.data.schema import BUCKET, TableSchema
from millrace.models.data.sources.arrow_source import scan_batches
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.data.split import split_bounds

METADATA = "millrace.snapshot"
DATASETS = "datasets"
QUARANTINE = "quarantine"
PREDICTIONS, DEAD_LETTERS = "predictions", "dead_letters"
RETENTION, REMOVED = "_retention", "removed.json"
"""Folder in a dataset's table, and its file that says which snapshots have no rows any more."""
SCAN_ROWS = 16_384
"""Rows of a batch: all of a row group, unless its rows are large."""
SAMPLED_GROUPS = 32
OF_A_READING = ("bad_files", "line_breaks", "lacked_columns", "left_out", "files_read")
"""What is known of a snapshot only by the ingestion that returned it."""


@dataclass(frozen=True)
class Snapshot:
    """A version of a dataset.

    Attributes:
        name: the dataset's name.
        uri: URI of the dataset's Delta table.
        version: the table's version; -1 before the snapshot is published.
        digest: digest of the rows; the order of the rows does not change it.
        rows: number of rows.
        schema: schema of the rows.
        statistics: statistics over all rows, by column.
        source: manifest of the source: format and parts, or a table's version; `read_manifest`
            returns the files instead of the parts.
        quarantined: number of the source's rows in quarantine.
        reasons: number of quarantined rows by reason, the most frequent first.
        repeated_keys: number of rows whose key an earlier row has; None if that is not known, or if
            no columns are the key.
        created: whether the ingestion that returned this snapshot also created it.
        bad_files: number of rows that the ingestion quarantined, by path of their file, the most
            first; empty if another ingestion made the snapshot.
        line_breaks: number of cells of its CSV files that have line breaks; 0 if another ingestion
            made the snapshot.
        lacked_columns: the files of its source that lack columns of the table; empty if another
            ingestion made the snapshot.
        left_out: number of rows of its source that were left out, because their keys were
            forgotten; 0 if another ingestion made the snapshot.
        files_read: which files of the source that ingestion read, and why; None if another did.
        removed: when its rows were removed, ISO 8601; empty while they are there.
    """

    name: str
    uri: str
    version: int
    digest: str
    rows: int
    schema: TableSchema
    statistics: Mapping[str, ColumnStatistics] = field(repr=False)
    source: Mapping[str, Any] = field(repr=False)
    quarantined: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    repeated_keys: int | None = None
    created: bool = False
    bad_files: Mapping[str, int] = field(default_factory=dict)
    line_breaks: int = 0
    lacked_columns: tuple[LackedColumns, ...] = ()
    left_out: int = 0
    files_read: FilesRead | None = None
    removed: str = ""

    @property
    def classes(self) -> Mapping[Any, int]:
        """Number of rows of each class of the target; empty if the target has no classes."""
        return dict(self.statistics[self.schema.target].counts or ())

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        statistics = {name: column.as_json() for name, column in self.statistics.items()}
        return {
            **{name: value for name, value in asdict(self).items() if name != "statistics"},
            "statistics": statistics,
        }


def open_snapshot(installation: Installation, name: str, version: int | None = None) -> Snapshot:
    """Open a version of a dataset, by default the newest.

    Raises:
        InputError: the dataset does not exist, or has no such version.
    """
    if not is_name(name):  # an empty one would be the folder of all datasets
        raise no_dataset(installation, name)
    uri = installation.table(DATASETS, name)
    try:
        table = DeltaTable(uri)
    except TableNotFoundError as error:
        raise no_dataset(installation, name) from error
    commits = _read_commits(table)
    chosen = max(commits, default=None) if version is None else version
    if chosen not in commits:
        raise InputError(
            f"the dataset {name!r} has no snapshot of version {version}",
            seen=uri,
            valid=", ".join(map(str, sorted(commits))),
        )
    snapshot = _read_snapshot(name, uri, chosen, commits[chosen])
    return replace(snapshot, removed=read_removed(uri).get(chosen, ""))


def is_name(name: str) -> bool:
    """Return whether a dataset may have a name, so that its folder is one of its own."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def no_dataset(installation: Installation, name: str) -> InputError:
    """Return the error of a dataset that does not exist."""
    known = Folder(installation.table(DATASETS, "")).folders()
    return InputError(
        f"there is no dataset {name!r}",
        seen=installation.table(DATASETS, name),
        valid=list_names(known) if known else None,
        hint=nearest(name, known) or "to ingest it: millrace run FILE",
    )


def newest_snapshot(name: str, table: DeltaTable, uri: str) -> Snapshot | None:
    """Return the newest snapshot of an open table; None if it has none."""
    commits = _read_commits(table)
    return _read_snapshot(name, uri, max(commits), commits[max(commits)]) if commits else None


def metadata_of(snapshot: Snapshot) -> dict[str, str]:
    """Return the custom metadata of the commit that makes the snapshot."""
    left_out = {"name", "uri", "version", "created", "removed", *OF_A_READING}
    values = {name: v for name, v in snapshot.as_json().items() if name not in left_out}
    return {METADATA: json.dumps(values)}


def list_versions(table: DeltaTable) -> tuple[int, ...]:
    """Return the versions of an open table that are snapshots, the oldest first."""
    return tuple(sorted(_read_commits(table)))


def read_digests(uri: str) -> dict[int, str]:
    """Return the digest of the rows of each snapshot in a table, by version."""
    commits = _read_commits(DeltaTable(uri))
    return {version: json.loads(metadata)["digest"] for version, metadata in commits.items()}


def read_removed(uri: str) -> dict[int, str]:
    """Return the snapshots whose rows were removed: version, and when, ISO 8601."""
    found = Folder(f"{uri}/{RETENTION}").read_json(REMOVED) or {}
    return {int(version): at for version, at in found.items()}


def write_removed(uri: str, removed: Mapping[int, str]) -> None:
    """Record snapshots whose rows are about to be removed, beside those recorded earlier.

    The caller holds a lease: of two that write at once, one would lose its entries.
    """
    found = {**read_removed(uri), **removed}
    values = {str(version): found[version] for version in sorted(found)}
    Folder(f"{uri}/{RETENTION}").write_json(REMOVED, values)


def scan(
    snapshot: Snapshot,
    split: Split | None = None,
    split_spec: SplitSpec | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = SCAN_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Stream the rows of a snapshot, or of one split of it.

    Args:
        snapshot: the snapshot to read.
        split: train, validation or test; None: all rows.
        split_spec: shares of the splits; None: the default shares.
        columns: columns to read, which may include `_key` and `_bucket`; None: all.
        batch_rows: most rows of a batch.
    """
    wanted = None if split is None else split_filter(split, split_spec or SplitSpec())
    names = None if columns is None else list(columns)
    return (
        batch
        for batch in scan_batches(_dataset(snapshot), names, wanted, batch_rows)
        if batch.num_rows
    )


def sample_rows(snapshot: Snapshot, columns: Sequence[str], rows: int) -> pa.Table:
    """Return some rows of a snapshot, the same ones every time, without reading all of it.

    The rows are evenly spread over `SAMPLED_GROUPS` row groups, which are evenly spread over the
    snapshot's files.

    Args:
        snapshot: the snapshot to read.
        columns: columns to read.
        rows: approximate number of rows to return; fewer if the row groups hold too few.
    """
    groups = [group for file in row_files(snapshot) for group in file.split_by_row_group()]
    chosen = [groups[n] for n in spread(len(groups), SAMPLED_GROUPS)]
    tables = [group.to_table(columns=list(columns)) for group in chosen]
    share = -(-rows // max(len(tables), 1))
    return pa.concat_tables(table.take(spread(table.num_rows, share)) for table in tables)


def row_files(snapshot: Snapshot) -> list[ds.ParquetFileFragment]:
    """Return the Parquet files of a snapshot, which can be read by row groups."""
    return list(_dataset(snapshot).get_fragments())


def split_filter(split: Split, split_spec: SplitSpec) -> ds.Expression:
    """Return a filter for the rows of a split, as a pyarrow expression.

    Ray Data accepts only its own expressions: with the bounds of `split_bounds`, write
    `(col(BUCKET) >= low) & (col(BUCKET) < high)`.
    """
    low, high = split_bounds(split_spec)[split]
    return (pc.field(BUCKET) >= low) & (pc.field(BUCKET) < high)


def count_rows(
    snapshot: Snapshot, split: Split | None = None, split_spec: SplitSpec | None = None
) -> int:
    """Return the number of rows of a snapshot, or of one split of it."""
    if split is None:
        return snapshot.rows
    wanted = split_filter(split, split_spec or SplitSpec())
    return int(_dataset(snapshot).count_rows(filter=wanted))


def _dataset(snapshot: Snapshot) -> ds.Dataset:
    if snapshot.removed:
        raise InputError(
            f"the rows of snapshot {snapshot.version} of the dataset {snapshot.name!r} are gone",
            seen=f"removed on {snapshot.removed[:10]} by its retention",
            valid="a snapshot that `retention.snapshots` keeps",
            hint="run the pipeline again with `millrace run`, which trains on a new snapshot",
        )
    return dataset_of(DeltaTable(snapshot.uri, version=snapshot.version))


def _read_commits(table: DeltaTable) -> dict[int, str]:
    """Return the metadata (JSON) of every snapshot, by version; other commits are left out."""
    return {entry["version"]: entry[METADATA] for entry in table.history() if METADATA in entry}


def _read_snapshot(name: str, uri: str, version: int, metadata: str) -> Snapshot:
    values = json.loads(metadata)
    return Snapshot(
        name=name,
        uri=uri,
        version=version,
        digest=values["digest"],
        rows=values["rows"],
        schema=TableSchema.from_json(values["schema"]),
        statistics={
            column: ColumnStatistics.from_json(statistics)
            for column, statistics in values["statistics"].items()
        },
        source=values["source"],
        quarantined=values["quarantined"],
        reasons=values["reasons"],
        repeated_keys=values.get("repeated_keys"),
    )
