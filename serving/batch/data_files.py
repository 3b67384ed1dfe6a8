"""The data files that a job has written, and the selection of those that are committed."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from millrace.models.data.schema import KEY
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.job import ROW, TOKENS_IN, TOKENS_OUT, RowNumbers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.drift import Bins
from millrace.serving.batch.reconcile_rows import NO_ROWS, drop_rows

CHECKED = (ROW, KEY, TOKENS_IN, TOKENS_OUT)
"""Columns that are read before the commit."""


def remove_partial_files(partition: Partition, state: JobState) -> RowNumbers:
    """Delete the files that a killed run left incomplete.

    Returns:
        The `ROW`s of the complete files, sorted, each once.
    """
    filesystem, _ = partition.location
    complete = _complete_files(partition, state)
    for file in partition.files():
        if file.path not in complete:
            filesystem.delete_file(file.path)
    rows = [pq.read_table(f, columns=[ROW], filesystem=filesystem)[ROW] for f in complete]
    found: RowNumbers = np.concatenate([NO_ROWS, *(each.to_numpy() for each in rows)])
    return np.unique(found)


def read_data_files(
    partition: Partition, resumable: JobState | None, output: pa.Schema
) -> dict[str, pa.Table]:
    """Return row numbers, keys and tokens of each complete data file, by its path.

    Args:
        partition: where the job writes.
        resumable: the state with the checkpoint; None for a job without one, whose files are all
            complete.
        output: the schema of the job's output.
    """
    filesystem, _ = partition.location
    if resumable is None:
        files = [file.path for file in partition.files()]
    else:
        files = _complete_files(partition, resumable)
    names = [name for name in CHECKED if name in output.names]
    return {file: pq.read_table(file, columns=names, filesystem=filesystem) for file in files}


def select_files_to_commit(
    partition: Partition, files: Mapping[str, pa.Table], excluded: Mapping[str, RowNumbers]
) -> list[pa.fs.FileInfo]:
    """Return the files to commit; a file with excluded rows is replaced by a copy without them.

    Args:
        partition: where the files are.
        files: the written files, by path.
        excluded: the `ROW`s to leave out, by the file's path.
    """
    filesystem, path = partition.location
    names = []
    for file in files:
        if file not in excluded:
            names.append(file)
            continue
        left = drop_rows(pq.read_table(file, filesystem=filesystem), excluded[file])
        if left.num_rows:
            name = f"{PurePosixPath(file).stem}-once.parquet"
            partition.folder.write_table(name, left)
            names.append(f"{path}/{name}")
    found: list[pa.fs.FileInfo] = filesystem.get_file_info(names)
    return found


def count_answers(
    partition: Partition, files: Collection[str], bins: Sequence[Bins]
) -> dict[str, list[int]]:
    """Return the number of answers in each bin of the drift, by column.

    Args:
        partition: where the files are.
        files: paths of the written files.
        bins: of columns of the output.
    """
    if not bins:
        return {}
    filesystem, _ = partition.location
    names = [each.column for each in bins]
    counts = [np.zeros(len(each.counts), np.int64) for each in bins]
    for file in files:
        rows = pq.read_table(file, columns=names, filesystem=filesystem)
        for each, seen in zip(bins, counts, strict=True):
            seen += each.count(rows[each.column].combine_chunks())
    return {name: seen.tolist() for name, seen in zip(names, counts, strict=True)}


def _complete_files(partition: Partition, state: JobState) -> list[str]:
    """Return the files that have a checkpoint; Ray writes it after the file, with its name."""
    complete = state.read_checkpointed()
    files = (file.path for file in partition.files())
    return [file for file in files if PurePosixPath(file).name.rpartition("-")[0] in complete]
