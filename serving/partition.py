"""One partition of a Delta table, replaced in one atomic commit.

Workers write Parquet files into the table's folder, where no reader sees them; the commit makes
them the partition and the files of the run before stop being it, at once. Files of a run that
failed are removed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from models.errors import TransientError


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

    def files(self) -> list[pa.fs.FileInfo]:
        """Return the Parquet files that this run has written."""
        filesystem, path = _filesystem(self.folder)
        selector = pa.fs.FileSelector(path, allow_not_found=True)
        return [f for f in filesystem.get_file_info(selector) if f.path.endswith(".parquet")]

    def remove(self) -> None:
        """Remove what this run has written."""
        filesystem, path = _filesystem(self.folder)
        if filesystem.get_file_info(path).type != pa.fs.FileType.NotFound:
            filesystem.delete_dir(path)

    def commit(self, schema: pa.Schema, metadata: Mapping[str, str]) -> int:
        """Make the written files the partition, and return the table's new version.

        Args:
            schema: of the files, without the partition column.
            metadata: kept with the commit.

        Raises:
            TransientError: another job committed the same partition meanwhile.
        """
        filesystem, _ = _filesystem(self.folder)
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
            for file in self.files()
        ]
        whole = schema.append(pa.field(self.column, pa.string()))
        table = self._table(whole)
        try:
            table.create_write_transaction(
                actions,
                mode="overwrite",
                schema=deltalake.Schema.from_arrow(whole),
                partition_by=[self.column],
                partition_filters=[(self.column, "=", self.value)],
                commit_properties=deltalake.CommitProperties(custom_metadata=dict(metadata)),
            )
        except DeltaError as error:
            raise TransientError(
                f"the partition {self.column}={self.value} of {self.table} was not committed",
                seen=error,
                hint="another job may have committed it meanwhile; run again",
            ) from error
        return int(deltalake.DeltaTable(self.table).version())

    def _table(self, schema: pa.Schema) -> deltalake.DeltaTable:
        if deltalake.DeltaTable.is_deltatable(self.table):
            return deltalake.DeltaTable(self.table)
        return deltalake.DeltaTable.create(
            self.table,
            deltalake.Schema.from_arrow(schema),
            mode="ignore",
            partition_by=[self.column],
        )


@contextmanager
def removed_unless_committed(partition: Partition) -> Iterator[None]:
    """Remove the files of a run that did not reach its commit, also on Ctrl-C."""
    try:
        yield
    except BaseException:
        partition.remove()
        raise


def _filesystem(uri: str) -> tuple[pa.fs.FileSystem, str]:
    filesystem, path = pa.fs.FileSystem.from_uri(uri)
    return filesystem, path


def _rows(filesystem: pa.fs.FileSystem, file: pa.fs.FileInfo) -> int:
    with filesystem.open_input_file(file.path) as opened:
        return int(pq.ParquetFile(opened).metadata.num_rows)
