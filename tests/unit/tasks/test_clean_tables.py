from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshot_use import hold_snapshot
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.data.table_files import SUPERSEDED
from millrace.models.registry.tracking import tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.monitoring.drift import Bins
from millrace.tasks.batch.drift_reference import bins_unless_gone
from millrace.tasks.retention.clean_pipeline import PipelineCleaner
from millrace.tasks.retention.cleaned import Cleaned

NOW = datetime.now(UTC)
LATER = NOW + SUPERSEDED + timedelta(days=1)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": "things",
            "dataset": {"source": str(tmp_path / "data.csv"), "target": "y"},
            "retention": {"snapshots": 1, "versions": 1},
        }
    )


@pytest.fixture
def shared(mlflow_places: Installation, tmp_path: Path) -> Installation:
    """Return the shared MLflow with tables of the test's own."""
    return replace(mlflow_places, tables_uri=str(tmp_path / "tables"))


def ingest_rows(pipeline: Pipeline, home: Installation, rows: int) -> Snapshot:
    lines = [f"{n / 7:.3f},{'ab'[n % 2]}" for n in range(rows)]
    Path(pipeline.dataset.source).write_text("\n".join(["x,y", *lines]) + "\n")
    return ingest(pipeline, home)


def clean_pipeline(
    pipeline: Pipeline, home: Installation, now: datetime = NOW, *, dry_run: bool = False
) -> dict[str, Cleaned]:
    found = PipelineCleaner(pipeline, home, now, {}, dry_run).clean()
    return {each.kind: each for each in found}


def snapshots_of(pipeline: Pipeline, home: Installation) -> Cleaned:
    return clean_pipeline(pipeline, home, dry_run=True)["snapshots"]


def test_old_snapshots_go_and_those_that_jobs_read_stay(
    pipeline: Pipeline, shared: Installation
) -> None:
    made = [ingest_rows(pipeline, shared, rows) for rows in (20, 30, 40, 50)]
    with (
        hold_snapshot(made[0].uri, made[0].version),
        tracked_run(shared, "things", {}, system_metrics=False) as run,
    ):
        run.log_dataset("things", made[1].uri, made[1].version, made[1].digest)
        run.log_dataset("other", made[1].uri, made[2].version, made[1].digest)
        busy = snapshots_of(pipeline, shared)
    assert busy.removed == ("snapshot 2",)
    assert busy.kept == {
        "snapshot 0": "a running job reads it",
        "snapshot 1": "a running training reads it",
        "snapshot 3": "recent",
    }
    assert snapshots_of(pipeline, shared).removed == ("snapshot 0", "snapshot 1", "snapshot 2")


def test_a_snapshot_stays_as_long_as_a_version_that_was_trained_on_it(
    pipeline: Pipeline, shared: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (20, 30, 40):
        ingest_rows(pipeline, shared, rows)
    versions = [
        ModelVersion("things", 1, "", "", (), {"millrace.dataset": "things version 0"}),
        ModelVersion("things", 2, "", "", ("champion",), {"millrace.dataset": "things version 1"}),
        ModelVersion("things", 3, "", "", (), {"millrace.dataset": "things version 2"}),
    ]
    monkeypatch.setattr(
        "millrace.models.registry.version_retention.StoredRuns.list_versions",
        lambda self: versions,
    )
    found = clean_pipeline(pipeline, shared, dry_run=True)
    assert found["versions"].removed == ("version 1",)
    assert found["versions"].kept == {"version 2": "alias champion", "version 3": "recent"}
    assert found["snapshots"].removed == ("snapshot 0",)
    assert found["snapshots"].kept == {
        "snapshot 1": "things version 2 was trained on it",
        "snapshot 2": "things version 3 was trained on it",
    }


def replace_predictions(home: Installation) -> Path:
    """Commit one date twice, and return a file that the second commit replaced."""
    uri, schema = home.table("predictions", "things"), pa.schema([("x", pa.int64())])
    for job in ("first", "second"):
        partition = Partition(uri, "date", f"{NOW:%Y-%m-%d}", job)
        partition.folder.write_table("0.parquet", pa.table({"x": [1]}, schema))
        partition.commit(schema, {})
    return Path(uri, f"date={NOW:%Y-%m-%d}", "first", "0.parquet")


def test_replaced_predictions_stay_unless_the_pipeline_says_how_long(
    pipeline: Pipeline, shared: Installation
) -> None:
    replaced = replace_predictions(shared)
    clean_pipeline(pipeline, shared, LATER)
    assert replaced.exists()
    values = pipeline.model_dump() | {"retention": {"predictions": 400}}
    kept = clean_pipeline(Pipeline.model_validate(values), shared)
    assert replaced.exists()
    assert kept["predictions"].files == 0
    removed = clean_pipeline(Pipeline.model_validate(values), shared, LATER)
    assert removed["predictions"].files == 1
    assert not replaced.exists()


def test_nothing_of_a_snapshot_goes_by_default(pipeline: Pipeline, shared: Installation) -> None:
    made = [ingest_rows(pipeline, shared, rows) for rows in (20, 30)]
    values = pipeline.model_dump() | {"retention": {}}
    found = clean_pipeline(Pipeline.model_validate(values), shared, LATER)
    assert found["snapshots"].removed == ()
    for snapshot in made:
        assert sum(batch.num_rows for batch in scan(snapshot)) == snapshot.rows


def test_the_rows_of_a_removed_snapshot_are_gone_for_drift_too(
    pipeline: Pipeline, shared: Installation
) -> None:
    first, _ = (ingest_rows(pipeline, shared, rows) for rows in (20, 30))
    clean_pipeline(pipeline, shared)
    gone = open_snapshot(shared, "things", first.version)
    with pytest.raises(InputError, match="are gone"):
        next(scan(gone))

    def count(snapshot: Snapshot) -> tuple[Bins, ...]:
        next(scan(snapshot))
        raise AssertionError

    assert bins_unless_gone(count, gone) == ()
