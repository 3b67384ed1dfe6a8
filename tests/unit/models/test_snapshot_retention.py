from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.folder import Folder
from millrace.models.data.ingest import ingest
from millrace.models.data.lease import hold_lease
from millrace.models.data.part_store import read_manifest
from millrace.models.data.snapshot_retention import LEASE, find_snapshots, remove_snapshots
from millrace.models.data.snapshot_use import find_held_versions, hold_ingestion, hold_snapshot
from millrace.models.data.snapshots import RETENTION, Snapshot, open_snapshot, read_removed, scan

Ingest = Callable[..., Snapshot]
LATER = datetime.now(UTC) + timedelta(hours=1)


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
        file.write_text(text_of(ids))
        dataset = pipeline.dataset.model_copy(update={"mode": mode})
        return ingest(pipeline.model_copy(update={"dataset": dataset}), installation)

    return write


def text_of(ids: range) -> str:
    lines = [f"{n},{n / 7:.3f},{'ab'[n % 2]}" for n in ids]
    return "\n".join(["id,x,y", *lines]) + "\n"


def test_removed_rows_are_gone_and_the_manifest_stays(
    ingest_rows: Ingest, installation: Installation
) -> None:
    first, second = ingest_rows(range(50)), ingest_rows(range(60))
    removed, manifest = (first.version,), read_manifest(first)
    expected = remove_snapshots(second.uri, removed, None, dry_run=True)
    assert len(list(scan(first))) > 0  # a dry run removes nothing
    assert remove_snapshots(second.uri, removed, None, dry_run=False) == expected
    assert expected.files == 1
    assert remove_snapshots(second.uri, (), LATER, dry_run=False).files == 1  # the part file

    gone = open_snapshot(installation, "things", first.version)
    assert read_manifest(gone) == manifest
    assert [file["size"] for file in manifest["files"]] == [len(text_of(range(50)))]
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

    first, last = add("a.csv", 0), add("b.csv", 100)
    assert remove_snapshots(last.uri, (first.version,), None, dry_run=False).files == 0
    assert sum(batch.num_rows for batch in scan(last)) == 20


def test_a_commit_lists_no_files(tmp_path: Path, installation: Installation) -> None:
    source = tmp_path / "source"
    source.mkdir()
    values = {"source": f"{source}/*.csv", "target": "y"}
    pipeline = Pipeline.model_validate({"name": "things", "dataset": values})
    sizes = []
    for night in range(4):
        for number in range(40 if night == 0 else 1):
            name = f"a-rather-long-name-{night}-{number}.csv"
            (source / name).write_text(f"x,y\n{night},{'ab'[number % 2]}\n{number},b\n")
        made = ingest(pipeline, installation)
        sizes.append(Path(made.uri, "_delta_log", f"{made.version:020}.json").stat().st_size)
    assert len(read_manifest(made)["files"]) == 43
    remove_snapshots(made.uri, range(made.version), LATER, dry_run=False)
    counts = [
        len(read_manifest(open_snapshot(installation, "things", version))["files"])
        for version in range(made.version + 1)
    ]
    assert counts == [40, 41, 42, 43]
    assert "a-rather-long-name" not in Path(made.uri, "_delta_log", f"{3:020}.json").read_text()
    assert sizes[-1] < sizes[0]


def test_an_older_commit_that_lists_its_files_is_read(ingest_rows: Ingest) -> None:
    made = ingest_rows(range(10))
    older = replace(made, source=read_manifest(made))
    assert read_manifest(older) == older.source


def test_a_list_of_files_that_is_gone_is_an_error(ingest_rows: Ingest) -> None:
    made = ingest_rows(range(10))
    for file in Path(made.uri, "_parts").iterdir():
        file.unlink()
    with pytest.raises(WorkError, match="which files snapshot 0 of 'things' was made of"):
        read_manifest(made)


def test_only_old_files_that_no_version_names_are_removed(ingest_rows: Ingest) -> None:
    snapshot = ingest_rows(range(10))
    left = Path(snapshot.uri, "left-by-a-killed-ingestion.parquet")
    left.write_bytes(b"1234")
    part = Path(snapshot.uri, "_parts", "left.json")
    part.write_text("{}")
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert remove_snapshots(snapshot.uri, (), an_hour_ago, dry_run=False).files == 0
    later = datetime.now(UTC) + timedelta(hours=1)
    assert remove_snapshots(snapshot.uri, (), later, dry_run=False).files == 2
    assert not left.exists()
    assert not part.exists()
    assert sum(batch.num_rows for batch in scan(snapshot)) == 10


def test_the_next_ingestion_still_knows_its_parts(ingest_rows: Ingest) -> None:
    first, second = ingest_rows(range(50)), ingest_rows(range(60))
    later = datetime.now(UTC) + timedelta(hours=1)
    remove_snapshots(second.uri, (first.version,), later, dry_run=False)
    again = ingest_rows(range(60), "full")
    assert replace(again, created=True, files_read=second.files_read) == second
    assert str(second.files_read) == "read the file: it has changed"


def test_a_snapshot_is_held_while_a_job_reads_it(tmp_path: Path) -> None:
    uri = str(tmp_path)
    with hold_snapshot(uri, 7), hold_snapshot(uri, 7), hold_snapshot(uri, 3):
        assert find_held_versions(uri) == {7, 3}
    assert find_held_versions(uri) == frozenset()
    assert list((tmp_path / "_readers").iterdir()) == []


def test_what_another_program_rewrote_stays(ingest_rows: Ingest) -> None:
    snapshot = ingest_rows(range(60))
    half = DeltaTable(snapshot.uri).to_pyarrow_table().slice(0, 30)
    write_deltalake(snapshot.uri, half, mode="append")
    compacted = DeltaTable(snapshot.uri)
    assert compacted.optimize.compact()["numFilesRemoved"] == 2
    remove_snapshots(snapshot.uri, (), LATER, dry_run=False)
    assert DeltaTable(snapshot.uri).to_pyarrow_table().num_rows == 90
    assert sum(batch.num_rows for batch in scan(snapshot)) == 60


def test_what_another_program_rewrote_goes_with_the_snapshot_before_it(
    ingest_rows: Ingest,
) -> None:
    first = ingest_rows(range(60))
    write_deltalake(first.uri, DeltaTable(first.uri).to_pyarrow_table(), mode="append")
    DeltaTable(first.uri).optimize.compact()
    second = ingest_rows(range(20), "full")
    assert remove_snapshots(first.uri, (first.version,), None, dry_run=False).files == 3
    remove_snapshots(first.uri, (), LATER, dry_run=False)
    assert sum(batch.num_rows for batch in scan(second)) == 20


def test_an_old_file_of_a_running_ingestion_stays(ingest_rows: Ingest) -> None:
    snapshot = ingest_rows(range(10))
    staged = Path(snapshot.uri, "about-to-be-committed.parquet")
    staged.write_bytes(b"1234")
    with hold_ingestion(snapshot.uri):
        assert remove_snapshots(snapshot.uri, (), LATER, dry_run=False).files == 0
    assert remove_snapshots(snapshot.uri, (), LATER, dry_run=False).files == 1


def test_one_clean_at_a_time_removes_snapshots_of_a_dataset(ingest_rows: Ingest) -> None:
    first, second = ingest_rows(range(50)), ingest_rows(range(60))
    with (
        hold_lease(Folder(f"{first.uri}/{RETENTION}"), LEASE),
        pytest.raises(TransientError, match="another `millrace clean`"),
    ):
        remove_snapshots(first.uri, (first.version,), None, dry_run=False)
    assert find_snapshots(first.uri) == (first.version, second.version)
    remove_snapshots(first.uri, (first.version,), None, dry_run=False)
    assert read_removed(first.uri).keys() == {first.version}
