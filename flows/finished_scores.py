"""Answers `millrace score` from stored reports if everything that it asks for is committed already.

It imports neither Prefect, MLflow nor Ray, which take seconds. A scheduled job runs the flow, which
finds the same report itself. Such an answer is no flow run in Prefect, because nothing was run.
"""

from contextlib import suppress
from pathlib import Path

from deltalake.exceptions import DeltaError

from millrace.flows import console, settings, tool_variables
from millrace.flows.score_dates import dates_to_do, parse_date
from millrace.models.common.errors import MillraceError
from millrace.models.config.pipeline_file import load_pipeline
from millrace.serving.batch.commit import committed_dates
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.batch.score_receipt import (
    Receipt,
    ScoreRequest,
    find_matching_receipt,
    find_stored_report,
    warn_of_dead_letters,
)


def find_finished_scores(
    file: Path, source: str | None, date: str | None, *, catch_up: bool, version: int | None
) -> list[BatchReport] | None:
    """Return what `score_batch` would return, if it would score nothing.

    Args:
        file: the pipeline file.
        source: as for `score_batch`.
        date: as for `score_batch`.
        catch_up: as for `score_batch`.
        version: as for `score_batch`.

    Returns:
        None if something is to be scored, or if only the flow can tell.

    Raises:
        TransientError: the same job is running.
    """
    request, receipt = _find_receipt(file, source, date, catch_up, version)
    if request is None or receipt is None:
        return None
    report = find_stored_report(request, receipt)
    if report is None:
        return None
    console.set_up_logging()
    warn_of_dead_letters(report)
    return [report]


def _find_receipt(
    file: Path, source: str | None, date: str | None, catch_up: bool, version: int | None
) -> tuple[ScoreRequest | None, Receipt | None]:
    """Return the request, and its receipt if it still holds."""
    with suppress(MillraceError, DeltaError, OSError):  # the flow reports it
        pipeline = load_pipeline(file)
        installation = tool_variables.apply(settings.load()).installation()
        day = parse_date(date)
        request = ScoreRequest(pipeline, installation, source, day, version)
        if catch_up and date is None:
            committed = committed_dates(request.partition.table)
            if len(dates_to_do(committed, day, pipeline.batch.catch_up)) > 1:
                return None, None
        return request, find_matching_receipt(request)
    return None, None
