"""Batch inference: rows through Ray Data actors into one partition of a Delta table."""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import ray.data
from ray.data.checkpoint import CheckpointConfig

from millrace.serving.batch import block_size, commit, lease
from millrace.serving.batch.actor import ActorContext, ScoringJob, fault_of, work_of
from millrace.serving.batch.block_size import Blocks
from millrace.serving.batch.cluster.model_files import carried
from millrace.serving.batch.commit import JOB, Partition
from millrace.serving.batch.data_files import answers_seen, committable, prune, written
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.input import row_lineage
from millrace.serving.batch.input.find_input import Input
from millrace.serving.batch.input.reader import Rows
from millrace.serving.batch.input.row_sample import Check, Scored, with_rows
from millrace.serving.batch.job import DEAD, ROW, TOKENS_IN, Job
from millrace.serving.batch.job_state import (
    SHORT,
    JobState,
    abandoned,
    begun,
    leases_of,
    remove_leftovers,
    workplace_of,
)
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT, WHOLE, BatchReport
from millrace.serving.batch.monitoring.throughput import Work
from millrace.serving.batch.monitoring.watch import OnWork, Watch
from millrace.serving.batch.reconcile_rows import require_few, settle
from millrace.serving.batch.remaining_work import Todo, load_of, remaining

SETTLED = "settled"
"""Folder of the dead letters from the commit of the output to their own."""
KEPT = timedelta(days=30)
"""How long what a dead run wrote waits to be taken up; longer where its date is run again."""
MOST_TASKS = 4096
"""Tasks that read."""


@dataclass(frozen=True)
class Target:
    """Where a job writes.

    Attributes:
        table: URI of the output.
        dead_letters: URI of the table of rows that were not scored.
        date: the partition of both.
    """

    table: str
    dead_letters: str
    date: str

    @property
    def partition(self) -> Partition:
        """The partition, of no job."""
        return Partition(self.table, "date", self.date, "")


@dataclass(frozen=True)
class RunOptions:
    """How a job runs; nothing of it changes an answer.

    Attributes:
        num_actors: actors, one opened model each.
        cpus: CPUs of Ray that each holds.
        max_dead_letters: share of the rows that may be refused.
        resume: whether what a dead run did is taken up, and what is done is kept for the next.
        is_spread: whether there are other nodes than the driver's, or may be.
        approved: whether its version is the approved one; None where that is not known.
        approval: why it is scored with, in a sentence.
    """

    num_actors: int = 1
    cpus: float = 1
    max_dead_letters: float = 1.0
    resume: bool = True
    is_spread: bool = False
    approved: bool | None = None
    approval: str = ""


def score(
    found: Input,
    job: ScoringJob,
    target: Target,
    how: RunOptions,
    on_work: OnWork = lambda *_: None,
    check: Check | None = None,
) -> BatchReport:
    """Score all rows of an input and commit them at once.

    A run after one that died goes on from what that had written. The same job committed to the same
    partition before is not run again.

    Args:
        found: the rows.
        job: what scores them.
        target: where they go.
        how: with what.
        on_work: called while it runs.
        check: called before the commit.

    Raises:
        InputError: the input has no rows, or too many that cannot be scored; the table holds
            other columns; or what the check raises.
        WorkError: the job failed, or another committed the partition meanwhile; nothing was
            committed.
        TransientError: the same job is running.
    """
    fingerprint = fingerprint_of(job, found.manifest)
    target.partition.check(job.output)
    with lease.held(leases_of(target.partition), fingerprint[:SHORT]):
        if (report := _done_before(target, fingerprint)) is not None:
            return report
        _clear(target, fingerprint)
        for date in abandoned(target.partition, datetime.now(UTC) - KEPT):
            _clear(replace(target, date=date), "")
        return _run(found, job, target, how, fingerprint, on_work, check)


def done_before(found: Input, job: Job, target: Target) -> BatchReport | None:
    """Return what the same job did if it is what the partition holds, else None.

    Args:
        found: the rows.
        job: what would score them.
        target: where they would go.

    Raises:
        TransientError: the same job is running.
    """
    fingerprint = fingerprint_of(job, found.manifest)
    with lease.held(leases_of(target.partition), fingerprint[:SHORT]):
        return _done_before(target, fingerprint)


def _clear(target: Target, fingerprint: str) -> None:
    """Remove what dead runs of other jobs than that of the fingerprint left of a partition.

    Where the partition holds what one of them committed, its dead letters are published first.
    """
    kept = target.partition.committed()
    other = kept.get(FINGERPRINT)
    if other is not None and not lease.is_held(leases_of(target.partition), other[:SHORT]):
        _finish(workplace_of(target.partition, other), target, other, kept[JOB])
    remove_leftovers(target.partition, fingerprint)


def _done_before(target: Target, fingerprint: str) -> BatchReport | None:
    kept = target.partition.committed()
    if kept.get(FINGERPRINT) != fingerprint:
        return None
    _finish(workplace_of(target.partition, fingerprint), target, fingerprint, kept[JOB])
    return BatchReport.of_commit(kept)


def _run(
    found: Input,
    job: ScoringJob,
    target: Target,
    how: RunOptions,
    fingerprint: str,
    on_work: OnWork,
    check: Check | None,
) -> BatchReport:
    started = time.perf_counter()
    workplace, partition = begun(target.partition, fingerprint, fresh=not how.resume)
    replaces, before = partition.active(), target.partition.committed()
    resumed = _work(found, job, how, workplace, partition, on_work)
    tables = written(partition, workplace if how.resume else None, job.output)
    counted, refused = workplace.counted(), workplace.refused()
    settled = settle(found.pieces, counted, tables, refused, unique_keys=found.has_keys)
    require_few(settled, how.max_dead_letters)
    dead = with_rows(settled.dead, found.pieces, job.columns)
    found.require_unchanged()
    agreement = check(Scored(found.pieces, partition, tables)) if check is not None else None
    files = committable(partition, tables, settled.without)
    total = sum((work_of(table) for table in tables.values()), Work())
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
        rows=settled.rows,
        scored=settled.scored,
        dead=len(settled.dead),
        resumed=resumed,
        tokens_in=total.tokens_in if has_tokens else None,
        tokens_out=total.tokens_out if has_tokens else None,
        seconds=time.perf_counter() - started,
        agreement=agreement,
        input=found.words,
        approved=how.approved,
        approval=how.approval,
        replaced=_replaced(before),
    )
    seen = workplace.seen() | answers_seen(partition, tables, job.output_bins)
    row_lineage.keep(target.table, partition.job, found, seen)
    workplace.folder.within(SETTLED).write_table("dead.parquet", dead)
    version = partition.commit(job.output, report.metadata(), replaces, files)
    _finish(workplace, target, fingerprint, partition.job)
    seconds = time.perf_counter() - started
    return replace(report, table_version=version, seconds=seconds)


def _replaced(kept: Mapping[str, str]) -> str:
    """Return what a partition held, by what was kept with its commit; it is gone from now on."""
    if not kept.get(WHOLE):
        return ""
    before = BatchReport.of_commit(kept)
    return f"{before.words}, by version {before.model_version}" if before.scored else ""


def _work(
    found: Input,
    job: ScoringJob,
    how: RunOptions,
    workplace: JobState,
    partition: Partition,
    on_work: OnWork,
) -> int:
    """Write the answers that are not written yet, and return how many were."""
    done = prune(partition, workplace)
    settled = np.union1d(done, workplace.refused()[ROW].to_numpy())
    todo = remaining(found.pieces, workplace.counted(), settled)
    with Watch(partition, on_work, len(done)) as watch:
        if todo:
            _answer(found.source, todo, job, workplace, partition, how, watch)
    return len(done)


def _answer(
    source: str,
    todo: Sequence[Todo],
    job: ScoringJob,
    workplace: JobState,
    partition: Partition,
    how: RunOptions,
    watch: Watch,
) -> None:
    """Let Ray read, answer and write the rows that are not written yet."""
    filesystem, path = partition.place
    blocks = job.blocks(load_of(todo, how.num_actors))
    model = carried(job) if how.is_spread else None
    means = ActorContext(workplace, watch.meter, blocks, how.num_actors, how.cpus, model)
    with (
        _context(workplace.checkpoint() if how.resume else None, blocks.bytes),
        warnings.catch_warnings(),
    ):
        # Of a small input, that it does not keep all actors busy.
        warnings.filterwarnings("ignore", "The minimum number of concurrent actors", UserWarning)
        try:
            rows = ray.data.read_datasource(
                Rows(source, todo, job, workplace),
                override_num_blocks=min(len(todo), MOST_TASKS),
                **_reading(how, blocks),
            )
            job.answered(rows, means).write_parquet(
                path,
                filesystem=filesystem,
                **(block_size.writing(how.num_actors) if how.is_spread else {}),
            )
        except Exception as error:  # whatever Ray raises of its own or hands over from a task
            raise fault_of(error) from error


def _reading(how: RunOptions, blocks: Blocks) -> dict[str, Any]:
    """Return options of what reads; actors that read for themselves hold their CPUs for both."""
    if blocks.rows_per_call is None:
        return {"num_cpus": how.cpus}
    return block_size.reading(how.num_actors) if how.is_spread else {}


@contextmanager
def _context(checkpoint: Folder | None, block_bytes: int) -> Iterator[None]:
    """Set for one dataset what Ray Data keeps for the whole process."""
    context = ray.data.DataContext.get_current()
    before = context.checkpoint_config, context.target_max_block_size
    # Without it Ray keeps of an error of ours, raised in an actor, only the text of its traceback.
    context.raise_original_map_exception = True
    context.target_max_block_size = block_bytes
    if checkpoint is not None:
        filesystem, path = checkpoint.place
        context.checkpoint_config = CheckpointConfig(
            ROW,
            path,
            override_filesystem=filesystem,
            # It would be deleted before the commit, and the work with it if that fails.
            delete_checkpoint_on_success=False,
        )
    try:
        yield
    finally:
        context.checkpoint_config, context.target_max_block_size = before


def _finish(workplace: JobState, target: Target, fingerprint: str, job: str) -> None:
    """Publish the dead letters of a committed job, and remove what it kept to go on from."""
    settled = workplace.folder.within(SETTLED)
    if settled.exists():
        partition = Partition(target.dead_letters, "date", target.date, job)
        commit.publish(partition, fingerprint, settled.read_tables(DEAD))
    workplace.folder.remove()
