"""The state of one batch job, from which a new run resumes a killed run.

The state is the folder `_jobs/<partition>/<fingerprint>/` in the output table, which readers of
Delta tables ignore. In it, `job.json` names the folder of the job's data files. `checkpoints/`
lists the rows in these files, `dead/` holds the rows that are not scored, and `counts/` has the
number of rows of each piece of the input.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa

from millrace.models.data.folder import Folder
from millrace.models.data.lease import Work, hold_lease, is_held
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.job import DEAD, ROW

JOBS = "_jobs"
RECORD = "job.json"
BATCH_JOB = Work(
    "another run of this batch job",
    "wait until that run ends, or stop it; the rows that it has scored are kept",
)
SHORT = 16
"""Number of digits of the fingerprint in the name of a folder; `job.json` has all digits."""


@dataclass(frozen=True)
class JobState:
    """The state of one job.

    Attributes:
        folder: `_jobs/<partition>/<fingerprint>`.
    """

    folder: Folder

    @property
    def checkpoints(self) -> Folder:
        """Ray's row checkpoints: a folder for each run, with a file of `ROW`s for each data file.

        Each run has its own folder. If Ray found checkpoints of earlier runs in the folder, it
        would read them and filter the input row by row. Instead, the tasks that read the input
        leave out the rows that earlier runs scored.
        """
        return self.folder.subfolder("checkpoints")

    def new_checkpoint(self) -> Folder:
        """Return a folder for the checkpoint of one more run."""
        return self.checkpoints.subfolder(uuid4().hex[:8])

    def read_checkpointed(self) -> set[str]:
        """Return the names of Ray's checkpoint files, without `.parquet`.

        The name of a complete data file begins with the name of its checkpoint file.
        """
        runs = [self.checkpoints.subfolder(run) for run in self.checkpoints.folders()]
        files = (file for run in runs for file in run.files(".parquet"))
        return {file.base_name.removesuffix(".parquet") for file in files}

    @property
    def dead(self) -> Folder:
        """Rows that are not scored, with the columns of `DEAD`."""
        return self.folder.subfolder("dead")

    @property
    def counts(self) -> Folder:
        """Number of rows of each piece of the input, as JSON files."""
        return self.folder.subfolder("counts")

    def write_count(self, piece: str, rows: int, seen: Mapping[str, Sequence[int]]) -> None:
        """Record that a piece was read completely; reading it again writes the same record.

        Args:
            piece: name of the piece.
            rows: number of rows of the piece.
            seen: number of rows in each drift bin, by column.
        """
        self.counts.write_json(f"{piece}.json", {"rows": rows, "seen": dict(seen)})

    def read_row_counts(self) -> dict[str, int]:
        """Return the number of rows of each piece that was read completely."""
        return {name: count["rows"] for name, count in self._read_counts().items()}

    def read_bin_counts(self) -> dict[str, list[int]]:
        """Return the number of rows of all pieces in each drift bin, by column."""
        found: dict[str, list[int]] = {}
        for count in self._read_counts().values():
            for column, counts in count["seen"].items():
                before = found.get(column, [0] * len(counts))
                found[column] = [a + b for a, b in zip(before, counts, strict=True)]
        return found

    def _read_counts(self) -> dict[str, Any]:
        names = [file.base_name for file in self.counts.files(".json")]
        return {name.removesuffix(".json"): self.counts.read_json(name) for name in names}

    def refuse(self, name: str, rows: pa.Table) -> None:
        """Write rows that are not scored.

        Args:
            name: name of the file; the same rows must always get the same name.
            rows: the rows, with the columns of `DEAD`.
        """
        if rows.num_rows:
            self.dead.write_table(f"{name}.parquet", rows)

    def read_refused(self) -> pa.Table:
        """Return the rows that are not scored, each once, in the order of the input."""
        rows = self.dead.read_tables(DEAD).sort_by(ROW)
        numbers = rows[ROW].to_pylist()
        first = [n for n, row in enumerate(numbers) if n == 0 or numbers[n - 1] != row]
        return rows.take(pa.array(first, pa.int64()))


def job_state_of(partition: Partition, fingerprint: str) -> JobState:
    """Return the state of the job with a fingerprint on a partition."""
    return JobState(leases_of(partition).subfolder(fingerprint[:SHORT]))


def leases_of(partition: Partition) -> Folder:
    """Return the folder of a partition's jobs and of their leases."""
    return Folder(f"{partition.table}/{JOBS}/{partition.column}={partition.value}")


def hold_job(partition: Partition, fingerprint: str) -> AbstractContextManager[None]:
    """Hold the lease of the job with a fingerprint on a partition.

    Raises:
        TransientError: the same job is running.
    """
    return hold_lease(leases_of(partition), fingerprint[:SHORT], BATCH_JOB)


def open_job_state(
    partition: Partition, fingerprint: str, *, fresh: bool = False
) -> tuple[JobState, Partition]:
    """Return a job's state, and the partition that the job writes to.

    If an earlier run of the job left a state, both are those of the earlier run.

    Args:
        partition: the partition, without the id of a job.
        fingerprint: the job's fingerprint.
        fresh: whether to delete what an earlier run left.
    """
    state = job_state_of(partition, fingerprint)
    record = state.folder.read_json(RECORD)
    if record is not None and record["fingerprint"] == fingerprint and not fresh:
        return state, replace(partition, job=record["job"])
    _remove(state, partition)
    job = f"{fingerprint[:SHORT]}-{uuid4().hex[:8]}"
    state.folder.write_json(RECORD, {"fingerprint": fingerprint, "job": job})
    return state, replace(partition, job=job)


def remove_leftovers(partition: Partition, fingerprint: str) -> None:
    """Delete what killed runs of other jobs left behind for a partition; spare running jobs.

    Args:
        partition: the partition, without the id of a job.
        fingerprint: fingerprint of the job whose work is kept.
    """
    leases = leases_of(partition)
    for name in leases.folders():
        if name != fingerprint[:SHORT] and not is_held(leases, name):
            _remove(JobState(leases.subfolder(name)), partition)


def find_unfinished(table: str) -> frozenset[str]:
    """Return the folders with data files that unfinished jobs of a table may still commit.

    Args:
        table: URI of the table.

    Returns:
        Paths in the table's folder; each ends with `/`.
    """
    jobs = Folder(f"{table}/{JOBS}")
    found = set()
    for partition in jobs.folders():
        leases = jobs.subfolder(partition)
        for name in leases.folders():
            record = leases.subfolder(name).read_json(RECORD)
            if record is not None:
                found.add(f"{partition}/{record['job']}/")
    return frozenset(found)


def find_abandoned(partition: Partition, before: datetime) -> list[str]:
    """Return the values of the other partitions whose newest unfinished job began before a time.

    Missed dates are scored again within days, so no run will resume these jobs.

    Args:
        partition: a partition of the table.
        before: the time, with a time zone.
    """
    found = []
    for folder in Folder(f"{partition.table}/{JOBS}").folders():
        other = replace(partition, value=folder.removeprefix(f"{partition.column}="))
        jobs = (leases_of(other).subfolder(name) for name in leases_of(other).folders())
        began = [file.mtime for job in jobs for file in job.files(RECORD)]
        if other.value != partition.value and began and max(began) < before:
            found.append(other.value)
    return found


def _remove(state: JobState, partition: Partition) -> None:
    """Delete a job's data files and its state.

    The data files are deleted first, because only a record in the state names their folder.
    """
    record = state.folder.read_json(RECORD)
    if record is not None:
        replace(partition, job=record["job"]).remove()
    state.folder.remove()
