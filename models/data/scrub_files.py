"""Finds and erases rows in all files of a table's folder, whichever versions name them.

Files of earlier versions lose the rows in place, so that they can still be read. Files that killed
commands left are searched like the others; those that are only half written are deleted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from millrace.models.common.errors import WorkError
from millrace.models.data.erasure import Erasure
from millrace.models.data.table_commit import filesystem_of
from millrace.models.data.table_files import list_data_files, list_drafts, named_files

Busy = Callable[[], Collection[str]]
"""Returns the beginnings of the paths of files that somebody may be writing now."""


@dataclass(frozen=True)
class Found:
    """The files in a table's folder that have rows to erase.

    Attributes:
        files: number of rows by key of each file, by path in the folder.
        unreadable: paths of the files that cannot be read.
    """

    files: Mapping[str, Counter[str]]
    unreadable: tuple[str, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the rows."""
        return frozenset().union(*self.files.values())

    def only(self, paths: Collection[str]) -> dict[str, int]:
        """Return the number of rows of some of the files."""
        return {path: keys.total() for path, keys in self.files.items() if path in paths}


@dataclass(frozen=True)
class Erased:
    """What was erased from a table.

    Attributes:
        rows: number of rows that the newest version had.
        files: number of files that had rows, those of earlier versions among them.
        keys: the keys of the rows.
        failed: files that still may have rows, each with the reason.
    """

    rows: int = 0
    files: int = 0
    keys: frozenset[str] = frozenset()
    failed: tuple[str, ...] = ()

    def __add__(self, other: "Erased") -> "Erased":
        return Erased(
            self.rows + other.rows,
            self.files + other.files,
            self.keys | other.keys,
            tuple(dict.fromkeys((*self.failed, *other.failed))),
        )


def find_files(uri: str, erasure: Erasure, spared: Collection[str] = ()) -> Found:
    """Return the files in a table's folder that have rows to erase.

    Args:
        uri: URI of the table, which may have a folder only.
        erasure: the rows.
        spared: beginnings of paths of files that are left out.
    """
    filesystem, _ = filesystem_of(uri)
    files, unreadable = dict[str, Counter[str]](), []
    for path, file in list_data_files(uri).items():
        if path.startswith(tuple(spared)):
            continue
        keys = search_file(filesystem, file.path, erasure)
        if keys is None:
            unreadable.append(path)
        elif keys:
            files[path] = keys
    return Found(files, tuple(unreadable))


def search_file(filesystem: fs.FileSystem, path: str, erasure: Erasure) -> Counter[str] | None:
    """Return the number of a file's rows to erase, by key; None if the file cannot be read."""
    try:
        return erasure.search(filesystem, path)
    except FileNotFoundError:  # removed meanwhile
        return Counter()
    except (pa.ArrowInvalid, OSError):
        return None


def scrub_files(uri: str, erasure: Erasure, find_busy: Busy = tuple) -> Erased:
    """Erase rows from every file in a table's folder, and delete files that are half written.

    A file that cannot be scrubbed holds up no other: it is in `Erased.failed`.

    Args:
        uri: URI of the table, which may have a folder only.
        erasure: the rows.
        find_busy: says whose files are left as they are.
    """
    filesystem, root = filesystem_of(uri)
    found = find_files(uri, erasure, find_busy())
    failed = {}
    for path in found.files:
        try:
            erasure.scrub(filesystem, f"{root}{path}", root)
        except FileNotFoundError:  # removed meanwhile
            continue
        except WorkError as error:
            failed[path] = error.what
    done = len(found.files) - len(failed)
    for path in _delete_left(uri, found.unreadable, erasure, find_busy):
        failed[path] = "the file cannot be read"
    reasons = tuple(f"{uri}/{path}: {why}" for path, why in failed.items())
    return Erased(files=done, keys=found.keys, failed=reasons)


def _delete_left(
    uri: str, unreadable: Collection[str], erasure: Erasure, find_busy: Busy
) -> list[str]:
    """Delete drafts and unreadable files that no version names; return the other unreadable ones.

    Who wrote a file that was seen before `find_busy` is called, and is not busy then, has ended: if
    the file cannot be read even now, it never will be.
    """
    filesystem, root = filesystem_of(uri)
    seen = {*list_drafts(uri), *unreadable}
    busy = tuple(find_busy())
    left = {path for path in seen if not path.startswith(busy)}
    readable = {
        path
        for path in left.intersection(unreadable)
        if search_file(filesystem, f"{root}{path}", erasure) is not None
    }
    named = _named_by_any_version(uri) if left else frozenset()
    for path in left - readable - named:
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{root}{path}")
    return sorted(left.intersection(unreadable, named) - readable)


def _named_by_any_version(uri: str) -> frozenset[str]:
    if not DeltaTable.is_deltatable(uri):
        return frozenset()
    names = frozenset[str]()
    for commit in DeltaTable(uri).history():
        with suppress(DeltaError):  # the log of that version is gone, so nobody reads the version
            names |= named_files(uri, [commit["version"]])
    return names
