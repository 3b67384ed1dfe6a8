"""Commits to Delta tables: Parquet files from a staging folder, as the newest version."""

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow import fs

from millrace.models.data.row_files import RowFile
from millrace.models.data.sources.delta_files import LOCAL

FOR_EVER = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}
ATTEMPTS = 20
Result = TypeVar("Result")


def commit_with_retries(attempt: Callable[[], Result]) -> Result:
    """Return what an attempt to commit returns; try again while other commits come first.

    Args:
        attempt: opens the table as it is now, and commits without Delta's own retries.

    Raises:
        CommitFailedError: other commits came first, `ATTEMPTS` times.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(CommitFailedError):
            return attempt()
    return attempt()


def commit_files(
    uri: str,
    table: DeltaTable | None,
    files: Iterable[RowFile],
    schema: pa.Schema,
    metadata: dict[str, str],
    kept: Collection[str] = (),
) -> int:
    """Replace a table's rows by those of files, in one commit, and return its version.

    Args:
        uri: URI of the table.
        table: the table as it was when the rows were read; None if there was none.
        files: the files, which are moved into the table.
        schema: schema of the rows.
        metadata: custom metadata of the commit.
        kept: names of the table's files whose rows stay.

    Raises:
        CommitFailedError: another commit came first.
        DeltaError: the table cannot be written.
        OSError: a file cannot be moved.
    """
    # No retries, because a retry would overwrite the rows of a concurrent commit.
    properties = CommitProperties(metadata, max_commit_retries=0)
    with moved_files(uri, files) as added:
        if table is None:
            try:
                create_table_with_add_actions(
                    uri,
                    Schema.from_arrow(schema),
                    added,
                    mode="error",
                    partition_by=[],
                    configuration=FOR_EVER,
                    commit_properties=properties,
                )
            except DeltaError as error:
                if "already exists" in str(error):
                    raise CommitFailedError(str(error)) from error
                raise
            return 0
        actions = [*added, *(_removals(table, kept) if kept else ())]
        mode = "append" if kept else "overwrite"
        table.create_write_transaction(actions, mode, schema, commit_properties=properties)
        return int(table.version()) + 1


def _removals(table: DeltaTable, kept: Collection[str]) -> Iterator[RemoveAction]:
    """Yield the removal of each of the table's files that is not kept."""
    now = int(time.time() * 1000)
    for file in pa.table(table.get_add_actions()).to_pylist():
        if file["path"] not in kept:
            yield RemoveAction(file["path"], True, now, file["size_bytes"], {})


@contextmanager
def moved_files(uri: str, files: Iterable[RowFile]) -> Iterator[list[AddAction]]:
    """Move files into a table's folder, and remove them again if the block fails.

    No reader sees them before a commit names them.

    Args:
        uri: URI of the table.
        files: the files, on this machine.
    """
    filesystem, root = filesystem_of(uri)
    filesystem.create_dir(root, recursive=True)
    now = int(time.time() * 1000)
    names: list[str] = []
    added: list[AddAction] = []
    try:
        for file in files:
            name = file.path.name
            names.append(f"{root}{name}")
            if isinstance(filesystem, fs.LocalFileSystem):
                shutil.move(file.path, names[-1])
            else:
                fs.copy_files(str(file.path), names[-1], fs.LocalFileSystem(), filesystem)
            added.append(AddAction(name, file.size, {}, now, True, file.statistics))
        yield added
    except BaseException:
        for path in names:
            with suppress(OSError):
                filesystem.delete_file(path)
        raise


class _Bytes:
    """A stream of a store, which takes bytes and no buffers; pyarrow gives it buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> Any:
        return self._stream.write(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class StoreHandler(DeltaStorageHandler):
    """An object store as pyarrow's file system, which can be written."""

    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        """Open a stream, whose content replaces a file."""
        return pa.PythonFile(_Bytes(self._handler.open_output_stream(path, metadata)), mode="w")


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a table, and the prefix of the paths of the table's files."""
    if "://" not in uri:
        return fs.LocalFileSystem(), f"{Path(uri).absolute()}/"
    if uri.startswith(LOCAL):
        filesystem, root = fs.FileSystem.from_uri(uri)
        return filesystem, f"{root}/"
    return fs.PyFileSystem(StoreHandler(uri)), ""
