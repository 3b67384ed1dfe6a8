"""The step that submits and follows, with a cluster that is a fake."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.ray.jobs import RayJob
from millrace.serving.batch.cluster.cluster_job import ORDER, JobRequest
from millrace.serving.batch.cluster.job_log import format_outcome
from millrace.tasks.batch import score_on_cluster as module
from millrace.tasks.batch.drift_report import Event
from tests.unit.tasks.test_batch_run import REPORT

ADDRESS = "http://127.0.0.1:8265"


class Cluster:
    """Runs nothing: a job has ended at the first look, with an outcome of the test's.

    Attributes:
        outcome: of every job; None for none.
        fault: raised where a job is looked at.
        alive: jobs that are there already.
        submitted: what was asked for.
        stopped: jobs that were ended.
    """

    def __init__(self) -> None:
        self.outcome: Mapping[str, Any] | None = {"report": asdict(REPORT), "events": []}
        self.fault: BaseException | None = None
        self.alive: list[RayJob] = []
        self.submitted: list[tuple[str, str, Mapping[str, Any], Mapping[str, str]]] = []
        self.stopped: list[str] = []

    def all(self) -> list[RayJob]:
        return self.alive

    def submit(self, *given: Any) -> None:
        self.submitted.append(given)
        assert (Path(given[2]["working_dir"]) / "millrace" / "flows" / "score_job.py").is_file()

    def job(self, id: str) -> RayJob:
        if self.fault is not None and id not in self.stopped:
            raise self.fault
        return RayJob(id, "STOPPED" if id in self.stopped else "SUCCEEDED", exit_code=0)

    def log(self, id: str) -> str:
        line = "" if self.outcome is None else format_outcome(id, self.outcome) + "\n"
        return f"millrace WARNING careful\n{line}"

    def stop(self, id: str) -> None:
        self.stopped.append(id)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(module, "RayJobs", lambda address: made)
    return made


@pytest.fixture
def score(tmp_path: Path) -> Any:
    """Scores on the cluster, without Prefect."""
    file = tmp_path / "m.yaml"
    file.write_text(
        "{name: m, dataset: {source: rows.csv, target: t}, batch: {input: '{date}.csv'}}"
    )
    installation = Installation(
        tmp_path, "sqlite:///m.db", str(tmp_path / "tables"), ray_address=ADDRESS
    )

    def run() -> Any:
        step = module.score_elsewhere.fn
        return step(load_pipeline(file), file, installation, {"A": "b"}, None, "2026-01-05")

    return run


def test_the_report_of_a_job_is_that_of_the_step(
    cluster: Cluster, score: Any, tmp_path: Path
) -> None:
    assert score() == REPORT
    ((id, entrypoint, environment, metadata),) = cluster.submitted
    assert environment["env_vars"] == {"A": "b"}
    assert ORDER in metadata
    assert id in entrypoint
    assert str(tmp_path / "2026-01-05.csv") in entrypoint


def test_a_job_that_does_the_same_is_followed(cluster: Cluster, score: Any) -> None:
    score()
    ((id, _, _, metadata),) = cluster.submitted
    cluster.alive = [RayJob(id, "RUNNING", 1, metadata)]
    assert score() == REPORT
    assert len(cluster.submitted) == 1


def test_lines_of_a_job_are_lines_of_the_flow(
    cluster: Cluster, score: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("millrace").addHandler(caplog.handler)
    score()
    logging.getLogger("millrace").removeHandler(caplog.handler)
    assert ("WARNING", "careful") in [(r.levelname, r.getMessage()) for r in caplog.records]


def test_events_of_a_job_are_told_to_prefect(
    cluster: Cluster, score: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    monkeypatch.setattr(module, "emit", heard.append)
    event = Event("drift", {"prefect.resource.id": "m"}, {"columns": {"a": 0.5}})
    cluster.outcome = {"report": asdict(REPORT), "events": [asdict(event)]}
    score()
    assert heard == [event]


def test_an_error_of_a_job_is_that_of_the_step(cluster: Cluster, score: Any) -> None:
    error = InputError("wrong", seen="this", valid="that", hint="mend it")
    cluster.outcome = {"error": error.as_dict()}
    with pytest.raises(InputError) as told:
        score()
    assert str(told.value) == str(error)


def test_a_job_without_an_outcome_failed(cluster: Cluster, score: Any) -> None:
    cluster.outcome = None
    with pytest.raises(WorkError, match="without reporting an outcome"):
        score()


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), TerminationSignal(15), asyncio.CancelledError()]
)
def test_whoever_ends_the_flow_ends_the_job(
    cluster: Cluster, score: Any, end: BaseException
) -> None:
    cluster.fault = end
    with pytest.raises(type(end)):
        score()
    assert cluster.stopped == [cluster.submitted[0][0]]


def test_a_flow_that_fails_leaves_the_job(cluster: Cluster, score: Any) -> None:
    cluster.fault = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        score()
    assert not cluster.stopped


def test_a_job_that_was_not_submitted_leaves_nothing_at_the_tables(
    cluster: Cluster, score: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise TransientError("no Ray cluster answers")

    monkeypatch.setattr(cluster, "submit", refuses)
    with pytest.raises(TransientError):
        score()
    assert not [file for file in (tmp_path / "tables").rglob("*") if file.is_file()]


def test_a_job_reads_what_the_step_wrote(cluster: Cluster, score: Any) -> None:
    import shlex

    score()
    errand = JobRequest.read(shlex.split(cluster.submitted[0][1])[-1])
    assert (errand.date, errand.file) == ("2026-01-05", "pipeline.yaml")
