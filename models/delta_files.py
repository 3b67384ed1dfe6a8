"""The Parquet files of a Delta table, as other readers take them."""

from urllib.parse import unquote

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """Return the rows of a table; of a local one by Arrow's own file system.

    The one that deltalake brings is written in Python, and Arrow's threads may hold files of it
    when a process is done: one in five of those that did nothing but read a table of one row then
    ended with an abort, and what they had printed was lost.

    Raises:
        DeltaError: the table has what only other readers know, such as deletion vectors.
    """
    if not table.table_uri.startswith("file://"):
        return table.to_pyarrow_dataset()
    local, root = fs.FileSystem.from_uri(table.table_uri)
    return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(root, local))


def file_paths(table: DeltaTable) -> list[str]:
    """Return paths for a local table, URIs for a remote one.

    deltalake gives local paths percent-encoded, which only it can open: a folder with a space in
    its name would not be found.
    """
    found = list(table.file_uris())
    return [path if "://" in path else unquote(path) for path in found]
