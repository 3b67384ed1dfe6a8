"""The Parquet files of a Delta table, for readers other than deltalake."""

from collections.abc import Collection
from hashlib import sha256
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

LOCAL = "file://"


def dataset_of(table: DeltaTable, paths: Collection[str] | None = None) -> ds.Dataset:
    """Return a table as an Arrow dataset; read a local table with Arrow's own file system.

    deltalake's file system is written in Python, and Arrow's threads may still have its files open
    when the process ends: one in five processes that only read a table of one row then aborted, and
    their output was lost.

    Args:
        table: the table.
        paths: the files to read, by their path in the table's folder; None: all of them.

    Raises:
        DeltaError: the table has features that deltalake does not read, such as deletion vectors.
    """
    local = None
    if table.table_uri.startswith(LOCAL):
        filesystem, root = fs.FileSystem.from_uri(table.table_uri)
        local = fs.SubTreeFileSystem(root, filesystem)
    whole = table.to_pyarrow_dataset(filesystem=local)
    if paths is None:
        return whole
    chosen = [each for each in whole.get_fragments() if each.path in paths]
    return ds.FileSystemDataset(chosen, whole.schema, whole.format, whole.filesystem)


def local_folder(table: DeltaTable) -> tuple[str, ...]:
    """Return the folder of a table on this machine; none for a table in a store."""
    if not table.table_uri.startswith(LOCAL):
        return ()
    return (fs.FileSystem.from_uri(table.table_uri)[1],)


def file_paths(table: DeltaTable) -> list[str]:
    """Return the Parquet files of a table: paths for a local table, URIs for a remote one.

    deltalake's own local paths cannot be used, because only deltalake can open them. deltalake
    percent-encodes the path of the table but not the rest, for example in
    `/a%20b/table/region=New%20York/part.parquet`.

    Raises:
        DeltaError: the table has features that deltalake does not read, such as deletion vectors.
    """
    if not table.table_uri.startswith(LOCAL):
        return list(table.file_uris())
    _, root = fs.FileSystem.from_uri(table.table_uri)
    return [f"{root.rstrip('/')}/{each.path}" for each in dataset_of(table).get_fragments()]


def manifest_of(table: DeltaTable) -> dict[str, Any]:
    """Return values that identify this version of the table; a recreated table has other values."""
    names = "\n".join(sorted(table.file_uris()))
    return {
        "format": "delta",
        "table": table.table_uri,
        "version": table.version(),
        "id": str(table.metadata().id),
        "files_digest": sha256(names.encode()).hexdigest(),
    }
