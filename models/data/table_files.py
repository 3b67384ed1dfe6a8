"""Which data files are in a Delta table's folder, which versions name them, and their removal.

Delta deletes no file: a commit only stops naming it, so that readers of earlier versions still find
it. What is under a folder that begins with `_` is no data file.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from millrace.models.data.table_commit import filesystem_of

DRAFTS = re.compile(r"\.draft\.parquet$|\.parquet[.#][^/]+$")
"""Names of such files: `.draft.parquet`, `.parquet.draft-…` or `.parquet#1`."""
SUPERSEDED = timedelta(days=7)
"""How long files stay that a commit replaced, for readers of the earlier version; as in Delta's own
vacuum."""


@dataclass(frozen=True)
class Removed:
    """What was removed, or would be.

    Attributes:
        files: number of files.
        size: their size in bytes.
    """

    files: int = 0
    size: int = 0

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(self.files + other.files, self.size + other.size)


@dataclass(frozen=True)
class DataFile:
    """A file in a table's folder.

    Attributes:
        path: path of the file in its file system.
        size: its size in bytes.
        changed: when it was written.
    """

    path: str
    size: int
    changed: datetime


def named_files(uri: str, versions: Iterable[int]) -> frozenset[str]:
    """Return the data files that versions of a table name, as paths in the table's folder.

    Raises:
        DeltaError: the log of a version is gone.
    """
    names: set[str] = set()
    for version in versions:
        actions = pa.table(DeltaTable(uri, version=version).get_add_actions())
        names.update(actions["path"].to_pylist())
    return frozenset(names)


def has_files(uri: str, version: int) -> bool:
    """Return whether the data files that a version of a table names are all there.

    Raises:
        DeltaError: the log of the version is gone.
    """
    filesystem, root = filesystem_of(uri)
    paths = [f"{root}{name}" for name in named_files(uri, (version,))]
    return all(info.type == fs.FileType.File for info in filesystem.get_file_info(paths))


def list_data_files(uri: str) -> dict[str, DataFile]:
    """Return the data files in a table's folder, by their path in it, named or not."""
    filesystem, root = filesystem_of(uri)
    found = _list(filesystem, root)
    return {path: file for path, file in found.items() if path.endswith(".parquet")}


def list_drafts(uri: str) -> frozenset[str]:
    """Return the paths in a table's folder of Parquet files that are, or were, being written."""
    filesystem, root = filesystem_of(uri)
    return frozenset(path for path in _list(filesystem, root) if DRAFTS.search(path))


def list_files(uri: str, folder: str) -> dict[str, DataFile]:
    """Return the files in a subfolder of a table's folder, by their name."""
    filesystem, root = filesystem_of(uri)
    selector = fs.FileSelector(f"{root}{folder}", allow_not_found=True)
    return {
        info.base_name: DataFile(info.path, info.size, info.mtime)
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    }


def delete_files(uri: str, files: Collection[DataFile], *, dry_run: bool = False) -> Removed:
    """Delete files of a table's folder; a file that is gone already is left out.

    Raises:
        OSError: a file cannot be deleted.
    """
    filesystem, _ = filesystem_of(uri)
    removed = Removed()
    for file in files:
        try:
            if not dry_run:
                filesystem.delete_file(file.path)
        except FileNotFoundError:
            continue
        removed += Removed(1, file.size)
    return removed


def find_removable(
    present: Mapping[str, DataFile],
    kept: Collection[str],
    dropped: Collection[str],
    left_before: datetime | None,
) -> list[DataFile]:
    """Return the files that nobody needs.

    A commit may name files that are older than the commit. So a command that commits is either not
    running, or all its files are in `kept`, or they are younger than `left_before`.

    Args:
        present: the files in the table's folder, by their path in it; listed before the log of the
            table was read, or a file of a newer commit would seem to be unnamed.
        kept: the files that a kept version names.
        dropped: the files that a removed version names.
        left_before: a file that no version names is removed if it is older; None: such files stay.
    """
    return [
        file
        for path, file in sorted(present.items())
        if path not in kept
        and (path in dropped or (left_before is not None and file.changed < left_before))
    ]


def remove_replaced_files(
    uri: str,
    now: datetime,
    *,
    dry_run: bool,
    kept: Collection[int] = (),
    spared: Collection[str] = (),
) -> Removed:
    """Delete files that are older than `SUPERSEDED` and that no commit since then names.

    Args:
        uri: URI of the table.
        now: the time.
        dry_run: whether only to count.
        kept: earlier versions whose files stay too.
        spared: folders in the table's folder whose files stay, because a job may still commit them;
            each ends with `/`.

    Raises:
        OSError: the table's folder cannot be written.
        DeltaError: the table cannot be read.
    """
    if not DeltaTable.is_deltatable(uri):
        return Removed()
    before = now - SUPERSEDED
    present = list_data_files(uri)  # before the log, or a file of a new commit would seem unnamed
    named = named_files(uri, {*_recent_versions(uri, before), *kept})
    files = {path: file for path, file in present.items() if not path.startswith(tuple(spared))}
    return delete_files(uri, find_removable(files, named, (), before), dry_run=dry_run)


def _recent_versions(uri: str, since: datetime) -> list[int]:
    """Return the versions that were the newest at some time since."""
    recent: list[int] = []
    for commit in DeltaTable(uri).history():  # the newest first
        recent.append(commit["version"])
        if commit["timestamp"] < since.timestamp() * 1000:
            break
    return recent


def _list(filesystem: fs.FileSystem, root: str) -> dict[str, DataFile]:
    """Return the files below a folder, by their path in it, without hidden folders."""
    found: dict[str, DataFile] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        selector = fs.FileSelector(f"{root}{folder}", allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            path = f"{folder}{info.base_name}"
            if info.base_name.startswith(("_", ".")):
                continue
            if info.type == fs.FileType.Directory:
                folders.append(f"{path}/")
            else:
                found[path] = DataFile(info.path, info.size, info.mtime)
    return found
