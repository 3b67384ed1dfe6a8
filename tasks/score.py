"""Step: rows through the champion into a partition of the predictions table."""

import os
import uuid

import deltalake

from models.columns import Column
from models.errors import InputError
from models.pipeline import Pipeline
from models.places import Places
from models.registry import CHAMPION, registry_of
from models.snapshots import open_snapshot
from serving.batch import BatchReport, score
from serving.batch_input import read_rows
from serving.partition import Partition
from serving.scorer import ScoreJob
from tasks import progress
from tasks.progress import log
from tasks.retry import step


@step(timeout_seconds=24 * 3600, retries=1)
def score_rows(pipeline: Pipeline, places: Places, source: str | None, date: str) -> BatchReport:
    """Score a source with the champion, pinned at the start, and commit it as one partition.

    Args:
        pipeline: names the model.
        places: where tables and registry are.
        source: the rows; the pipeline's `batch.input`, or its dataset's table, when None.
        date: the partition, `YYYY-MM-DD`.

    Raises:
        InputError: there is no champion, or nothing to score.
    """
    registry = registry_of(places)
    champion = registry.by_alias(pipeline.name, CHAMPION)
    if champion is None:
        raise InputError(
            f"{pipeline.name} has no champion to score with",
            valid=f"a version of {pipeline.name} with the alias {CHAMPION}",
            hint="run `millrace run FILE`, then set the alias in the MLflow UI",
        )
    package = registry.fetch(champion).graph
    cores = os.cpu_count() or 1
    found = source or _default_input(pipeline, places)
    job = ScoreJob(
        pipeline.name,
        champion.version,
        champion.digest,
        package.model,
        package.encoding,
        pipeline.dataset.key,
        _held(pipeline, places),
    )
    partition = Partition(places.table("predictions", pipeline.name), "date", date, _job_id())
    with progress.bar("score", None, "rows") as bar:
        report = score(
            read_rows(found, job),
            job,
            partition,
            batch_size=pipeline.batch.batch_size,
            num_actors=pipeline.batch.num_actors or cores,
            on_rows=bar.update,
        )
    if report.unscored:
        log.warning("%s rows have no prediction; see the column error", report.unscored)
    return report


def _held(pipeline: Pipeline, places: Places) -> tuple[Column, ...]:
    """Return the columns as the dataset holds them; none where there is no dataset."""
    try:
        return open_snapshot(places, pipeline.name).schema.columns
    except InputError:
        return ()


def _default_input(pipeline: Pipeline, places: Places) -> str:
    if pipeline.batch.input is not None:
        relative = "://" not in pipeline.batch.input
        return str(pipeline.folder / pipeline.batch.input) if relative else pipeline.batch.input
    table = places.table("datasets", pipeline.name)
    if not deltalake.DeltaTable.is_deltatable(table):
        raise InputError(
            "there is nothing to score",
            seen=f"no --input, no batch.input, and no table at {table}",
            hint="name the rows with --input",
        )
    return table


def _job_id() -> str:
    return f"job-{uuid.uuid4().hex[:12]}"
