"""Writes checked rows as Parquet files in a staging folder, from which a commit takes them.

Files are written by threads, in the order of the rows, so that the same rows always make the same
files.
"""

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.models.common.errors import WorkError
from millrace.models.data.file_statistics import statistics_of

FILE_BYTES = 64 * 1024 * 1024
"""Size of a file's rows in memory; compressed the file is smaller."""
ROW_GROUP_ROWS = 16_384
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Largest row group, before compression. Readers read a whole row group."""


@dataclass(frozen=True)
class RowFile:
    """A Parquet file in the staging folder.

    Attributes:
        path: the file.
        rows: number of rows.
        size: its size in bytes.
        statistics: smallest and largest values and numbers of nulls by column, as JSON for Delta.
    """

    path: Path
    rows: int
    size: int
    statistics: str


class RowFiles:
    """Takes rows in batches and writes them to files; `close` ends its threads.

    Args:
        folder: the staging folder.
        name: beginning of the files' names.
        schema: schema of the rows.
        repeating: columns whose values repeat, for dictionary encoding. Numbers and keys hardly
            repeat, and dictionary encoding makes writing them take 4 times as long.
        private: columns whose values no statistics name.
        compression: snappy, or zstd, which is smaller and slower.
        threads: number of threads that write files; by default the number of cores.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        schema: pa.Schema,
        repeating: Sequence[str],
        *,
        private: Sequence[str] = (),
        compression: str = "snappy",
        threads: int | None = None,
    ) -> None:
        self._folder, self._name, self._schema = folder, name, schema
        self._compression, self._private = compression, private
        self._repeating, self._threads = list(repeating), threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="row-files")
        self._waiting: list[pa.RecordBatch] = []
        self._writing: deque[Future[RowFile]] = deque()
        self._written: list[RowFile] = []
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            WorkError: the folder cannot be written.
        """
        if batch.num_rows == 0:
            return
        self._waiting.append(batch)
        if sum(each.nbytes for each in self._waiting) >= FILE_BYTES:
            self._write()

    def finish(self) -> tuple[RowFile, ...]:
        """Write the last rows, and return all files in the order of their rows.

        Raises:
            WorkError: the folder cannot be written.
        """
        if self._waiting:
            self._write()
        while self._writing:
            self._written.append(self._writing.popleft().result())
        return tuple(self._written)

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self) -> None:
        if len(self._writing) >= self._threads:
            self._written.append(self._writing.popleft().result())
        path = self._folder / f"{self._name}-{self._count:05d}.parquet"
        self._count += 1
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writing.append(self._pool.submit(self._write_file, path, table))
        self._waiting = []

    def _write_file(self, path: Path, table: pa.Table) -> RowFile:
        fitting = ROW_GROUP_BYTES * len(table) // max(1, table.nbytes)
        try:
            pq.write_table(
                table,
                path,
                row_group_size=max(1, min(ROW_GROUP_ROWS, fitting)),
                compression=self._compression,
                use_dictionary=self._repeating,
            )
        except OSError as error:
            raise WorkError(
                f"the rows cannot be written to {path.parent}",
                seen=error,
                hint="free space on the disk of the home folder, or move MILLRACE_HOME to another "
                "disk",
            ) from error
        return RowFile(
            path,
            len(table),
            path.stat().st_size,
            statistics_of(pq.read_metadata(path), self._private),
        )
