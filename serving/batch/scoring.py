"""Batch inference: scores an input and commits it as one partition of a Delta table."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from millrace.models.data.lease import is_held
from millrace.models.data.snapshot_use import wait_for_erasure
from millrace.serving.batch.actor import ActorContext, ScoringJob, work_of, write_predictions
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.batch.cluster.model_files import put_model_files
from millrace.serving.batch.commit import JOB, Partition, publish_dead_letters
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.input.find_input import Input
from millrace.serving.batch.input.reader import find_remaining, load_of
from millrace.serving.batch.input.row_lineage import write_lineage
from millrace.serving.batch.input.row_sample import Check, ScoredRows, fill_duplicates
from millrace.serving.batch.job import DEAD, ROW, TOKENS_IN, Job
from millrace.serving.batch.job_state import (
    SHORT,
    JobState,
    find_abandoned,
    hold_job,
    job_state_of,
    leases_of,
    open_job_state,
    remove_leftovers,
)
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT, WHOLE, BatchReport
from millrace.serving.batch.monitoring.progress_counter import OnWork, Watch
from millrace.serving.batch.monitoring.throughput import Work
from millrace.serving.batch.reconcile_rows import (
    count_answers,
    read_data_files,
    reconcile_rows,
    remove_partial_files,
    require_few_dead,
    select_files_to_commit,
)

UNPUBLISHED = "settled"
"""Folder that keeps the dead letters until they are committed, after the predictions."""
KEPT = timedelta(days=30)
"""How long the work of a killed run is kept, so that a run can resume it.

If another job scores the same date, the work is deleted earlier.
"""


@dataclass(frozen=True)
class Target:
    """Where a job writes.

    Attributes:
        table: URI of the output.
        dead_letters: URI of the table of rows that were not scored.
        date: the date of the partition, in both tables.
    """

    table: str
    dead_letters: str
    date: str

    @property
    def partition(self) -> Partition:
        """The partition to write, without the id of a job."""
        return Partition(self.table, "date", self.date, "")


@dataclass(frozen=True)
class RunOptions:
    """How a job runs; no option changes a prediction.

    Attributes:
        num_actors: number of actors; each holds one CPU of Ray and loads the model.
        max_dead_letters: largest share of the rows that may be refused.
        resume: whether to resume a killed run, and to keep a checkpoint for the next one.
        is_spread: whether Ray has, or may have, other nodes than the driver's.
        approved: whether the version is the approved one; None if that is not known.
        approval: why this version scores, in a sentence.
        pause: the file by which the actors stand still for online requests; None: they yield to
            nobody.
    """

    num_actors: int = 1
    max_dead_letters: float = 1.0
    resume: bool = True
    is_spread: bool = False
    approved: bool | None = None
    approval: str = ""
    pause: PauseFile | None = None


def score(
    batch_input: Input,
    job: ScoringJob,
    target: Target,
    options: RunOptions,
    on_work: OnWork = lambda *_: None,
    check: Check | None = None,
) -> BatchReport:
    """Score all rows of an input and commit them at once.

    A run resumes the work of an earlier run that was killed. If the same job has committed the
    partition before, nothing is scored, and the report of that commit is returned.

    Args:
        batch_input: the input with the rows to score.
        job: the job that scores the rows.
        target: where the predictions are written.
        options: how the job runs.
        on_work: called with the progress while the job runs.
        check: called before the commit; an error that it raises prevents the commit.

    Raises:
        InputError: the input has no rows; too many of its rows cannot be scored; the table has
            other columns than the job's output; or the check raised this error.
        WorkError: the job failed, or another job has committed the partition in the meantime.
            Nothing was committed.
        TransientError: the same job is running.
    """
    fingerprint = fingerprint_of(job, batch_input.manifest)
    target.partition.require_schema(job.output)
    with _hold(target, fingerprint):
        if (report := _find_earlier_report(target, fingerprint)) is not None:
            return report
        _clean_up(target, fingerprint)
        for date in find_abandoned(target.partition, datetime.now(UTC) - KEPT):
            _clean_up(replace(target, date=date), "")
        return _run(batch_input, job, target, options, fingerprint, on_work, check)


def find_earlier_report(batch_input: Input, job: Job, target: Target) -> BatchReport | None:
    """Return the report if this job wrote the partition's current content; None otherwise.

    Args:
        batch_input: the input with the rows to score.
        job: the job that scores the rows.
        target: where the predictions are written.

    Raises:
        TransientError: the same job is running.
    """
    fingerprint = fingerprint_of(job, batch_input.manifest)
    with _hold(target, fingerprint):
        return _find_earlier_report(target, fingerprint)


@contextmanager
def _hold(target: Target, fingerprint: str) -> Iterator[None]:
    """Hold the lease of a job, and begin when no command erases rows from the tables."""
    with hold_job(target.partition, fingerprint):
        wait_for_erasure(target.table)
        yield


def _clean_up(target: Target, fingerprint: str) -> None:
    """Delete what killed runs of other jobs left behind for a partition.

    If such a job has committed the partition, the job's dead letters are published first.

    Args:
        target: names the partition.
        fingerprint: fingerprint of the job whose work is kept.
    """
    commit = target.partition.read_commit()
    other = commit.get(FINGERPRINT)
    if other is not None and not is_held(leases_of(target.partition), other[:SHORT]):
        _finish(job_state_of(target.partition, other), target, other, commit[JOB])
    remove_leftovers(target.partition, fingerprint)


def _find_earlier_report(target: Target, fingerprint: str) -> BatchReport | None:
    commit = target.partition.read_commit()
    if commit.get(FINGERPRINT) != fingerprint:
        return None
    _finish(job_state_of(target.partition, fingerprint), target, fingerprint, commit[JOB])
    return BatchReport.of_commit(commit)


def _run(
    batch_input: Input,
    job: ScoringJob,
    target: Target,
    options: RunOptions,
    fingerprint: str,
    on_work: OnWork,
    check: Check | None,
) -> BatchReport:
    started = time.perf_counter()
    pieces = batch_input.pieces
    state, partition = open_job_state(target.partition, fingerprint, fresh=not options.resume)
    replaces, before = partition.active_files(), target.partition.read_commit()
    resumed = _score_remaining(batch_input, job, options, state, partition, on_work)
    files = read_data_files(partition, state if options.resume else None, job.output)
    reconciled = reconcile_rows(
        *(pieces, state.read_row_counts(), files, state.read_refused()),
        unique_keys=batch_input.has_keys,
    )
    require_few_dead(reconciled, options.max_dead_letters)
    dead = fill_duplicates(reconciled.dead, pieces, job.columns)
    batch_input.require_unchanged()
    agreement = check(ScoredRows(pieces, partition, files)) if check is not None else None
    to_commit = select_files_to_commit(partition, files, reconciled.excluded)
    total = sum((work_of(table) for table in files.values()), Work())
    has_tokens = TOKENS_IN in job.output.names
    report = BatchReport(
        table=target.table,
        dead_letters=target.dead_letters,
        table_version=-1,
        date=target.date,
        model=job.model,
        model_version=job.version,
        model_digest=job.digest,
        fingerprint=fingerprint,
        job=partition.job,
        rows=reconciled.rows,
        scored=reconciled.scored,
        dead=len(reconciled.dead),
        resumed=resumed,
        tokens_in=total.tokens_in if has_tokens else None,
        tokens_out=total.tokens_out if has_tokens else None,
        seconds=time.perf_counter() - started,
        agreement=agreement,
        input=batch_input.words,
        approved=options.approved,
        approval=options.approval,
        replaced=_describe_replaced(before),
    )
    counts = state.read_bin_counts() | count_answers(partition, files, job.output_bins)
    write_lineage(target.table, partition.job, batch_input, counts)
    state.folder.subfolder(UNPUBLISHED).write_table("dead.parquet", dead)
    version = partition.commit(job.output, report.metadata(), replaces, to_commit)
    partition.delete_uncommitted(to_commit)
    _finish(state, target, fingerprint, partition.job)
    return replace(report, table_version=version, seconds=time.perf_counter() - started)


def _describe_replaced(commit: Mapping[str, str]) -> str:
    """Describe what a new commit replaces in a partition; empty if it replaces no rows."""
    if not commit.get(WHOLE):
        return ""
    before = BatchReport.of_commit(commit)
    return f"{before.words}, by version {before.model_version}" if before.scored else ""


def _score_remaining(
    batch_input: Input,
    job: ScoringJob,
    options: RunOptions,
    state: JobState,
    partition: Partition,
    on_work: OnWork,
) -> int:
    """Write the missing predictions, and return the number of rows that earlier runs wrote."""
    written = remove_partial_files(partition, state)
    done = np.union1d(written, state.read_refused()[ROW].to_numpy())
    remaining = find_remaining(batch_input.pieces, state.read_row_counts(), done)
    with Watch(partition, on_work, len(written)) as watch:
        if remaining:
            context = ActorContext(
                state=state,
                meter=watch.meter,
                blocks=job.blocks(load_of(remaining, options.num_actors)),
                num_actors=options.num_actors,
                model=put_model_files(job) if options.is_spread else None,
                pause=options.pause,
            )
            checkpoint = state.new_checkpoint() if options.resume else None
            write_predictions(batch_input.source, remaining, job, context, partition, checkpoint)
    return len(written)


def _finish(state: JobState, target: Target, fingerprint: str, job: str) -> None:
    """Publish the dead letters of a committed job, and delete its state."""
    unpublished = state.folder.subfolder(UNPUBLISHED)
    if unpublished.exists():
        partition = Partition(target.dead_letters, "date", target.date, job)
        publish_dead_letters(partition, fingerprint, unpublished.read_tables(DEAD))
    state.folder.remove()
