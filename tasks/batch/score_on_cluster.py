"""Step: score rows with the approved version on a Ray cluster, as a job of its Jobs API."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.models.common.digest import digest_of
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import PREDICTIONS
from millrace.models.ray.jobs import PIPELINE, RayJobs, copy_code
from millrace.serving.batch.cluster.cluster_job import (
    ORDER,
    JobRequest,
    Order,
    error_of,
    fault_of,
    find_running,
    follow,
    stop,
)
from millrace.serving.batch.cluster.job_log import Line, find_outcome
from millrace.serving.batch.cluster.shared_storage import leave_proof, remove_proof, require_shared
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.alerts import Event, emit
from millrace.tasks.batch.score_input import named_input
from millrace.tasks.progress import log
from millrace.tasks.retry import step
from millrace.tasks.run_names import code_version


@step(timeout_seconds=24 * 3600, retries=1)
def score_elsewhere(
    pipeline: Pipeline,
    file: Path,
    installation: Installation,
    variables: Mapping[str, str],
    source: str | None,
    date: str,
    version: int | None = None,
) -> BatchReport:
    """Do what `score_rows` does, as a job of a Ray cluster, and follow the job to its end.

    If a job with the same order (pipeline file, date, input, version, tables and MLflow) is already
    running, that job is followed. Jobs that have ended are not searched for: after a finished job,
    a new job with the same order has nothing to do.

    Args:
        pipeline: names the model.
        file: the pipeline file.
        installation: where tables, registry and cluster are.
        variables: environment variables that give the job the same installation.
        source: the input; None: the pipeline's `batch.input`. Without `batch.input`, the
            table of its dataset is scored.
        date: the partition, `YYYY-MM-DD`.
        version: the version to score with, approved or not; None: the approved version, which the
            job finds for itself.

    Raises:
        InputError: the cluster cannot reach the tables, MLflow or the input, or it refuses access.
            The job also raises the `InputError` of `score_rows`.
        TransientError: the cluster does not answer, or is gone.
        WorkError: the job failed, or was stopped.
    """
    named = named_input(pipeline, source, date)
    require_shared(installation, named)
    order = Order(
        pipeline.name,
        digest_of(file),
        date,
        named,
        installation.tables_uri,
        installation.tracking_uri,
        version,
    )
    jobs = RayJobs(installation.ray_address)
    running = find_running(jobs.all(), order.digest)
    id = running.id if running is not None else order.new_id()
    with _ended_if_cancelled(jobs, id):
        if running is None:
            errand = JobRequest(id, PIPELINE, date, named, code_version(pipeline.folder), version)
            with _proof(installation.table(PREDICTIONS, pipeline.name), id):
                _submit(jobs, order, errand, file, variables)
            log.info("submitted the job %s to %s", id, installation.ray_address)
        else:
            log.info("the job %s already scores this input for this date; following the job", id)
        job, text = follow(jobs, id, _log_line)
    outcome = find_outcome(text, id)
    if outcome is None:
        raise fault_of(job, text)
    return _report(outcome)


def _submit(
    jobs: RayJobs, order: Order, errand: JobRequest, file: Path, variables: Mapping[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy_code(Path(folder), file)
        jobs.submit(
            errand.submission,
            errand.entrypoint,
            {"working_dir": folder, "env_vars": dict(variables)},
            {ORDER: order.digest, "millrace.pipeline": order.pipeline, "millrace.date": order.date},
        )


@contextmanager
def _proof(table: str, id: str) -> Iterator[None]:
    """Write the file by which the job knows that the storage is shared with this machine.

    The file is deleted if the block, which submits the job, fails.
    """
    leave_proof(table, id)
    try:
        yield
    except BaseException:
        remove_proof(table, id)
        raise


@contextmanager
def _ended_if_cancelled(jobs: RayJobs, id: str) -> Iterator[None]:
    """Stop the job if the flow is stopped: by Ctrl-C, a signal, Prefect, or the step's timeout.

    If the flow fails, the job goes on, and the next flow follows it.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        log.warning("stopping the job %s", id)
        if stop(jobs, id):
            log.warning("the job %s is stopped; the rows that it had scored are kept", id)
        else:
            log.error("the job %s may still run; stop it with: ray job stop %s", id, id)
        raise


def _log_line(line: Line) -> None:
    log.log(line.level, "%s", line.text)


def _report(outcome: Mapping[str, Any]) -> BatchReport:
    """Return a job's report, or raise the error that the job ended with."""
    if "error" in outcome:
        raise error_of(outcome["error"])
    for event in outcome["events"]:
        emit(Event(**event))
    return BatchReport.of_json(outcome["report"])
