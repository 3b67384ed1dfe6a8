"""CSV and JSON Lines as encoded rows: read by ingestion's own readers, in tasks of Ray Data.

So a cell means the same here and there, and one that cannot be read is one row with an error, not
the end of the job.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from models.columns import KEY
from models.errors import InputError
from models.source import broken_off
from models.source_csv import CsvSource
from models.source_files import File
from models.source_jsonl import JsonlSource
from models.specs.dataset import DatasetSpec
from serving.scorer import ScoreJob, encoded, unreadable


class TextRows(Datasource):
    """CSV or JSON Lines files as encoded rows."""

    def __init__(self, source: str, format_name: str, files: Sequence[File], job: ScoreJob) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source, self.format, self.files, self.job = source, format_name, files, job

    def estimate_inmemory_data_size(self) -> int:
        """Return about how many bytes the rows will take."""
        return sum(file.size for file in self.files)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: ray.data.DataContext | None = None,
    ) -> list[ReadTask]:
        """Return tasks that read whole files, one each where that is not more than asked for."""
        count = min(parallelism, len(self.files))
        return [self._task(self.files[first::count], per_task_row_limit) for first in range(count)]

    def _task(self, files: Sequence[File], limit: int | None) -> ReadTask:
        return ReadTask(
            partial(_read, self.source, self.format, files, self.job),
            BlockMetadata(
                num_rows=None,
                size_bytes=sum(file.size for file in files),
                exec_stats=None,
                input_files=tuple(file.path for file in files),
            ),
            per_task_row_limit=limit,
        )


def column_names(source: str, format_name: str, files: tuple[File, ...]) -> list[str]:
    """Return the columns that the input has, by its first rows.

    Raises:
        InputError: it has no rows.
    """
    spec = DatasetSpec(source=source, target=KEY)  # the target is of no importance here
    if format_name == "csv":
        return list(CsvSource(spec, files).schema.names)
    chunks = JsonlSource(spec, files).chunks()
    rows = next((chunk.rows for chunk in chunks if chunk.rows.num_rows), None)
    if rows is None:
        raise InputError(
            f"{source} holds no rows", valid="one JSON object to a line", hint="check --input"
        )
    return list(rows.schema.names)


def _read(
    source: str, format_name: str, files: Sequence[File], job: ScoreJob
) -> Iterator[pa.Table]:
    """Read and encode whole files; runs in a task of Ray."""
    try:
        for file in files:
            for chunk in _opened(file, format_name, job).chunks():
                yield encoded(chunk.rows, job)
                if chunk.unreadable:
                    yield unreadable(chunk.unreadable, job)
    except OSError as error:
        raise broken_off(source, error) from error


def _opened(file: File, format_name: str, job: ScoreJob) -> CsvSource | JsonlSource:
    """Return a file as a source that gives what the job looks at, of what the file has."""
    spec = DatasetSpec(source=file.path, target=KEY, features=job.columns)
    if format_name == "jsonl":
        return JsonlSource(spec, (file,))
    names = CsvSource(spec, (file,)).schema.names
    present = tuple(name for name in job.columns if name in names)
    # Every source has a target; here it is of no importance which column that is.
    return CsvSource(spec.model_copy(update={"target": names[0], "features": present}), (file,))
