"""A private folder with Arrow files, which store rows until all rows are checked."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from millrace.models.common.errors import WorkError
from millrace.models.data.folder import Folder
from millrace.models.data.lease import hold_lease, is_held

WORK = "work"
"""Name of the lease in a staging folder."""
IN_ORDER_BYTES = 256 * 1024 * 1024
"""Up to this size in memory, rows are read back as one batch. With several batches the order of the
rows in the table would differ each time, because delta-rs gives batches to concurrent writers.
"""


@contextmanager
def staging_folder(staging: Path, name: str) -> Iterator[Path]:
    """Create a temporary folder in `staging`, and remove it at the end in any case.

    It has a lease, which says that its process lives.

    Raises:
        WorkError: the folder cannot be created.
    """
    try:
        staging.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=staging, prefix=f"{name}-"))
    except OSError as error:
        raise WorkError(
            f"the staging folder {staging} cannot be written",
            seen=error.strerror,
            hint="free disk space, or check the folder's permissions",
        ) from error
    try:
        with hold_lease(Folder(str(folder)), WORK):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_left_staging(staging: Path, dataset: str) -> list[Path]:
    """Return the staging folders with rows of a dataset whose processes have ended."""
    named = re.compile(rf"[a-z]+-{re.escape(dataset)}-[a-z0-9_]{{8}}")
    return [
        folder
        for folder in (sorted(staging.iterdir()) if staging.is_dir() else ())
        if named.fullmatch(folder.name) and not is_held(Folder(str(folder)), WORK)
    ]


@dataclass
class Spool:
    """Record batches in a compressed Arrow file, which is written, closed and then read.

    Attributes:
        path: the file.
        schema: schema of the batches.
        rows: number of rows written so far.
        bytes: size in memory of the rows written so far.
    """

    path: Path
    schema: pa.Schema
    rows: int = 0
    bytes: int = 0
    _writer: ipc.RecordBatchFileWriter | None = field(default=None, repr=False)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if batch.num_rows == 0:
            return
        if self._writer is None:
            options = ipc.IpcWriteOptions(compression="lz4")
            self._writer = ipc.new_file(str(self.path), self.schema, options=options)
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            raise WorkError(
                f"the rows cannot be written to {self.path.parent}",
                seen=error,
                hint="free space on the disk of the home folder, or move MILLRACE_HOME to another "
                "disk",
            ) from error
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def close(self) -> None:
        """Finish writing; may be called several times, and also if nothing was written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream, in a single batch if they take at most `IN_ORDER_BYTES`."""
        if self.bytes > IN_ORDER_BYTES:
            return pa.RecordBatchReader.from_batches(self.schema, self._batches())
        rows = pa.Table.from_batches(self._batches(), self.schema).combine_chunks()
        return rows.to_reader()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if not self.rows:
            return
        with pa.OSFile(str(self.path)) as stream:
            reader = ipc.open_file(stream)
            for place in range(reader.num_record_batches):
                yield reader.get_batch(place)
