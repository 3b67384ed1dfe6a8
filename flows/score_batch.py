"""Flow: batch inference with the approved version, for one date and, on request, missed dates."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from prefect import flow

from millrace.flows import settings, tool_variables
from millrace.flows.deployments.left_flow_runs import record_flow_run
from millrace.flows.heartbeats import leave_out_heartbeats
from millrace.flows.run_state import wait_for_start
from millrace.flows.score_dates import dates_to_do, parse_date
from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import has_jobs_api
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.snapshots import PREDICTIONS
from millrace.models.ray.cluster import RaySession
from millrace.models.ray.fork_imports import BATCH_IMPORTS, OF_RAY_DATA
from millrace.models.registry.tracking import check_reachable
from millrace.serving.batch.commit import committed_dates
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.alerts import alert_failure
from millrace.tasks.batch.score_on_cluster import score_elsewhere
from millrace.tasks.progress import log
from millrace.tasks.reports.run_report import publish_batch
from millrace.tasks.run_names import name_run, score_name
from millrace.tasks.score import score_rows

T = TypeVar("T")
Score = Callable[[str | None, str, int | None], BatchReport]
"""Scores an input into the partition of a date, with a version.

If the input is None, the pipeline's own input is scored. If the version is None, the approved
version is used."""


@flow(
    name="score_batch",
    retries=0,
    persist_result=False,
    on_running=[leave_out_heartbeats],
    on_failure=[alert_failure],
    on_crashed=[alert_failure],
)
def score_batch(
    pipeline_file: str,
    input: str | None = None,
    date: str | None = None,
    *,
    catch_up: bool = False,
    version: int | None = None,
) -> list[BatchReport]:
    """Score rows into the partition of a date, and return a report for each date in order.

    Args:
        pipeline_file: path of the YAML file.
        input: the rows to score; None: the pipeline's own input.
        date: `YYYY-MM-DD`; None: yesterday in UTC, the day that a nightly job scores.
        catch_up: whether to score also the missed dates of the last `batch.catch_up` days, the
            oldest first. It has no effect if `date` is given.
        version: the version to score with, approved or not; None: the approved version.
    """
    pipeline = load_pipeline(Path(pipeline_file))
    day = parse_date(date)
    chosen = tool_variables.apply(settings.load())
    installation = chosen.installation()
    uri = installation.tracking_uri
    wait_for_start(installation.run, uri, partial(check_reachable, uri))
    days = [day]
    if catch_up and date is None:
        table = installation.table(PREDICTIONS, pipeline.name)
        days = dates_to_do(committed_dates(table), day, pipeline.batch.catch_up)
    name_run(score_name(pipeline.name, days), pipeline.name)
    score, ray = _choose_step(pipeline, Path(pipeline_file), chosen)

    def score_day(each: str) -> BatchReport:
        report = score(input, each, version)
        publish_batch(pipeline, report)
        if each != day:
            log.info("scored the missed date %s: %s", each, summarize(report))
        return report

    def warn(each: str, error: MillraceError) -> None:
        if len(days) > 1:
            log.warning("the date %s was not scored: %s", each, error)

    with record_flow_run(installation.run), ray:
        return score_dates(days, score_day, warn)


def summarize(report: BatchReport) -> str:
    """Return a job's result in one line."""
    return (
        f"{report.scored:,} of {report.rows:,} rows scored, {report.dead:,} dead letters, "
        f"version {report.table_version} of {report.table}"
    )


def _choose_step(
    pipeline: Pipeline, file: Path, chosen: settings.Settings
) -> tuple[Score, AbstractContextManager[object]]:
    """Return the function that scores, and the session on Ray that it may need.

    A job on a cluster connects to Ray itself.
    """
    installation = chosen.installation()
    if has_jobs_api(installation.ray_address):
        variables = tool_variables.cluster_variables(chosen)
        return partial(score_elsewhere, pipeline, file, installation, variables), nullcontext()
    ray = RaySession(
        *(installation.ray_address, pipeline.batch.num_actors or 1, chosen.warm_ray()),
        *(BATCH_IMPORTS, OF_RAY_DATA),
    )
    return partial(score_rows, pipeline, installation, connect=ray.connect), ray


def score_dates(
    dates: Sequence[str],
    score: Callable[[str], T],
    on_failure: Callable[[str, MillraceError], None],
) -> list[T]:
    """Return the result of scoring each date; a date that fails does not stop the later ones.

    Args:
        dates: the dates, in the order to score them.
        score: a function that scores one date.
        on_failure: a function that is called with a date that failed and the error.

    Raises:
        MillraceError: a date failed. The error is that of the first failed date, and is raised
            after all dates were tried. If `dates` has several dates, the message names all dates
            that failed.
    """
    results: list[T] = []
    failed: dict[str, MillraceError] = {}
    for each in dates:
        try:
            results.append(score(each))
        except MillraceError as error:
            failed[each] = error
            on_failure(each, error)
    if not failed:
        return results
    first = next(iter(failed.values()))
    if len(dates) == 1:
        raise first
    raise type(first)(
        f"{len(failed)} of {len(dates)} dates were not scored ({', '.join(failed)}); "
        f"the first error: {first.what}",
        seen=first.seen,
        valid=first.valid,
        hint=first.hint,
    ) from first
