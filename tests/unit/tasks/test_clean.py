import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshot_use import hold_snapshot
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.open_runs import Note, OpenRun
from millrace.models.registry.tracking import tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.release_state import Release, ReleaseState
from millrace.tasks.retention.clean import clean, longest_retention
from millrace.tasks.retention.clean_home import clean_home, find_left_work
from millrace.tasks.retention.clean_pipeline import PipelineCleaner, find_released
from millrace.tasks.retention.cleaned import Cleaned
from millrace.tasks.retention.disk_use import measure_disk

NOW = datetime.now(UTC)


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    folder = tmp_path / "home"
    tables = str(folder / "tables")
    return Installation(folder, f"sqlite:///{folder}/mlflow.db", tables).prepared()


def age(path: Path, days: float) -> Path:
    """Make a file or folder look old."""
    then = (NOW - timedelta(days=days)).timestamp()
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (then, then))
    return path


def left(home: Installation, name: str, days: float) -> Path:
    folder = home.home / name
    folder.mkdir(parents=True)
    (folder / "rows.arrow").write_text("rows")
    return age(folder, days)


def test_what_killed_commands_left_goes_after_a_day(home: Installation) -> None:
    old = left(home, "staging/ingest-x-1", 3)
    weights = left(home, "training/run1", 3)
    new = left(home, "staging/ingest-x-2", 0.5)
    (cleaned, _) = clean_home(home, RetentionSpec(), NOW, (), dry_run=True)
    assert cleaned.removed == ("staging/ingest-x-1", "training/run1")
    assert old.exists()
    assert clean_home(home, RetentionSpec(), NOW, (), dry_run=False)[0] == cleaned
    assert (cleaned.files, cleaned.size) == (2, 8)
    assert not old.exists()
    assert not weights.exists()
    assert new.exists()


def test_the_work_of_an_open_run_stays_however_old(home: Installation) -> None:
    opened = OpenRun(home.run, Note("", "run1"))
    opened.write()
    note = home.run / "open_runs" / "run1.json"
    os.utime(note, ((NOW - timedelta(days=9)).timestamp(),) * 2)
    before_it, since_it = left(home, "staging/a", 10), left(home, "training/run1", 8)
    assert find_left_work(home, NOW - timedelta(days=1)) == [before_it]
    opened.forget()
    assert find_left_work(home, NOW - timedelta(days=1)) == [before_it, since_it]


def test_old_logs_go_unless_a_service_writes_them(home: Installation) -> None:
    used, old, new = (home.logs / name for name in ("mlflow.log", "old.log", "new.log"))
    for file in (used, old, new):
        file.write_text("line")
    age(used, 40)
    age(old, 40)
    (_, cleaned) = clean_home(home, RetentionSpec(), NOW, {used}, dry_run=False)
    assert cleaned == Cleaned("logs", removed=("logs/old.log",), files=1, size=4)
    assert used.exists()
    assert new.exists()


def test_nothing_goes_that_is_kept_for_ever(home: Installation) -> None:
    left(home, "staging/a", 400)
    assert clean_home(home, RetentionSpec(logs=None, staging=None), NOW, (), dry_run=False) == []


def test_what_pipelines_share_stays_for_the_longest_time() -> None:
    specs = [RetentionSpec(logs=5, staging=3), RetentionSpec(logs=9, staging=None)]
    found = longest_retention(specs)
    assert (found.logs, found.staging) == (9, None)
    assert longest_retention([]) == RetentionSpec()


def test_what_serving_needs_is_named() -> None:
    state = ReleaseState(live=Release("m", "live", 4), superseded=3, step=Release("m", "step", 5))
    assert find_released(state) == {
        3: "served before the live version",
        4: "live",
        5: "in a rollout",
    }


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
    values: dict[str, Any] = vars(mlflow_places) | {"tables_uri": str(tmp_path / "tables")}
    return Installation(**values)


def ingest_rows(pipeline: Pipeline, home: Installation, rows: int) -> Snapshot:
    lines = [f"{n / 7:.3f},{'ab'[n % 2]}" for n in range(rows)]
    Path(pipeline.dataset.source).write_text("\n".join(["x,y", *lines]) + "\n")
    return ingest(pipeline, home)


def snapshots_of(pipeline: Pipeline, home: Installation) -> Cleaned:
    found = PipelineCleaner(pipeline, home, NOW, dry_run=True).clean()
    return next(each for each in found if each.kind == "snapshots")


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
    found = {each.kind: each for each in clean([pipeline], shared, (), dry_run=True)}
    assert found["versions"].removed == ("version 1",)
    assert found["versions"].kept == {"version 2": "alias champion", "version 3": "recent"}
    assert found["snapshots"].removed == ("snapshot 0",)
    assert found["snapshots"].kept == {
        "snapshot 1": "things version 2 was trained on it",
        "snapshot 2": "things version 3 was trained on it",
    }


def test_the_disk_is_measured_by_kind(home: Installation, tmp_path: Path) -> None:
    (home.logs / "a.log").write_bytes(b"12345")
    part = Path(home.table("datasets", "x", "_delta_log"))
    part.mkdir(parents=True)
    (part / "0.json").write_bytes(b"123")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"0" * 1000)
    (home.staging / "link").symlink_to(outside)
    disk = measure_disk(home)
    assert (disk["logs"], disk["snapshots"]) == (5, 3)
    assert disk["staging"] < 200
    assert "predictions" not in disk
