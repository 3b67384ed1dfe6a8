"""Stands in for Ray Data where a job's rows are few: reads, scores and writes in this process.

A job on a real Ray starts an actor, which takes seconds. Reading, scoring, refusing, resuming and
committing are the same code here; only Ray's scheduling and its errors are not.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.data

from millrace.serving.batch import actor
from millrace.serving.batch.input.reader import RemainingRows
from millrace.serving.batch.job import ROW
from millrace.serving.batch.monitoring import progress_counter
from millrace.serving.batch.monitoring.progress_counter import Meter, ProgressCounter


@dataclass(frozen=True)
class RowsHere:
    """What a job uses of a Ray dataset."""

    tables: Iterable[pa.Table]

    def map_batches(
        self, kind: Callable[..., Any], fn_constructor_args: Any, batch_size: int | None, **_: Any
    ) -> "RowsHere":
        def answered() -> Iterator[pa.Table]:
            worker = kind(*fn_constructor_args)
            for table in self.tables:
                for first in range(0, len(table), batch_size or len(table)):
                    yield worker(table.slice(first, batch_size))

        return RowsHere(answered())

    def write_parquet(self, path: str, filesystem: Any, **_: Any) -> None:
        """Write a file for each table, and its checkpoint after it, as Ray does."""
        checkpoint = ray.data.DataContext.get_current().checkpoint_config
        filesystem.create_dir(path)
        for table in self.tables:
            name = uuid4().hex
            if not len(table):
                continue
            pq.write_table(table, f"{path}/{name}-0.parquet", filesystem=filesystem)
            if checkpoint is not None:
                there, folder = checkpoint.filesystem, checkpoint.checkpoint_path
                there.create_dir(folder)
                pq.write_table(table.select([ROW]), f"{folder}/{name}.parquet", filesystem=there)


def read_here(rows: RemainingRows, override_num_blocks: int, **_: Any) -> RowsHere:
    """Stand in for `ray.data.read_datasource`."""
    tasks = rows.get_read_tasks(override_num_blocks)
    return RowsHere(table for task in tasks for table in task())


class Called:
    """Stands in for the handle of an actor: its methods are called at once."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return _Method(getattr(self._actor, name))


@dataclass(frozen=True)
class _Method:
    method: Callable[..., Any]

    def remote(self, *given: Any) -> Any:
        return self.method(*given)


def without_ray(patch: pytest.MonkeyPatch) -> None:
    """Have jobs run in this process."""
    patch.setattr(actor.ray.data, "read_datasource", read_here)
    patch.setattr(progress_counter.ray, "get", lambda found: found)
    patch.setattr(
        progress_counter, "new_meter", lambda: Meter(Called(ProgressCounter()), uuid4().hex)
    )
