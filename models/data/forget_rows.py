"""Erases rows by their keys from all snapshots of a dataset.

The newest snapshot is replaced by one without the rows. Files of earlier snapshots lose the rows in
place; what their commits say about them, such as the number of rows, stays.

Every step follows from the files, so a command that was stopped can be run again. What only history
would tell is recorded: that tables made of the rows have to go.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from deltalake import DeltaTable

from millrace.models.common.errors import TransientError
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.forgotten_keys import remember_forgotten
from millrace.models.data.scrub_files import Erased, Found, find_files, scrub_files
from millrace.models.data.snapshot_use import find_held_versions, hold_erasure, is_ingesting
from millrace.models.data.snapshot_without import publish_without
from millrace.models.data.snapshots import RETENTION
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
    bad_keys: Collection[str] = (),
) -> Iterator[Erased]:
    """Erase rows from all snapshots of a dataset; no ingestion begins while the block runs.

    Later ingestions leave out rows with the keys that were found.

    Args:
        name: the dataset's name.
        uri: URI of its table, which may have a folder only, or nothing yet.
        erasure: the rows.
        wait: called again and again while an ingestion, or a job that needs the rows, runs.
        derived: tables that are made of snapshots; they are removed if a snapshot had the rows.
        bad_keys: keys that later ingestions leave out too, because bad rows have them.

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
            # Before the files no longer say which keys were found.
            remember_forgotten(uri, found.keys | set(bad_keys))
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

    def find_reader(self, found: Found) -> str:
        """Describe a job that needs what will be erased; empty if there is none."""
        held = find_held_versions(self.uri)
        if any(found.files.keys() & named_files(self.uri, [version]) for version in held):
            return "a job that reads an earlier snapshot"
        return "a job that may read tables made of the rows" if held and self.stale else ""
