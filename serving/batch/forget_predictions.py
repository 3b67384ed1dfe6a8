"""Erases rows by their keys from predictions and dead letters, and from what killed jobs left."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import deltalake

from millrace.models.data.erase_rows import CleanFile, erase_in_newest, named_sizes
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.forget_rows import Wait, alone
from millrace.models.data.lease import held_names
from millrace.models.data.scrub_files import Erased, find_files, scrub_files
from millrace.serving.batch.commit import Partition, metadata_of_rest
from millrace.serving.batch.job_state import JOBS


@dataclass(frozen=True)
class BatchTables:
    """The tables that batch jobs write to.

    Attributes:
        predictions: URI of the predictions, whose folder also has the state of the jobs.
        dead_letters: URI of the dead letters.
    """

    predictions: str
    dead_letters: str

    @property
    def jobs(self) -> Folder:
        """The folder of the states of unfinished jobs."""
        return Folder(f"{self.predictions}/{JOBS}")


def forget_in_batches(
    tables: BatchTables, prediction: Erasure, letter: Erasure, wait: Wait
) -> tuple[Erased, Erased]:
    """Erase rows from all versions of predictions and dead letters.

    Dead letters of unfinished jobs count as dead letters.

    Args:
        tables: the tables, which may have folders only.
        prediction: the rows of the predictions.
        letter: the rows of the dead letters.
        wait: called again and again while a batch job runs.

    Raises:
        TransientError: other commits came first, again and again.
        OSError: a table's folder cannot be written.
    """
    predictions, letters = Erased(), Erased()
    if not any(Folder(uri).exists() for uri in (tables.predictions, tables.dead_letters)):
        return predictions, letters
    while True:
        with alone(tables.predictions, wait):
            busy = find_running(tables)
            predictions += _forget_in_table(tables, tables.predictions, prediction)
            letters += _forget_in_table(tables, tables.dead_letters, letter)
            letters += scrub_files(tables.jobs.uri, letter, partial(_busy_jobs, tables))
            busy |= find_running(tables)  # what began meanwhile was left out
        if not busy:
            return predictions, letters
        wait(f"{len(busy)} batch jobs that write to {tables.predictions}")


def find_running(tables: BatchTables) -> set[tuple[str, str]]:
    """Return partition and name of each job that runs now."""
    return {
        (partition, name)
        for partition in tables.jobs.folders()
        for name in held_names(tables.jobs.subfolder(partition))
    }


def _forget_in_table(tables: BatchTables, uri: str, erasure: Erasure) -> Erased:
    """Erase rows from a table, but for the partitions that a job writes to."""
    if not Folder(uri).exists():
        return Erased()
    find_busy = partial(_busy_partitions, tables)
    erased = Erased()
    if deltalake.DeltaTable.is_deltatable(uri):
        table = deltalake.DeltaTable(uri)
        (column,) = table.metadata().partition_columns
        found = find_files(uri, erasure, find_busy()).only(named_sizes(table))
        for value in sorted({_value_of(path) for path in found}):
            partition = Partition(uri, column, value, "")
            erased += erase_in_newest(
                uri, erasure, f"{column}={value}/", partial(_describe, partition)
            )
    return erased + scrub_files(uri, erasure, find_busy)


def _describe(
    partition: Partition, table: deltalake.DeltaTable, clean: Collection[CleanFile]
) -> dict[str, str]:
    """Return the metadata of the commit that takes rows out of a partition."""
    within = f"{partition.column}={partition.value}/"
    before = sum(path.startswith(within) for path in named_sizes(table))
    return metadata_of_rest(partition, before - sum(each.name is None for each in clean))


def _value_of(path: str) -> str:
    """Return the partition's value from the path of its file, `column=value/…`."""
    return path.partition("/")[0].partition("=")[2]


def _busy_partitions(tables: BatchTables) -> tuple[str, ...]:
    return tuple(f"{partition}/" for partition, _ in find_running(tables))


def _busy_jobs(tables: BatchTables) -> tuple[str, ...]:
    return tuple(f"{partition}/{name}/" for partition, name in find_running(tables))
