"""The step that scores rows: with which version, compared with what, and what it tells."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshot_use import find_held_versions
from millrace.models.data.snapshots import DATASETS
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.batch.job import Job
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.throughput import Sample, Work
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release
from millrace.tasks import score as module
from millrace.tasks.batch.drift_report import Event
from millrace.tasks.score import RunReporter, scored
from tests.integration.planted import DATASET, Planted, good, ingest_rows, plant
from tests.unit.tasks.test_batch_run import REPORT

DAY = "2026-01-05"
NUMBERS = count()


@dataclass
class Scoring:
    """Stands for Ray: keeps what it was asked to score, and returns a report.

    Attributes:
        before: what was committed already; None for nothing.
        report: what the job comes to.
        asked: what was to be scored, and how.
        connections: how often a connection to Ray was needed.
        on_connect: called when the connection is made.
    """

    before: BatchReport | None = None
    report: BatchReport = REPORT
    asked: list[tuple[Job, RunOptions]] = field(default_factory=list)
    connections: int = 0
    on_connect: Callable[[], object] = lambda: None

    def connect(self) -> None:
        self.connections += 1
        self.on_connect()

    def find_earlier_report(self, *_: object) -> BatchReport | None:
        return self.before

    def score(
        self, found: object, job: Job, target: object, how: RunOptions, take: Any, check: Any
    ) -> BatchReport:
        assert self.connections == 1
        self.asked.append((job, how))
        take(Sample(1.0, Work(10)), {}, 0)
        return replace(self.report, approved=how.approved)

    @property
    def job(self) -> RowJob:
        ((job, _),) = self.asked
        assert isinstance(job, RowJob)
        return job


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Scoring:
    made = Scoring()
    monkeypatch.setattr(module, "find_earlier_report", made.find_earlier_report)
    monkeypatch.setattr(module, "score", made.score)
    return made


@pytest.fixture
def version(mlflow_places: Installation) -> Planted:
    """A good version of a model of its own, which has no alias."""
    name = f"scored-{next(NUMBERS)}"
    ingest_rows(mlflow_places, name)
    tags = {"millrace.dataset": f"{name} version 0"}
    return plant(mlflow_places, name, good(tags=tags))


@pytest.fixture
def score(
    mlflow_places: Installation, version: Planted, tmp_path: Path, ray: Scoring
) -> Callable[..., BatchReport]:
    """Score two rows with the model of the test."""
    rows = [{"v": [0.0, 1.0, 2.0, 3.0]}, {"v": [3.0, 2.0, 1.0, 0.0]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(
        number: int | None = None,
        emitted: list[Event] | None = None,
        source: str = str(tmp_path / "rows.jsonl"),
        **batch: Any,
    ) -> BatchReport:
        keys = {"name": version.name, "dataset": DATASET.model_dump(exclude_unset=True)}
        pipeline = Pipeline.model_validate({**keys, "batch": batch}).with_folder(tmp_path)
        events = [] if emitted is None else emitted
        telling = RunReporter({"color": "blue"}, events.append)
        return scored(*(pipeline, mlflow_places, source, DAY, telling, number), connect=ray.connect)

    return run


def make_live(installation: Installation, version: Planted, digest: str | None = None) -> None:
    found = registry_of(installation).version(version.name, version.number)
    registry_of(installation).set_alias(found, CHAMPION)
    live = Release(version.name, "live", version.number, digest or found.digest)
    ledger_of(installation).append(live)


def runs_of(installation: Installation, version: Planted) -> list[Any]:
    store = client(installation.tracking_uri)
    experiment = store.get_experiment_by_name(f"{version.name}.batch")
    return [] if experiment is None else list(store.search_runs([experiment.experiment_id]))


def test_the_live_version_scores(
    mlflow_places: Installation,
    ray: Scoring,
    version: Planted,
    score: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_live(mlflow_places, version)
    with caplog.at_level(logging.INFO, "millrace"):
        report = score()
    ((job, how),) = ray.asked
    assert (job.model, job.version, how.approved, report.approved) == (version.name, 1, True, True)
    assert caplog.records[0].levelno == logging.INFO
    (run,) = runs_of(mlflow_places, version)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"{version.name} {DAY}"
    assert run.data.tags["color"] == "blue"
    assert run.data.tags["millrace.approved"] == "True"


def test_where_nothing_is_approved_nothing_is_scored(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any
) -> None:
    plant(
        mlflow_places, version.name, good(1, tags={"millrace.certificate": "failed: it is worse"})
    )
    with pytest.raises(InputError) as told:
        score()
    assert f"give {version.name} version 1 the alias champion" in str(told.value.hint)
    assert not ray.asked
    assert not runs_of(mlflow_places, version)


def test_a_version_that_is_not_approved_scores_where_it_is_asked_for_and_says_so(
    mlflow_places: Installation,
    ray: Scoring,
    version: Planted,
    score: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "millrace"):
        report = score(1)
    (line,) = [each for each in caplog.records if "not approved" in each.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith(f"{version.name} version 1, not approved: requested by")
    ((_, how),) = ray.asked
    assert how.approved is report.approved is False
    assert how.approval.startswith("requested by its number, 1")
    (run,) = runs_of(mlflow_places, version)
    assert run.data.tags["millrace.approved"] == "False"


def test_a_version_that_is_not_there_is_told(ray: Scoring, version: Planted, score: Any) -> None:
    with pytest.raises(InputError, match=f"has no {version.name} version 7"):
        score(7)
    assert not ray.asked


def test_a_live_version_that_the_registry_has_no_longer_is_told(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any
) -> None:
    make_live(mlflow_places, version)
    client(mlflow_places.tracking_uri).delete_model_version(version.name, "1")
    with pytest.raises(InputError, match="is live, but is no longer in the registry") as told:
        score()
    assert f"name a version of {version.name} with `--version`" in str(told.value.hint)
    assert not ray.asked


def test_a_live_version_that_is_another_file_in_the_registry_is_told(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any
) -> None:
    make_live(mlflow_places, version, digest="0" * 64)
    with pytest.raises(InputError, match="is live, but its file in the registry has changed"):
        score()
    assert not ray.asked


def test_rows_are_compared_with_those_that_the_version_learnt_from(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any
) -> None:
    make_live(mlflow_places, version)
    score()
    assert [bins.column for bins in ray.job.output_bins] == ["prediction"]


@pytest.mark.parametrize("learnt_from", ["gone version 0", "", "no number"])
def test_without_its_snapshot_rows_are_scored_and_compared_with_nothing(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any, learnt_from: str
) -> None:
    registry = registry_of(mlflow_places)
    found = registry.version(version.name, 1)
    registry.set_tags(found, {"millrace.dataset": learnt_from})
    registry.sign(registry.version(version.name, 1))
    make_live(mlflow_places, version)
    assert score().rows == REPORT.rows
    assert (ray.job.bins, ray.job.output_bins) == ((), ())


def test_what_was_committed_before_is_not_scored_again_and_told_late(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any
) -> None:
    make_live(mlflow_places, version)
    ray.before = replace(REPORT, unchanged=True)
    assert score() is ray.before
    assert not ray.asked
    (run,) = runs_of(mlflow_places, version)  # its process had died before it told
    assert (run.info.status, run.data.metrics["rows"]) == ("FINISHED", REPORT.rows)
    assert score() is ray.before
    assert len(runs_of(mlflow_places, version)) == 1
    assert ray.connections == 0


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"replaced": "version 2 with 90 rows"},
            f"partition {DAY} contained version 2 with 90 rows, now replaced",
        ),
        ({"dead": 5}, "rows without a prediction: 5; see the table "),
        ({"dead": 0, "replaced": "version 2", "unchanged": True}, None),
    ],
)
def test_what_is_replaced_and_what_is_left_out_is_told(
    mlflow_places: Installation,
    ray: Scoring,
    version: Planted,
    score: Any,
    caplog: pytest.LogCaptureFixture,
    values: dict[str, Any],
    line: str | None,
) -> None:
    make_live(mlflow_places, version)
    ray.report = replace(REPORT, **{"dead": 0, "replaced": "", **values})
    with caplog.at_level(logging.WARNING, "millrace"):
        score()
    assert [each[: len(line or "")] for each in caplog.messages] == ([line] if line else [])


@pytest.mark.parametrize("before", ["", "file://"])
def test_the_rows_of_any_dataset_are_kept_from_before_the_files_are_opened(
    mlflow_places: Installation, ray: Scoring, version: Planted, score: Any, before: str
) -> None:
    make_live(mlflow_places, version)
    other = f"other-{version.name}"
    ingest_rows(mlflow_places, other)
    uri = mlflow_places.table(DATASETS, other)
    held = []
    ray.on_connect = lambda: held.append(find_held_versions(uri))
    score(source=f"{before}{uri}/")
    assert held == [{0}]
    assert find_held_versions(uri) == frozenset()
