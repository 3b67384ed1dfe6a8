"""Reads what changed in a source since the newest snapshot, and keeps the rows of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.part_store import PartList, parts_of_newest, reading_of
from millrace.models.data.part_tasks import ReadTask, TaskRunner, read_groups
from millrace.models.data.parts import Part, group_files, plan_reading
from millrace.models.data.read_source import Progress, ReadPart, open_rows
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.source import Source, SourceFile


@dataclass(frozen=True)
class ReadRows:
    """The rows of a source, read or kept.

    Attributes:
        schema: the schema that every row had to fit, before categories are collected.
        kept: parts of the newest snapshot whose rows stay.
        read: parts that were read.
    """

    schema: TableSchema
    kept: tuple[Part, ...]
    read: tuple[ReadPart, ...]

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
) -> ReadRows:
    """Read the new and changed files of a source, or all of it if that is not possible.

    Args:
        source: the source.
        table: the dataset's table; None if there is none.
        stored: the newest snapshot; None if there is none.
        folder: staging folder for the rows.
        run_tasks: runs the tasks that read the rows.
        on_progress: called after each batch with the number of rows read so far.

    Raises:
        InputError: there are no rows, a column does not fit, or the source cannot be read.
        TransientError: a source on the network cannot be read to the end, or a file changed while
            it was read.
    """
    known = _known_parts(table, stored.uri, source.spec) if table and stored else None
    way = _Way(folder, run_tasks, _Counter(on_progress).add)
    done = _read_new_files(source, known, way) if known else None
    return done or _read_all(source, stored.schema if stored else None, way)


@dataclass(frozen=True)
class _Way:
    """How files are read: into which folder, by what, and who is told of the rows."""

    folder: Path
    run_tasks: TaskRunner
    on_rows: Progress

    def read(
        self, source: Source, groups: Sequence[tuple[SourceFile, ...]], schema: TableSchema
    ) -> tuple[ReadPart, ...]:
        """Read groups of files into parts."""
        return read_groups(source, groups, schema, self.folder, self.run_tasks, self.on_rows)


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
) -> tuple[PartList, tuple[Part, ...]] | None:
    """Return the parts of the newest snapshot; None if they cannot be a part of the next one.

    That is so if they are not known, or were read with other settings.
    """
    known = None if spec.mode == "full" else parts_of_newest(table, uri)
    return known if known and known[0].reading == reading_of(spec) else None


def _read_new_files(
    source: Source, known: tuple[PartList, tuple[Part, ...]], way: _Way
) -> ReadRows | None:
    """Read the new and the changed files; None if all files have to be read.

    The first file says which columns there are and what their types are, so it must be unchanged.
    """
    listed, parts = known
    found = source.found()
    plan = plan_reading(parts, found, source.is_same)
    kept = {file.path for part in plan.kept for file in part.sources}
    if not found or found[0].path not in kept:
        return None
    return ReadRows(listed.schema, plan.kept, way.read(source, plan.read, listed.schema))


def _read_all(source: Source, stored: TableSchema | None, way: _Way) -> ReadRows:
    """Read the whole source."""
    schema, rows = open_rows(source, source.spec, stored)
    groups = group_files(source.found())
    if len(groups) > 1 or len(source.cut()) > 1:
        del rows
        return ReadRows(schema, (), way.read(source, groups, schema))
    task = ReadTask(source, schema, way.folder, opened=rows)
    return ReadRows(schema, (), tuple(way.run_tasks([task], way.on_rows)))
