"""The Parquet files of a Delta table, as paths that other readers take."""

from urllib.parse import unquote

from deltalake import DeltaTable


def file_paths(table: DeltaTable) -> list[str]:
    """Return paths for a local table, URIs for a remote one.

    deltalake gives local paths percent-encoded, which only it can open: a folder with a space in
    its name would not be found.
    """
    found = list(table.file_uris())
    return [path if "://" in path else unquote(path) for path in found]
