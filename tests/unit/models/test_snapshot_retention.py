from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshot_retention import (
    SnapshotPlan,
    find_snapshots,
    plan_snapshots,
    remove_snapshots,
)
from millrace.models.data.snapshot_use import find_held_versions, hold_snapshot
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan

Ingest = Callable[..., Snapshot]


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    home = tmp_path / "home"
    return Installation(home, "", tables_uri=str(home / "tables"))


@pytest.fixture
def ingest_rows(tmp_path: Path, installation: Installation) -> Ingest:
    """Return a function that replaces the source by some rows and ingests it."""
    file = tmp_path / "data.csv"
    values = {"source": str(file), "target": "y", "key": ["id"]}
    pipeline = Pipeline.model_validate({"name": "things", "dataset": values})

    def write(ids: range, mode: str = "auto") -> Snapshot:
        lines = [f"{n},{n / 7:.3f},{'ab'[n % 2]}" for n in ids]
        file.write_text("\n".join(["id,x,y", *lines]) + "\n")
        dataset = pipeline.dataset.model_copy(update={"mode": mode})
        return ingest(pipeline.model_copy(update={"dataset": dataset}), installation)

    return write


def test_the_newest_snapshots_and_the_needed_ones_keep_their_rows() -> None:
    plan = plan_snapshots([0, 2, 3, 5, 6], 2, {0: "version 1 was trained on it", 6: "in use"})
    assert plan.kept == {0: "version 1 was trained on it", 5: "recent", 6: "in use"}
    assert plan.removed == (2, 3)


def test_without_a_number_all_snapshots_keep_their_rows() -> None:
    assert plan_snapshots([0, 1, 2], None, {}).removed == ()


def test_no_snapshot_needs_no_plan() -> None:
    assert plan_snapshots([], 1, {}) == SnapshotPlan({}, ())


def test_removed_rows_are_gone_and_the_manifest_stays(
    ingest_rows: Ingest, installation: Installation
) -> None:
    first, second = ingest_rows(range(50)), ingest_rows(range(60))
    plan = plan_snapshots(find_snapshots(second.uri), 1, {})
    expected = remove_snapshots(second.uri, plan, None, dry_run=True)
    assert len(list(scan(first))) > 0  # a dry run removes nothing
    assert remove_snapshots(second.uri, plan, None, dry_run=False) == expected
    assert expected.files == 1

    gone = open_snapshot(installation, "things", first.version)
    assert gone.source == first.source
    assert gone.digest == first.digest
    with pytest.raises(InputError, match="the rows of snapshot 0 .* are gone"):
        next(scan(gone))
    kept = open_snapshot(installation, "things")
    assert sum(batch.num_rows for batch in scan(kept)) == 60
    assert find_snapshots(second.uri) == (second.version,)


def test_files_that_a_kept_snapshot_shares_stay(tmp_path: Path, installation: Installation) -> None:
    source = tmp_path / "source"
    source.mkdir()
    values = {"source": f"{source}/*.csv", "target": "y"}
    pipeline = Pipeline.model_validate({"name": "things", "dataset": values})

    def add(name: str, start: int) -> Snapshot:
        lines = [f"{n},{'ab'[n % 2]}" for n in range(start, start + 10)]
        (source / name).write_text("\n".join(["x,y", *lines]) + "\n")
        return ingest(pipeline, installation)

    add("a.csv", 0)
    last = add("b.csv", 100)
    plan = plan_snapshots(find_snapshots(last.uri), 1, {})
    assert remove_snapshots(last.uri, plan, None, dry_run=False).files == 0
    assert sum(batch.num_rows for batch in scan(last)) == 20


def test_only_old_files_that_no_version_names_are_removed(ingest_rows: Ingest) -> None:
    snapshot = ingest_rows(range(10))
    left = Path(snapshot.uri, "left-by-a-killed-ingestion.parquet")
    left.write_bytes(b"1234")
    part = Path(snapshot.uri, "_parts", "left.json")
    part.write_text("{}")
    plan = plan_snapshots([snapshot.version], None, {})
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert remove_snapshots(snapshot.uri, plan, an_hour_ago, dry_run=False).files == 0
    later = datetime.now(UTC) + timedelta(hours=1)
    assert remove_snapshots(snapshot.uri, plan, later, dry_run=False).files == 2
    assert not left.exists()
    assert not part.exists()
    assert sum(batch.num_rows for batch in scan(snapshot)) == 10


def test_the_next_ingestion_still_knows_its_parts(ingest_rows: Ingest) -> None:
    ingest_rows(range(50))
    second = ingest_rows(range(60))
    later = datetime.now(UTC) + timedelta(hours=1)
    plan = plan_snapshots(find_snapshots(second.uri), 1, {})
    remove_snapshots(second.uri, plan, later, dry_run=False)
    again = ingest_rows(range(60), "full")
    assert replace(again, created=True, files_read=second.files_read) == second
    assert str(second.files_read) == "read the file: it has changed"


def test_a_snapshot_is_held_while_a_job_reads_it(tmp_path: Path) -> None:
    uri = str(tmp_path)
    with hold_snapshot(uri, 7), hold_snapshot(uri, 7), hold_snapshot(uri, 3):
        assert find_held_versions(uri) == {7, 3}
    assert find_held_versions(uri) == frozenset()
    assert list((tmp_path / "_readers").iterdir()) == []
