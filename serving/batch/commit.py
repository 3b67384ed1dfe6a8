"""One partition of a Delta table, replaced in one atomic commit.

Workers write Parquet files into the table's folder, where no reader sees them. The commit adds them
to the partition and removes the files of the previous run, in one step. If two jobs run for one
partition at the same time, the first to commit wins and the second fails.

The table of dead letters holds the rows that were not scored, with the reason. Its columns are
those of `DEAD` and the partition column. Its partition is replaced right after the partition of the
predictions. A job counts as committed as soon as its predictions are committed. If a run dies
between the two commits, the next run publishes the dead letters.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath

import deltalake
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.data.file_statistics import statistics_of
from millrace.models.data.folder import Folder
from millrace.models.data.schema import KEY
from millrace.models.data.table_commit import commit_with_retries
from millrace.serving.batch.job import DEAD, OUTPUTS
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT, PREFIX

JOB = "millrace.job"
PARTITION, FILES = "millrace.partition", "millrace.files"
"""Keys in the metadata of every commit: the partition's value, and the number of files that the
commit wrote (0 if no row was scored).
"""
PRIVATE = (KEY, "row")
"""Columns whose values the statistics of files do not name: the log of a table stays for ever, also
when their rows were erased."""


@dataclass(frozen=True)
class Partition:
    """The rows of one date in a table.

    Attributes:
        table: URI of the Delta table.
        column: the partition column.
        value: the partition's value.
        job: id of the run that writes; also the name of the folder with its files.
    """

    table: str
    column: str
    value: str
    job: str

    @cached_property
    def folder(self) -> Folder:
        """The folder that the workers write to."""
        return Folder(f"{self.table}/{self.column}={self.value}/{self.job}")

    @property
    def location(self) -> tuple[pa.fs.FileSystem, str]:
        """The file system of the folder, and the folder's path in it."""
        return self.folder.location

    def files(self) -> list[pa.fs.FileInfo]:
        """Return the Parquet files that this run has written."""
        return self.folder.files(".parquet")

    def count_rows(self, known: Collection[str] = ()) -> dict[str, int]:
        """Return the number of rows of each file that this run has written, by path.

        Files that are not complete yet are left out.

        Args:
            known: paths of files to leave out.
        """
        filesystem, _ = self.location
        found: dict[str, int] = {}
        for file in self.files():
            if file.path not in known:
                with suppress(pa.ArrowInvalid):  # it has no footer yet
                    found[file.path] = _count_rows(filesystem, file)
        return found

    def remove(self) -> None:
        """Delete the files of this run, unless this run has committed them to the table.

        If the table cannot be read, the files stay. They do no harm, because readers see only the
        files of a commit.
        """
        if self.folder.exists() and not self._was_committed():
            self.folder.remove()

    def delete_uncommitted(self, committed: Iterable[pa.fs.FileInfo]) -> None:
        """Delete the files of this run that its commit has left out, such as replaced ones."""
        filesystem, _ = self.location
        names = {file.path for file in committed}
        for file in self.files():
            if file.path not in names:
                filesystem.delete_file(file.path)

    def active_files(self) -> frozenset[str]:
        """Return URIs of the partition's current files; none before the first commit."""
        opened = self._open()
        return self._files_in(opened) if opened is not None else frozenset()

    def read_commit(self) -> dict[str, str]:
        """Return the metadata of the commit that wrote the partition's current content.

        The metadata is empty before the first commit, or if the files are of several commits.
        """
        opened = self._open()
        if opened is None:
            return {}
        jobs = {PurePosixPath(file).parent.name for file in self._files_in(opened)}
        if not jobs:
            is_empty = self.value in find_empty_partitions(opened)
            return _newest_commits(opened)[self.value] if is_empty else {}
        if len(jobs) != 1:
            return {}
        (job,) = jobs
        return next((_as_text(c) for c in opened.history() if c.get(JOB) == job), {})

    def require_schema(self, schema: pa.Schema) -> None:
        """Raise unless rows of this schema may be committed.

        Args:
            schema: schema of the files, without the partition column.

        Raises:
            InputError: the table has other columns, or other types.
        """
        opened = self._open()
        if opened is not None:
            self._require_schema(opened, self._table_schema(schema))

    def commit(
        self,
        schema: pa.Schema,
        metadata: Mapping[str, str],
        replaces: frozenset[str] | None = None,
        files: Iterable[pa.fs.FileInfo] | None = None,
    ) -> int:
        """Replace the partition with the written files, and return the new table version.

        Args:
            schema: schema of the files, without the partition column.
            metadata: stored with the commit, together with the id of the job.
            replaces: the files that the commit may replace: what `active_files` returned when the
                run began; None: any files.
            files: the written files to commit; None: all files that this run has written.

        Raises:
            InputError: the table has other columns, or other types.
            WorkError: another job has committed the same partition in the meantime.
        """
        filesystem, _ = self.location
        now = int(datetime.now(UTC).timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=f"{self.column}={self.value}/{self.job}/{file.base_name}",
                size=file.size,
                partition_values={self.column: self.value},
                modification_time=now,
                data_change=True,
                stats=_statistics(filesystem, file),
            )
            for file in (self.files() if files is None else files)
        ]
        table_schema = self._table_schema(schema)
        expected = replaces

        def attempt() -> int:
            nonlocal expected
            table = self._table(table_schema)
            self._require_schema(table, table_schema)
            table = self._with_columns(table, table_schema)
            expected = self._files_in(table) if expected is None else expected
            if self._files_in(table) != expected:
                raise self._conflict()
            self._replace(table, actions, metadata)
            # Without retries the commit directly follows the opened version, or fails.
            return int(table.version()) + 1

        try:
            return commit_with_retries(attempt)  # a commit to another partition may come first
        except DeltaError as error:
            raise self._not_committed(error) from error

    def _with_columns(
        self, table: deltalake.DeltaTable, schema: deltalake.Schema
    ) -> deltalake.DeltaTable:
        """Return the table with the columns of a schema that it does not have yet."""
        known = {field.name for field in table.schema().fields}
        if new := [field for field in schema.fields if field.name not in known]:
            table.alter.add_columns(new)
            return deltalake.DeltaTable(self.table)
        return table

    def _replace(
        self,
        table: deltalake.DeltaTable,
        actions: list[AddAction | RemoveAction],
        metadata: Mapping[str, str],
    ) -> None:
        own = {JOB: self.job, PARTITION: self.value, FILES: str(len(actions))}
        table.create_write_transaction(
            actions,
            mode="overwrite",
            schema=table.schema(),
            partition_by=[self.column],
            partition_filters=[(self.column, "=", self.value)],
            # With Delta's own retries a stale overwrite wins, and the rows of both jobs stay.
            commit_properties=deltalake.CommitProperties(
                custom_metadata={**metadata, **own}, max_commit_retries=0
            ),
        )

    def _table_schema(self, schema: pa.Schema) -> deltalake.Schema:
        return deltalake.Schema.from_arrow(schema.append(pa.field(self.column, pa.string())))

    def _open(self) -> deltalake.DeltaTable | None:
        exists = deltalake.DeltaTable.is_deltatable(self.table)
        return deltalake.DeltaTable(self.table) if exists else None

    def _table(self, schema: deltalake.Schema) -> deltalake.DeltaTable:
        return self._open() or deltalake.DeltaTable.create(
            self.table, schema, mode="ignore", partition_by=[self.column]
        )

    def _files_in(self, table: deltalake.DeltaTable) -> frozenset[str]:
        return frozenset(table.file_uris(file_pruning_predicate=[(self.column, "=", self.value)]))

    def _was_committed(self) -> bool:
        try:
            opened = self._open()
            return opened is not None and any(c.get(JOB) == self.job for c in opened.history())
        except DeltaError:
            return True

    def _require_schema(self, table: deltalake.DeltaTable, schema: deltalake.Schema) -> None:
        expected, given = _column_types(table.schema()), _column_types(schema)
        differ = {name for name in expected.keys() & given.keys() if expected[name] != given[name]}
        folded = {name.casefold() for name in expected}
        differ |= {n for n in given.keys() - expected.keys() if n.casefold() in folded}
        # Columns that are carried from the input, or left out, are null in the other partitions.
        if differ or (expected.keys() ^ given.keys()) & OUTPUTS:
            raise InputError(
                f"the rows have another schema than the table {self.table}",
                seen=", ".join(f"{name} {kind}" for name, kind in given.items()),
                valid=", ".join(f"{name} {kind}" for name, kind in expected.items()),
                hint="move the folder of this table away, or set MILLRACE_TABLES to another root "
                "of the tables; then run the job again",
            )

    def _conflict(self) -> WorkError:
        # Not a transient error: an automatic retry would undo what the other job has just done.
        return WorkError(
            f"the partition {self.column}={self.value} of {self.table} "
            "was committed by another job meanwhile",
            seen=self.read_commit().get(JOB),
            hint="run this job again to replace what the other job committed",
        )

    def _not_committed(self, error: Exception) -> TransientError:
        return TransientError(
            f"the partition {self.column}={self.value} of {self.table} was not committed",
            seen=error,
            hint="check that the table can be written, and run the job again",
        )


def metadata_of_rest(partition: Partition, files: int) -> dict[str, str]:
    """Return the metadata of a commit that takes rows out of a partition.

    It is that of the partition's last commit: an emptied partition must not seem never scored.

    Args:
        partition: the partition, without the id of a job.
        files: number of files that the partition still has.
    """
    before = partition.read_commit()
    kept = {key: value for key, value in before.items() if key.startswith(PREFIX)}
    return {**kept, PARTITION: partition.value, FILES: str(files)}


def find_empty_partitions(table: deltalake.DeltaTable) -> frozenset[str]:
    """Return the values of the partitions whose newest commit has no rows."""
    newest = _newest_commits(table).items()
    return frozenset(value for value, commit in newest if commit[FILES] == "0")


def committed_dates(table: str) -> frozenset[str]:
    """Return the dates with a commit in a table of predictions; none if there is no table."""
    if not deltalake.DeltaTable.is_deltatable(table):
        return frozenset()
    opened = deltalake.DeltaTable(table)
    return find_empty_partitions(opened) | {each["date"] for each in opened.partitions()}


def publish_dead_letters(partition: Partition, fingerprint: str, dead: pa.Table) -> None:
    """Replace a partition of the dead letters; repeating the call changes nothing.

    Args:
        partition: the partition in the table of dead letters.
        fingerprint: the job's fingerprint.
        dead: the rows, with the columns of `DEAD`.

    Raises:
        TransientError: the table cannot be written.
    """
    if not dead.num_rows and not partition.active_files():
        return
    if dead.num_rows:
        partition.folder.write_table("dead.parquet", dead)
    partition.commit(DEAD, {FINGERPRINT: fingerprint})


def _newest_commits(table: deltalake.DeltaTable) -> dict[str, dict[str, str]]:
    """Return the metadata of the newest commit of each partition, by the partition's value."""
    commits = (_as_text(commit) for commit in reversed(table.history()) if PARTITION in commit)
    return {commit[PARTITION]: commit for commit in commits}


def _as_text(commit: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in commit.items()}


def _count_rows(filesystem: pa.fs.FileSystem, file: pa.fs.FileInfo) -> int:
    return int(_read_metadata(filesystem, file).num_rows)


def _statistics(filesystem: pa.fs.FileSystem, file: pa.fs.FileInfo) -> str:
    read = _read_metadata(filesystem, file)
    private = {*PRIVATE, *(name for name in read.schema.names if name not in OUTPUTS)}
    return statistics_of(read, private=tuple(private))


def _read_metadata(filesystem: pa.fs.FileSystem, file: pa.fs.FileInfo) -> pq.FileMetaData:
    with filesystem.open_input_file(file.path) as opened:
        return pq.ParquetFile(opened).metadata


def _column_types(schema: deltalake.Schema) -> dict[str, str]:
    """Return the type of each column as Delta names it, by the column's name."""
    return {
        f.name: f.type.type if isinstance(f.type, PrimitiveType) else str(f.type)
        for f in schema.fields
    }
