"""Tasks that read a source: some files each, or some row groups of a large file, into a part.

A source is cut into the same parts whoever runs the tasks, so that rows, digest and statistics are
the same, to the last bit. A task can be pickled, and running it again makes other files.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from millrace.models.common.hardware import memory_bytes
from millrace.models.data.forgotten_keys import ForgottenKeys
from millrace.models.data.read_source import Progress, ReadPart, read_part
from millrace.models.data.schema import TableSchema
from millrace.models.data.sources.source import Chunk, Source, SourceFile

READER_BYTES = 192 * 1024 * 1024
"""What the rows take that are read and not yet checked, and that wait for a file to be written."""
THREAD_BYTES = 192 * 1024 * 1024
"""What the rows take that two threads check and write: a chunk with its copies, and a file."""

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Task(Protocol[T_co]):
    """Work on a source that runs by itself."""

    @property
    def source(self) -> Source:
        """What it reads."""
        ...

    @property
    def folder(self) -> Path:
        """The staging folder."""
        ...

    def run(self, on_rows: Progress, threads: int) -> T_co:
        """Do the work.

        Args:
            on_rows: called with the number of rows that were read since the last call.
            threads: number of threads that check, and of those that write.
        """
        ...


class TaskRunner(Protocol):
    """Runs tasks, and returns their results in order."""

    def __call__(self, tasks: Sequence[Task[T]], on_rows: Progress) -> list[T]:
        """Run tasks; `on_rows` is called with the number of rows read since the last call."""
        ...


@dataclass(frozen=True)
class ReadTask:
    """Reads rows into a part.

    Attributes:
        source: the rows.
        schema: the schema that every row must fit.
        folder: staging folder for the rows.
        is_whole: whether the source is whole files, whose digests are taken as well.
        opened: the rows if they are open already, so that the task cannot be pickled; None: the
            task opens them.
        forgotten: keys whose rows are left out.
    """

    source: Source
    schema: TableSchema
    folder: Path
    is_whole: bool = True
    opened: Iterator[Chunk] | None = None
    forgotten: ForgottenKeys = field(default_factory=ForgottenKeys)

    def run(self, on_rows: Progress, threads: int) -> ReadPart:
        """Read the rows."""
        chunks, spec = self.opened or self.source.chunks(), self.source.spec
        read = read_part(chunks, self.schema, spec, self.folder, on_rows, threads, self.forgotten)
        return read.of_files(self.source.read_files()) if self.is_whole else read


@dataclass(frozen=True)
class DescribeTask:
    """Takes the digests of files that were read.

    Attributes:
        source: the files.
        folder: the staging folder.
    """

    source: Source
    folder: Path

    def run(self, on_rows: Progress, threads: int) -> tuple[SourceFile, ...]:
        """Return the files with their digests."""
        return self.source.read_files()


@dataclass(frozen=True)
class LocalTasks:
    """Runs tasks one after the other in this process, each of them with several threads.

    Attributes:
        threads: number of threads.
    """

    threads: int

    @classmethod
    def within(cls, memory: int | None) -> "LocalTasks":
        """Return tasks with as many threads as there are cores and as fit into memory.

        Args:
            memory: bytes that the rows may take; None: a quarter of what this process may use.
        """
        rows = memory_bytes() // 4 if memory is None else memory
        fitting = (rows - READER_BYTES) // THREAD_BYTES
        return cls(max(1, min(os.cpu_count() or 1, fitting)))

    def __call__(self, tasks: Sequence[Task[T]], on_rows: Progress) -> list[T]:
        """Run tasks; `on_rows` is called after each batch."""
        return [task.run(on_rows, self.threads) for task in tasks]


def read_groups(
    source: Source,
    groups: Sequence[tuple[SourceFile, ...]],
    schema: TableSchema,
    folder: Path,
    run_tasks: TaskRunner,
    on_rows: Progress,
    forgotten: ForgottenKeys,
) -> tuple[ReadPart, ...]:
    """Read groups of files into parts, a large file into several.

    Args:
        source: the source with the files.
        groups: the groups.
        schema: the schema that every row must fit.
        folder: staging folder for the rows.
        run_tasks: runs the tasks.
        on_rows: called with the number of rows that were read since the last call.
        forgotten: keys whose rows are left out.

    Raises:
        InputError: a column has too many categories, or a file cannot be read.
        TransientError: a file on the network cannot be read, or a file changed while it was read.
    """
    sources = [source.only(group) for group in groups]
    cut = [(each, each.cut()) for each in sources]
    tasks = [
        ReadTask(piece, schema, folder, is_whole=len(pieces) == 1, forgotten=forgotten)
        for _, pieces in cut
        for piece in pieces
    ]
    read = iter(run_tasks(tasks, on_rows))
    large = [DescribeTask(whole, folder) for whole, pieces in cut if len(pieces) > 1]
    described = iter(run_tasks(large, on_rows))
    parts: list[ReadPart] = []
    for _, pieces in cut:
        if len(pieces) == 1:
            parts.append(next(read))
        else:
            files = next(described)
            parts += [next(read).of_files(files) for _ in pieces]
    return tuple(parts)
