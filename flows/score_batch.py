"""Flow: batch inference with the approved version."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from prefect import flow

from millrace.flows import environment, settings
from millrace.flows.deployments.left_flow_runs import noted_flow_run
from millrace.flows.services.starting import once_started
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation, has_jobs_api
from millrace.models.common.ray_cluster import connected
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.registry.tracking import check_reachable
from millrace.serving.batch.missed_dates import committed_dates, dates_to_do, score_dates
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.batch.score_on_cluster import score_elsewhere
from millrace.tasks.progress import log
from millrace.tasks.reports.run_report import publish_batch
from millrace.tasks.run_names import name_run, score_name
from millrace.tasks.score import score_rows

Score = Callable[[str | None, str, int | None], BatchReport]
"""Scores a source into the partition of a date, with a version or the approved one."""


@flow(name="score_batch", retries=0, persist_result=False)
def score_batch(
    pipeline_file: str,
    input: str | None = None,
    date: str | None = None,
    *,
    catch_up: bool = False,
    version: int | None = None,
) -> list[BatchReport]:
    """Score rows into the partition of a date, and return what was done for each date in order.

    Args:
        pipeline_file: path of the YAML file.
        input: the rows; what the pipeline says when None.
        date: `YYYY-MM-DD`; yesterday in UTC when None, the day that a nightly job closes.
        catch_up: without a date, first make up for those that were missed, the oldest first, of
            the last `batch.catch_up` days.
        version: to score with, whether it is approved or not; None for the approved one.
    """
    pipeline = load_pipeline(Path(pipeline_file))
    day = checked_date(date)
    chosen = environment.apply(settings.load())
    places = chosen.places()
    uri = places.tracking_uri
    once_started(places.run, uri, partial(check_reachable, uri))
    days = [day]
    if catch_up and date is None:
        table = places.table("predictions", pipeline.name)
        days = dates_to_do(committed_dates(table), day, pipeline.batch.catch_up)
    name_run(score_name(pipeline.name, days), pipeline.name)
    score = _score(pipeline, Path(pipeline_file), chosen)

    def scored(each: str) -> BatchReport:
        report = score(input, each, version)
        publish_batch(pipeline, report)
        if each != day:
            log.info("made up for %s: %s", each, told(report))
        return report

    def failed(each: str, error: MillraceError) -> None:
        if len(days) > 1:
            log.warning("%s was not scored: %s", each, error)

    with noted_flow_run(places.run), _ray(places, pipeline.batch.num_actors or 1):
        return score_dates(days, scored, failed)


def told(report: BatchReport) -> str:
    """Return in a line what a job did."""
    return (
        f"{report.scored:,} of {report.rows:,} rows scored, {report.dead:,} dead letters, "
        f"version {report.table_version} of {report.table}"
    )


def _score(pipeline: Pipeline, file: Path, chosen: settings.Settings) -> Score:
    """Return the step to score by: here, or in a job of a cluster."""
    places = chosen.places()
    if has_jobs_api(places.ray_address):
        variables = environment.cluster_variables(chosen)
        return partial(score_elsewhere, pipeline, file, places, variables)
    return partial(score_rows, pipeline, places)


def _ray(places: Installation, actors: int) -> AbstractContextManager[None]:
    """Connect to Ray, unless a job does it."""
    if has_jobs_api(places.ray_address):
        return nullcontext()
    return connected(places.ray_address, actors)


def checked_date(date: str | None) -> str:
    """Return the date of the partition.

    Raises:
        InputError: it is not a day of the calendar, written YYYY-MM-DD.
    """
    if date is None:
        return (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
            raise ValueError(date)
        return datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError as error:
        raise InputError("the date is not valid", seen=date, valid="YYYY-MM-DD") from error
