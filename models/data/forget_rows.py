"""Erases rows by their keys from all snapshots of a dataset.

The newest snapshot is replaced by one without the rows. Files of earlier snapshots lose the rows in
place; what their commits say about them, such as the number of rows, stays.

Every step follows from the files, so a command that was stopped can be run again. What only history
would tell is recorded: that tables made of the rows have to go.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from deltalake import DeltaTable

from millrace.models.common.errors import TransientError
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.forgotten_keys import remember_forgotten
from millrace.models.data.part_store import parts_of_newest, stored_parts, write_unchanged
from millrace.models.data.scrub_files import Erased, Found, find_files, scrub_files
from millrace.models.data.snapshot_use import find_held_versions, hold_erasure, is_ingesting
from millrace.models.data.snapshot_without import publish_without
from millrace.models.data.snapshots import RETENTION, list_versions
from millrace.models.data.table_files import named_files

STALE = "derived.json"
"""File in the dataset's folder `_retention`: tables that were made of erased rows have to go."""

Wait = Callable[[str], None]
"""Waits for a while; it is given what is waited for."""


@contextmanager
def forgotten_in_snapshots(
    name: str,
    uri: str,
    erasure: Erasure,
    wait: Wait,
    derived: Sequence[Folder] = (),
    find_bad: "Callable[[], BadRowsFound] | None" = None,
) -> Iterator[Erased]:
    """Erase rows from all snapshots of a dataset; no ingestion begins while the block runs.

    Later ingestions leave out rows with the keys that were found.

    Args:
        name: the dataset's name.
        uri: URI of its table, which may have a folder only, or nothing yet.
        erasure: the rows.
        wait: called again and again while an ingestion, or a job that needs the rows, runs.
        derived: tables that are made of snapshots; they are removed if a snapshot had the rows.
        find_bad: returns the bad rows of these keys, which are erased in the block.

    Raises:
        InputError: the newest snapshot would have no rows.
        OSError: the table's folder cannot be written.
    """
    dataset = _Dataset(name, uri, Folder(f"{uri}/{RETENTION}"), tuple(derived))
    erased = Erased()
    while True:
        while is_ingesting(uri):
            wait("an ingestion of the dataset")
        found = find_files(uri, erasure)
        # Before the files no longer say which keys were found.
        remember_forgotten(uri, found.keys)
        dataset.record_stale(found)
        rows = publish_without(name, uri, found, erasure)
        if rows is None:  # an ingestion has come first
            continue
        erased += Erased(rows=rows, keys=found.keys)
        version = dataset.version
        while reader := dataset.find_reader(found):
            wait(reader)
        with alone(uri, wait):
            # A job may have begun before the others were kept from it.
            if is_ingesting(uri) or dataset.version != version or dataset.find_reader(found):
                continue
            bad = find_bad() if find_bad else BadRowsFound()
            remember_forgotten(uri, bad.keys)
            dataset.read_again(bad.files)
            dataset.remove_stale()
            yield erased + scrub_files(uri, erasure)
            return


@contextmanager
def alone(uri: str, wait: Wait) -> Iterator[None]:
    """Erase rows in the block as the only command; no job begins to use the table meanwhile."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_erasure(uri))
            except TransientError:
                wait("another command that erases rows")
            else:
                break
        yield


@dataclass(frozen=True)
class BadRowsFound:
    """Bad rows that will be erased.

    Attributes:
        keys: their keys.
        files: paths of the files of the source that they are in, as far as they are known.
    """

    keys: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Dataset:
    """A dataset's table, and the tables that are made of its snapshots."""

    name: str
    uri: str
    notes: Folder
    derived: tuple[Folder, ...]

    @property
    def version(self) -> int:
        """The table's newest version; -1 without a table."""
        return DeltaTable(self.uri).version() if DeltaTable.is_deltatable(self.uri) else -1

    @property
    def stale(self) -> list[Folder]:
        """The derived tables that have to go."""
        is_recorded = self.notes.read_json(STALE) is not None
        return [folder for folder in self.derived if folder.exists()] if is_recorded else []

    def record_stale(self, found: Found) -> None:
        """Record that derived tables have to go, before the files no longer say so."""
        if found.files and any(folder.exists() for folder in self.derived):
            self.notes.write_json(STALE, [])

    def remove_stale(self) -> None:
        for folder in self.stale:
            folder.remove()  # the next run makes it again
        self.notes.delete(STALE)

    def read_again(self, files: frozenset[str]) -> None:
        """Let the next ingestion read some files of the source again, to count their rows anew."""
        table = DeltaTable(self.uri) if files and self.version >= 0 else None
        known = parts_of_newest(table, self.uri) if table else ""
        if table is None or isinstance(known, str):
            return  # everything is read again
        listed, parts = known
        marked = {
            part.id: replace(part, id=uuid4().hex, outdated=True)
            for part in parts
            if not part.outdated and any(file.path in files for file in part.sources)
        }
        if marked:
            ids = tuple(marked[name].id if name in marked else name for name in listed.ids)
            version = max(list_versions(table))
            with stored_parts(self.uri, marked.values()):
                write_unchanged(self.uri, version, replace(listed, ids=ids))

    def find_reader(self, found: Found) -> str:
        """Describe a job that needs what will be erased; empty if there is none."""
        held = find_held_versions(self.uri)
        if any(found.files.keys() & named_files(self.uri, [version]) for version in held):
            return "a job that reads an earlier snapshot"
        return "a job that may read tables made of the rows" if held and self.stale else ""
