"""The data files that a job has written, and those of them that are committed."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from millrace.models.data.schema import KEY
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.job import ROW, TOKENS_IN, TOKENS_OUT, RowNumbers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.drift import Bins
from millrace.serving.batch.reconcile_rows import without_rows

READ = (ROW, KEY, TOKENS_IN, TOKENS_OUT)
"""Columns that are looked at before the commit."""


def prune(partition: Partition, workplace: JobState) -> RowNumbers:
    """Remove what a dead run was writing.

    Returns:
        The rows of the files that are whole, sorted, each once.
    """
    filesystem, _ = partition.place
    whole = _whole(partition, workplace)
    for file in partition.files():
        if file.path not in whole:
            filesystem.delete_file(file.path)
    places = [pq.read_table(f, columns=[ROW], filesystem=filesystem)[ROW] for f in whole]
    found: RowNumbers = np.concatenate([np.empty(0, np.int64), *(p.to_numpy() for p in places)])
    return np.unique(found)


def written(
    partition: Partition, resumable: JobState | None, output: pa.Schema
) -> dict[str, pa.Table]:
    """Return places, keys and tokens of each data file that is whole.

    Args:
        partition: where the job writes.
        resumable: where its checkpoint is; None where it keeps none, and every file is whole.
        output: the job's.
    """
    filesystem, _ = partition.place
    files = (
        [file.path for file in partition.files()]
        if resumable is None
        else _whole(partition, resumable)
    )
    names = [name for name in READ if name in output.names]
    return {file: pq.read_table(file, columns=names, filesystem=filesystem) for file in files}


def committable(
    partition: Partition, files: Mapping[str, pa.Table], without: Mapping[str, RowNumbers]
) -> list[pa.fs.FileInfo]:
    """Return the files to commit: those that were written, or a copy without some rows.

    Args:
        partition: where they are.
        files: that were written, by path.
        without: the rows that a file's copy does not have.
    """
    filesystem, path = partition.place
    names = []
    for file in files:
        if file not in without:
            names.append(file)
            continue
        left = without_rows(pq.read_table(file, filesystem=filesystem), without[file])
        if left.num_rows:
            name = f"{PurePosixPath(file).stem}-once.parquet"
            Folder(partition.folder).write_table(name, left)
            names.append(f"{path}/{name}")
    found: list[pa.fs.FileInfo] = filesystem.get_file_info(names)
    return found


def answers_seen(
    partition: Partition, files: Collection[str], bins: Sequence[Bins]
) -> dict[str, list[int]]:
    """Return how many answers are in each bin of the drift, by column.

    Args:
        partition: where the files are.
        files: paths of those that were written.
        bins: of columns of the output.
    """
    if not bins:
        return {}
    filesystem, _ = partition.place
    names = [each.column for each in bins]
    counts = [np.zeros(len(each.counts), np.int64) for each in bins]
    for file in files:
        rows = pq.read_table(file, columns=names, filesystem=filesystem)
        for each, seen in zip(bins, counts, strict=True):
            seen += each.counted(rows[each.column].combine_chunks())
    return {name: seen.tolist() for name, seen in zip(names, counts, strict=True)}


def _whole(partition: Partition, workplace: JobState) -> list[str]:
    """Return the files whose checkpoint is there, which Ray writes after them, by their name."""
    whole = workplace.checkpointed()
    files = (file.path for file in partition.files())
    return [file for file in files if PurePosixPath(file).name.rpartition("-")[0] in whole]
