"""The Parquet files of a Delta table, as other readers take them."""

from hashlib import sha256
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

LOCAL = "file://"


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """Return the rows of a table; of a local one by Arrow's own file system.

    The one that deltalake brings is written in Python, and Arrow's threads may hold files of it
    when a process is done: one in five of those that did nothing but read a table of one row then
    ended with an abort, and what they had printed was lost.

    Raises:
        DeltaError: the table has what only other readers know, such as deletion vectors.
    """
    if not table.table_uri.startswith(LOCAL):
        return table.to_pyarrow_dataset()
    local, root = fs.FileSystem.from_uri(table.table_uri)
    return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(root, local))


def file_paths(table: DeltaTable) -> list[str]:
    """Return paths for a local table, URIs for a remote one.

    deltalake's own local paths are percent-encoded up to the table, which only it can open, and
    from there as they are on the disk: `/a%20b/table/region=New%20York/part.parquet`.

    Raises:
        DeltaError: as `dataset_of`.
    """
    if not table.table_uri.startswith(LOCAL):
        return list(table.file_uris())
    _, root = fs.FileSystem.from_uri(table.table_uri)
    return [f"{root.rstrip('/')}/{each.path}" for each in dataset_of(table).get_fragments()]


def manifest_of(table: DeltaTable) -> dict[str, Any]:
    """Return what tells this version of a table from every other, also of one made anew there."""
    names = "\n".join(sorted(table.file_uris()))
    return {
        "format": "delta",
        "table": table.table_uri,
        "version": table.version(),
        "id": str(table.metadata().id),
        "files_digest": sha256(names.encode()).hexdigest(),
    }
