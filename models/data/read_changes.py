"""Reads what changed in a source since the newest snapshot, and keeps the rows of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deltalake import DeltaTable

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.files_read import NO_FILES, FilesRead
from millrace.models.data.forgotten_keys import ForgottenKeys
from millrace.models.data.part_store import PartList, parts_of_newest, reading_of
from millrace.models.data.part_tasks import ReadTask, TaskRunner, read_groups
from millrace.models.data.parts import Part, group_files, plan_reading
from millrace.models.data.read_source import Progress, ReadPart, open_rows
from millrace.models.data.schema import TableSchema, describe_changes
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.source import Source, SourceFile


@dataclass(frozen=True)
class ReadRows:
    """The rows of a source, read or kept.

    Attributes:
        schema: the schema that every row had to fit, before categories are collected.
        kept: parts of the newest snapshot whose rows stay.
        read: parts that were read.
        files: which files of the source were read, and why.
        keeps_all: whether all rows of the newest snapshot stay.
        dropped: parts of the newest snapshot whose rows go, as far as they are known.
    """

    schema: TableSchema
    kept: tuple[Part, ...]
    read: tuple[ReadPart, ...]
    files: FilesRead
    keeps_all: bool = False
    dropped: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return (*self.kept, *(each.part for each in self.read))


def read_changes(
    source: Source,
    table: DeltaTable | None,
    stored: Snapshot | None,
    folder: Path,
    run_tasks: TaskRunner,
    on_progress: Progress | None = None,
    forgotten: ForgottenKeys | None = None,
) -> ReadRows:
    """Read the new and changed files of a source, or all of it if that is not possible.

    Args:
        source: the source.
        table: the dataset's table; None if there is none.
        stored: the newest snapshot; None if there is none.
        folder: staging folder for the rows.
        run_tasks: runs the tasks that read the rows.
        on_progress: called after each batch with the number of rows read so far.
        forgotten: keys whose rows are left out; None: no keys.

    Raises:
        InputError: there are no rows, a column does not fit, or the source cannot be read.
        TransientError: a source on the network cannot be read to the end, or a file changed while
            it was read.
    """
    way = _Way(folder, run_tasks, _Counter(on_progress).add, forgotten or ForgottenKeys())
    if table is None or stored is None:
        return _read_all(source, stored.schema if stored else None, way, "the first ingestion")
    known = _known_parts(table, stored.uri, source.spec)
    if isinstance(known, str):
        return _read_all(source, stored.schema, way, known)
    done = _read_new_files(source, known, stored.schema, way)
    if isinstance(done, str):
        return replace(_read_all(source, stored.schema, way, done), dropped=known[1])
    return done


@dataclass(frozen=True)
class _Way:
    """How files are read: into which folder, by what, who is told, and without which rows."""

    folder: Path
    run_tasks: TaskRunner
    on_rows: Progress
    forgotten: ForgottenKeys

    def read(
        self, source: Source, groups: Sequence[tuple[SourceFile, ...]], schema: TableSchema
    ) -> tuple[ReadPart, ...]:
        """Read groups of files into parts."""
        return read_groups(
            source, groups, schema, self.folder, self.run_tasks, self.on_rows, self.forgotten
        )


@dataclass
class _Counter:
    """Counts rows, and tells the sum after each batch."""

    tell: Progress | None
    rows: int = 0

    def add(self, rows: int) -> None:
        self.rows += rows
        if self.tell:
            self.tell(self.rows)


def _known_parts(
    table: DeltaTable, uri: str, spec: DatasetSpec
) -> tuple[PartList, tuple[Part, ...]] | str:
    """Return the parts of the newest snapshot, or why they cannot be a part of the next one."""
    if spec.mode == "full":
        return "dataset.mode is full"
    known = parts_of_newest(table, uri)
    if not isinstance(known, str) and known[0].reading != reading_of(spec):
        return "a setting of dataset has changed, or this version of Millrace reads otherwise"
    return known


def _read_new_files(
    source: Source, known: tuple[PartList, tuple[Part, ...]], stored: TableSchema, way: _Way
) -> ReadRows | str:
    """Read the new and the changed files, or return why all files have to be read.

    The source's first rows say which columns there are, so they must still say the same.
    """
    listed, parts = known
    found = source.found()
    if not found:
        return NO_FILES
    plan = plan_reading(parts, found, source.is_same)
    if len(found) == 1 and plan.read and found[0].path not in plan.unchanged:
        was_read = any(found[0].path == file.path for part in parts for file in part.sources)
        return "it has changed" if was_read else "it is new"
    if plan.read or plan.dropped:
        schema, _ = open_rows(source, source.spec, stored)
        if schema != listed.schema:
            changes = describe_changes(listed.schema, schema)
            return f"the first rows say which columns there are, and have changed: {changes}"
    read = way.read(source, plan.read, listed.schema)
    files = FilesRead.by_plan(plan, parts, found)
    keeps_all = not plan.dropped
    return ReadRows(listed.schema, plan.kept, read, files, keeps_all, plan.dropped)


def _read_all(source: Source, stored: TableSchema | None, way: _Way, because: str) -> ReadRows:
    """Read the whole source; `because` is the reason."""
    schema, rows = open_rows(source, source.spec, stored)
    found = source.found()
    groups, files = group_files(found), FilesRead.all_of(found, because)
    if len(groups) > 1 or len(source.cut()) > 1:
        del rows
        return ReadRows(schema, (), way.read(source, groups, schema), files)
    task = ReadTask(source, schema, way.folder, opened=rows, forgotten=way.forgotten)
    return ReadRows(schema, (), tuple(way.run_tasks([task], way.on_rows)), files)
