"""One partition of a Delta table, replaced in one atomic commit.

Workers write Parquet files into the table's folder, where no reader sees them; the commit makes
them the partition and the files of the run before stop being it, at once. Of two jobs that ran
for one partition at the same time the first to commit wins, and the second is told.

The table of dead letters holds the rows that were not scored, with the reason; its columns are
those of `DEAD` and the partition's. Its partition is replaced with that of the predictions,
right after it: the commit of the predictions decides, and a run that dies between the two is
finished by the next.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePosixPath

import deltalake
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.data.sources.find_files import resolve
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.job import DEAD
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT

JOB = "millrace.job"
PARTITION, FILES = "millrace.partition", "millrace.files"
"""Of every commit: what it made, and of how many files; of none where no row was scored."""
_ATTEMPTS = 20


@dataclass(frozen=True)
class Partition:
    """Where the rows of one date go.

    Attributes:
        table: URI of the Delta table.
        column: the partition column.
        value: its value.
        job: id of the run that writes; its files carry it in their names.
    """

    table: str
    column: str
    value: str
    job: str

    @property
    def folder(self) -> str:
        """URI of the folder that the workers write to."""
        return f"{self.table}/{self.column}={self.value}/{self.job}"

    @cached_property
    def place(self) -> tuple[pa.fs.FileSystem, str]:
        """The file system of that folder, and its path there."""
        return resolve(self.folder, Path())

    def files(self) -> list[pa.fs.FileInfo]:
        """Return the Parquet files that this run has written."""
        filesystem, path = self.place
        selector = pa.fs.FileSelector(path, allow_not_found=True)
        return [f for f in filesystem.get_file_info(selector) if f.path.endswith(".parquet")]

    def rows(self, known: Collection[str] = ()) -> dict[str, int]:
        """Return the rows of each file that this run has written, by its path.

        Args:
            known: paths of files to leave out, like those that are still being written.
        """
        filesystem, _ = self.place
        found: dict[str, int] = {}
        for file in self.files():
            if file.path not in known:
                with suppress(pa.ArrowInvalid):  # it has no footer yet
                    found[file.path] = _rows(filesystem, file)
        return found

    def remove(self) -> None:
        """Remove what this run has written, unless it was committed, now or ever.

        Where it cannot be known the files stay: no reader sees files that no commit names.
        """
        filesystem, path = self.place
        written = filesystem.get_file_info(path).type != pa.fs.FileType.NotFound
        if written and not self._committed():
            filesystem.delete_dir(path)

    def active(self) -> frozenset[str]:
        """Return the files that are the partition now, as URIs; none before the first commit."""
        opened = self._open()
        return self._active(opened) if opened is not None else frozenset()

    def committed(self) -> dict[str, str]:
        """Return what was kept with the commit that made the partition what it is now.

        It is empty before the first commit, and where the files are not those of one commit.
        """
        opened = self._open()
        if opened is None:
            return {}
        jobs = {PurePosixPath(file).parent.name for file in self._active(opened)}
        if not jobs:
            return _newest(opened).get(self.value, {}) if self.value in empty(opened) else {}
        if len(jobs) != 1:
            return {}
        (job,) = jobs
        return next((_texts(c) for c in opened.history() if c.get(JOB) == job), {})

    def check(self, schema: pa.Schema) -> None:
        """Return if rows of this schema may be committed.

        Args:
            schema: of the files, without the partition column.

        Raises:
            InputError: the table holds other columns, or other types.
        """
        opened = self._open()
        if opened is not None:
            self._check(opened, self._whole(schema))

    def commit(
        self,
        schema: pa.Schema,
        metadata: Mapping[str, str],
        replaces: frozenset[str] | None = None,
        files: Iterable[pa.fs.FileInfo] | None = None,
    ) -> int:
        """Make the written files the partition, and return the version that this commit made.

        Args:
            schema: of the files, without the partition column.
            metadata: kept with the commit, beside the id of the job.
            replaces: what `active` returned when the run began; None for whatever is there.
            files: those of the written files to commit; None for all.

        Raises:
            InputError: the table holds other columns, or other types.
            WorkError: another job committed the same partition meanwhile.
        """
        filesystem, _ = self.place
        now = int(datetime.now(UTC).timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=f"{self.column}={self.value}/{self.job}/{file.base_name}",
                size=file.size,
                partition_values={self.column: self.value},
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": _rows(filesystem, file)}),
            )
            for file in (self.files() if files is None else files)
        ]
        whole = self._whole(schema)
        for _ in range(_ATTEMPTS):
            try:
                table = self._table(whole)
                self._check(table, whole)
                replaces = self._active(table) if replaces is None else replaces
                if self._active(table) != replaces:
                    raise self._overtaken()
                self._replace(table, actions, metadata)
            except CommitFailedError as error:
                failure = error  # a commit of another partition, perhaps: look again
            except DeltaError as error:
                raise self._uncommitted(error) from error
            else:
                # Without retries the commit follows the version that was opened, or fails.
                return int(table.version()) + 1
        raise self._uncommitted(failure) from failure

    def _replace(
        self,
        table: deltalake.DeltaTable,
        actions: list[AddAction | RemoveAction],
        metadata: Mapping[str, str],
    ) -> None:
        properties = deltalake.CommitProperties(
            custom_metadata={
                **metadata,
                JOB: self.job,
                PARTITION: self.value,
                FILES: str(len(actions)),
            },
            # With Delta's own retries a stale overwrite wins, and both jobs' rows stay.
            max_commit_retries=0,
        )
        table.create_write_transaction(
            actions,
            mode="overwrite",
            schema=table.schema(),
            partition_by=[self.column],
            partition_filters=[(self.column, "=", self.value)],
            commit_properties=properties,
        )

    def _whole(self, schema: pa.Schema) -> deltalake.Schema:
        return deltalake.Schema.from_arrow(schema.append(pa.field(self.column, pa.string())))

    def _open(self) -> deltalake.DeltaTable | None:
        if not deltalake.DeltaTable.is_deltatable(self.table):
            return None
        return deltalake.DeltaTable(self.table)

    def _table(self, schema: deltalake.Schema) -> deltalake.DeltaTable:
        return self._open() or deltalake.DeltaTable.create(
            self.table, schema, mode="ignore", partition_by=[self.column]
        )

    def _active(self, table: deltalake.DeltaTable) -> frozenset[str]:
        return frozenset(table.file_uris(file_pruning_predicate=[(self.column, "=", self.value)]))

    def _committed(self) -> bool:
        try:
            opened = self._open()
            return opened is not None and any(c.get(JOB) == self.job for c in opened.history())
        except DeltaError:
            return True

    def _check(self, table: deltalake.DeltaTable, schema: deltalake.Schema) -> None:
        held, given = _types(table.schema()), _types(schema)
        if held != given:
            raise InputError(
                f"the rows have another schema than the table {self.table}",
                seen=_told(given),
                valid=_told(held),
                hint="move the table away, or score into another one",
            )

    def _overtaken(self) -> WorkError:
        # Nothing that passes: tried again by itself it would undo what the other has just done.
        return WorkError(
            f"{self.column}={self.value} of {self.table} was committed by another job meanwhile",
            seen=self.committed().get(JOB),
            hint="run again to replace what it committed",
        )

    def _uncommitted(self, error: Exception) -> TransientError:
        return TransientError(
            f"the partition {self.column}={self.value} of {self.table} was not committed",
            seen=error,
            hint="see that the table can be written, and run again",
        )


def empty(table: deltalake.DeltaTable) -> frozenset[str]:
    """Return the values of the partitions whose newest commit scored no row of theirs."""
    newest = _newest(table).items()
    return frozenset(value for value, commit in newest if commit[FILES] == "0")


def _newest(table: deltalake.DeltaTable) -> dict[str, dict[str, str]]:
    """Return what was kept with the newest commit of each partition, by its value."""
    commits = (_texts(commit) for commit in reversed(table.history()) if PARTITION in commit)
    return {commit[PARTITION]: commit for commit in commits}


def _texts(commit: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in commit.items()}


def _rows(filesystem: pa.fs.FileSystem, file: pa.fs.FileInfo) -> int:
    with filesystem.open_input_file(file.path) as opened:
        return int(pq.ParquetFile(opened).metadata.num_rows)


def _types(schema: deltalake.Schema) -> dict[str, str]:
    """Return the type of each column, by its name in Delta."""
    return {
        f.name: f.type.type if isinstance(f.type, PrimitiveType) else str(f.type)
        for f in schema.fields
    }


def _told(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def publish(partition: Partition, fingerprint: str, dead: pa.Table) -> None:
    """Make rows the partition of the dead letters; doing it again changes nothing.

    Args:
        partition: of the table of dead letters.
        fingerprint: of the job whose rows they are.
        dead: of `DEAD`.

    Raises:
        TransientError: the table cannot be written.
    """
    if not dead.num_rows and not partition.active():
        return
    if dead.num_rows:
        Folder(partition.folder).write_table("dead.parquet", dead)
    partition.commit(DEAD, {FINGERPRINT: fingerprint})
