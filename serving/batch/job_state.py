"""Where one batch job keeps what it has done, so that a run after a dead one goes on from there.

It is the folder `_jobs/<partition>/<fingerprint>/` in the output table, which readers of Delta
tables pass over: `job.json` names the folder of the job's data files, `checkpoints/` the rows that
are in them, `dead/` the rows that will not be scored, and `counts/` how many rows each piece of the
input has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa

from millrace.serving.batch.commit import Partition
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.job import DEAD, ROW
from millrace.serving.batch.lease import is_held

JOBS = "_jobs"
RECORD = "job.json"
SHORT = 16
"""Digits of a fingerprint in the name of a folder; the whole is in `job.json`."""


@dataclass(frozen=True)
class JobState:
    """The folder of one job.

    Attributes:
        folder: `_jobs/<partition>/<fingerprint>`.
    """

    folder: Folder

    @property
    def checkpoints(self) -> Folder:
        """Ray's row checkpoints: a folder for each run, in it a file of `ROW` for each data file.

        Each run has its own, for Ray reads again what it finds, and filters row by row; what a dead
        run did is left out before it is read.
        """
        return self.folder.within("checkpoints")

    def checkpoint(self) -> Folder:
        """Return a folder for the checkpoint of one more run."""
        return self.checkpoints.within(uuid4().hex[:8])

    def checkpointed(self) -> set[str]:
        """Return the names that Ray gave to its checkpoints, those of the data files."""
        runs = self.checkpoints.folders()
        files = (file for run in runs for file in self.checkpoints.within(run).files(".parquet"))
        return {file.base_name.removesuffix(".parquet") for file in files}

    @property
    def dead(self) -> Folder:
        """Rows that are not scored, of `DEAD`."""
        return self.folder.within("dead")

    @property
    def counts(self) -> Folder:
        """Rows of each piece of the input."""
        return self.folder.within("counts")

    def count(self, piece: str, rows: int, seen: Mapping[str, Sequence[int]] | None = None) -> None:
        """Keep how many rows a piece has; reading it again finds the same.

        Args:
            piece: its name.
            rows: how many.
            seen: by column, how many are in each bin of the drift.
        """
        self.counts.write_json(f"{piece}.json", {"rows": rows, "seen": dict(seen or {})})

    def counted(self) -> dict[str, int]:
        """Return how many rows each piece has that was read to its end."""
        return {name: kept["rows"] for name, kept in self._counts().items()}

    def seen(self) -> dict[str, list[int]]:
        """Return by column how many rows of all pieces are in each bin of the drift."""
        found: dict[str, list[int]] = {}
        for kept in self._counts().values():
            for column, counts in kept["seen"].items():
                before = found.get(column, [0] * len(counts))
                found[column] = [a + b for a, b in zip(before, counts, strict=True)]
        return found

    def _counts(self) -> dict[str, Any]:
        names = [file.base_name for file in self.counts.files(".json")]
        return {name.removesuffix(".json"): self.counts.read_json(name) for name in names}

    def refuse(self, name: str, rows: pa.Table) -> None:
        """Put rows aside.

        Args:
            name: of the file; the same rows come under the same name again.
            rows: of `DEAD`.
        """
        if rows.num_rows:
            self.dead.write_table(f"{name}.parquet", rows)

    def refused(self) -> pa.Table:
        """Return the rows that were put aside, each once, in the order of the input."""
        rows = self.dead.read_tables(DEAD).sort_by(ROW)
        places = rows[ROW].to_pylist()
        first = [n for n, row in enumerate(places) if n == 0 or places[n - 1] != row]
        return rows.take(pa.array(first, pa.int64()))


def workplace_of(partition: Partition, fingerprint: str) -> JobState:
    """Return where the job with a fingerprint works on a partition."""
    name = f"{partition.column}={partition.value}/{fingerprint[:SHORT]}"
    return JobState(Folder(f"{partition.table}/{JOBS}/{name}"))


def leases_of(partition: Partition) -> Folder:
    """Return where it is kept which jobs are running for a partition."""
    return Folder(f"{partition.table}/{JOBS}/{partition.column}={partition.value}")


def begun(
    partition: Partition, fingerprint: str, *, fresh: bool = False
) -> tuple[JobState, Partition]:
    """Return where a job works and writes, as an earlier run left it if there was one.

    Args:
        partition: of no job.
        fingerprint: of the job.
        fresh: leave nothing of an earlier run.
    """
    workplace = workplace_of(partition, fingerprint)
    kept = workplace.folder.read_json(RECORD)
    if kept is not None and kept["fingerprint"] == fingerprint and not fresh:
        return workplace, replace(partition, job=kept["job"])
    _remove(workplace, partition)
    job = f"{fingerprint[:SHORT]}-{uuid4().hex[:8]}"
    workplace.folder.write_json(RECORD, {"fingerprint": fingerprint, "job": job})
    return workplace, replace(partition, job=job)


def remove_leftovers(partition: Partition, fingerprint: str) -> None:
    """Remove what dead runs of other jobs left of a partition; those that are running stay.

    Args:
        partition: of no job.
        fingerprint: of the job whose work stays.
    """
    leases = leases_of(partition)
    for name in leases.folders():
        if name != fingerprint[:SHORT] and not is_held(leases, name):
            _remove(JobState(leases.within(name)), partition)


def abandoned(partition: Partition, before: datetime) -> list[str]:
    """Return the values of the table's other partitions whose newest job began long ago.

    Nobody will take them up: what is missed is made up for in days.

    Args:
        partition: whose table it is.
        before: what long ago is, with a time zone.
    """
    found = []
    for folder in Folder(f"{partition.table}/{JOBS}").folders():
        other = replace(partition, value=folder.removeprefix(f"{partition.column}="))
        jobs = (leases_of(other).within(name) for name in leases_of(other).folders())
        began = [file.mtime for job in jobs for file in job.files(RECORD)]
        if other.value != partition.value and began and max(began) < before:
            found.append(other.value)
    return found


def _remove(workplace: JobState, partition: Partition) -> None:
    """Remove what a job did, the data first: without its record nobody would find them."""
    kept = workplace.folder.read_json(RECORD)
    if kept is not None:
        replace(partition, job=kept["job"]).remove()
    workplace.folder.remove()
