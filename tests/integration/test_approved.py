"""The nightly batch takes the version that online serves: a real registry, Triton and Ray.

The first job's rows go through Ray; those of the others, of which only the version matters, do not.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import deltalake
import pytest
import ray

from millrace.models.common.errors import InputError
from millrace.models.common.low_priority import with_low_priority
from millrace.models.config.pipeline import Pipeline
from millrace.models.ray.cluster import connect_to_ray
from millrace.models.registry.tracking import client
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.score import RunReporter, scored
from tests.integration.asked import Line
from tests.integration.planted import DATASET, Planted, good, ingest_rows, plant
from tests.stand_ins.rows_here import without_ray

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NO_WORSE = {"promotion": {"require": {"max_metric_drop": 0.0}}}


GOAL = {"serving": {"slo": {"rate": 10, "p99_ms": 50}}}


@pytest.fixture(scope="module")
def ray_of(line: Line) -> Iterator[Line]:
    with ExitStack() as opened:
        with with_low_priority():
            opened.enter_context(connect_to_ray(line.installation.ray_address, 1))
        yield line


def score(line: Line, name: str, date: str, version: int | None = None) -> BatchReport:
    pipeline = Pipeline(name=name, dataset=DATASET).with_folder(line.installation.home)
    telling = RunReporter({}, lambda event: None)
    return scored(pipeline, line.installation, None, date, telling, version)


def policy() -> int:
    return os.sched_getscheduler(0)


def worse(line: Line, name: str) -> Planted:
    return plant(line.installation, name, good(3, metric=0.4, pipeline=NO_WORSE))


def test_a_refused_champion_scores_nothing_and_what_is_live_does(
    ray_of: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, name = ray_of, "nightly"
    ingest_rows(line.installation, name)
    line.promote(plant(line.installation, name, good(0, pipeline=GOAL)))
    line.release()
    second = worse(line, name)
    line.promote(second)
    line.release()
    assert line.tags(second)["millrace.status"] == "refused"

    report = score(line, name, "2026-01-01")
    assert (report.model_version, report.approved) == (1, True)
    assert "version 2 has the alias champion and was refused" in report.approval
    assert report.agreement is not None
    assert report.agreement.compared == 64
    table = deltalake.DeltaTable(report.table)
    assert table.history(1)[0]["millrace.approved"] == "True"
    (run,) = _runs(line, name)
    assert run.data.tags["millrace.approved"] == "True"
    assert run.data.metrics["paused_seconds"] < 60  # it gives way to the goal of the live version
    assert ray.get(ray.remote(policy).remote()) == os.SCHED_IDLE

    without_ray(monkeypatch)
    assert score(line, name, "2026-01-01").unchanged
    other = score(line, name, "2026-01-01", version=2)  # as with any other version: in its place
    assert (other.model_version, other.approved, other.unchanged) == (2, False, False)
    assert other.approval.startswith("requested by its number, 2; version 1 is live")
    versions = deltalake.DeltaTable(report.table).to_pyarrow_table()["model_version"]
    assert set(versions.to_pylist()) == {2}
    assert score(line, name, "2026-01-01").model_version == 1


def test_where_nothing_is_live_the_same_is_decided_and_written_down(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch)
    name = "unreleased"
    ingest_rows(line.installation, name)
    line.promote(plant(line.installation, name, good(0, passed=False)))
    with pytest.raises(InputError, match="version 1 of unreleased has the alias") as caught:
        score(line, name, "2026-01-01")
    assert "did not pass its gates" in str(caught.value.seen)
    assert not deltalake.DeltaTable.is_deltatable(line.installation.table("predictions", name))
    wrong = plant(line.installation, name, good(3, metric=1.0))
    (wrong.folder / "model.onnx").write_bytes(good(0).model)
    line.promote(wrong)
    with pytest.raises(InputError, match="version 2 of unreleased") as caught:
        score(line, name, "2026-01-01")
    assert "is not the file that was registered" in str(caught.value.seen)
    third = plant(line.installation, name, good(0))
    line.promote(third)
    report = score(line, name, "2026-01-01")
    assert (report.model_version, report.approved) == (3, True)
    kinds = [(each.kind, each.version) for each in line.releases(name)]
    assert kinds == [("refused", 1), ("refused", 2), ("accepted", 3)]
    assert "millrace.status" not in line.tags(third)
    line.release(name)
    assert line.client.live_version(name) == 3


def _runs(line: Line, name: str):  # type: ignore[no-untyped-def]
    store = client(line.installation.tracking_uri)
    experiment = store.get_experiment_by_name(f"{name}.batch")
    return store.search_runs([experiment.experiment_id])
