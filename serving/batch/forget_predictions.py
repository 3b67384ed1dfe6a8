"""Erases rows by their keys from a table of predictions or dead letters, and from its jobs."""

import deltalake
import pyarrow as pa

from millrace.models.data.erase_rows import Erasure, erase_in_newest, scrub_files
from millrace.models.data.folder import Folder
from millrace.models.data.forget_rows import Wait
from millrace.models.data.lease import held_names
from millrace.serving.batch.job_state import JOBS


def forget_in_predictions(uri: str, erasure: Erasure, wait: Wait) -> int:
    """Erase rows from all versions of a table, and return how many the newest had.

    Args:
        uri: URI of the table.
        erasure: the rows.
        wait: called again and again while a batch job writes to the table.

    Raises:
        TransientError: other commits came first, again and again.
        OSError: the table's folder cannot be written.
    """
    if not deltalake.DeltaTable.is_deltatable(uri):
        return 0
    erased = 0
    while True:
        busy = running_jobs(uri)
        partitions = tuple(f"{partition}/" for partition, _ in busy)
        erased += erase_in_newest(uri, erasure, partitions)
        scrub_files(uri, erasure, partitions)
        if not busy:
            return erased
        wait(f"{len(busy)} batch jobs that write to {uri}")


def forget_in_jobs(uri: str, erasure: Erasure) -> int:
    """Erase rows from what killed jobs left, and return the number of files with such rows."""
    jobs = Folder(f"{uri}/{JOBS}")
    busy = {job for _, job in running_jobs(uri)}
    filesystem, _ = jobs.location
    scrubbed = 0
    for partition in jobs.folders():
        for job in jobs.subfolder(partition).folders():
            if job in busy:
                continue
            for file in _files_below(jobs.subfolder(partition).subfolder(job)):
                if erasure.count(filesystem, file.path):
                    erasure.scrub(filesystem, file.path)
                    scrubbed += 1
    return scrubbed


def running_jobs(uri: str) -> list[tuple[str, str]]:
    """Return partition and name of each job that works on a table now."""
    jobs = Folder(f"{uri}/{JOBS}")
    return [
        (partition, name)
        for partition in jobs.folders()
        for name in sorted(held_names(jobs.subfolder(partition)))
    ]


def _files_below(folder: Folder) -> list[pa.fs.FileInfo]:
    found = folder.files(".parquet")
    for name in folder.folders():
        found += _files_below(folder.subfolder(name))
    return found
