import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as tables
from millrace.models.data import quarantine, read_source, row_files, snapshots, table_commit
from millrace.models.data.part_store import read_manifest
from millrace.models.data.sources import csv_source

Ingest = Callable[..., snapshots.Snapshot]


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))


@pytest.fixture
def run(tmp_path: Path, installation: Installation) -> Ingest:
    """Ingest with the given `dataset` keys; the source's paths start from `tmp_path`."""

    def ingest(source: str = "r.csv", **dataset: Any) -> snapshots.Snapshot:
        values = {"name": "t", "dataset": {"source": source, "target": "y", **dataset}}
        return tables.ingest(Pipeline.model_validate(values).with_folder(tmp_path), installation)

    return ingest


def write_csv(path: Path, rows: int, extra: str = "") -> None:
    lines = [f"{number},{number / 7:.4f},{'ab'[number % 2]}" for number in range(rows)]
    path.write_text("id,x,y\n" + "\n".join(lines) + "\n" + extra)


def quarantined(installation: Installation) -> list[dict[str, Any]]:
    uri = installation.table("quarantine", "t")
    return DeltaTable(uri).to_pyarrow_table().to_pylist() if Path(uri).exists() else []


def versions(installation: Installation) -> int:
    uri = installation.table("datasets", "t")
    return DeltaTable(uri).version() + 1 if Path(uri, "_delta_log").exists() else 0


def test_a_snapshot_holds_the_rows_and_what_is_known_of_them(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 100)
    made = run(key=["id"])
    found = snapshots.open_snapshot(installation, "t")
    assert made.created
    assert (found.version, found.rows, found.digest) == (0, 100, made.digest)
    assert found.schema == made.schema
    assert found.schema.column("y").categories == ("a", "b")
    assert found.classes == {"a": 50, "b": 50}
    assert found.statistics == made.statistics
    assert read_manifest(found)["files"][0]["path"] == str(tmp_path / "r.csv")
    rows = pa.Table.from_batches(snapshots.scan(found)).to_pylist()
    assert sorted(int(row["_key"]) for row in rows) == list(range(100))
    assert list(rows[0]) == ["id", "x", "y", "_key", "_bucket"]


def test_rows_come_back_in_the_order_of_the_source(tmp_path: Path, run: Ingest) -> None:
    for number in range(40):  # as many batches, which Delta would deal out to several writers
        rows = range(number * 50, number * 50 + 50)
        lines = [f"{row},{row / 7:.2f},{'ab'[row % 2]}" for row in rows]
        (tmp_path / f"r{number:02}.csv").write_text("\n".join(["id,x,y", *lines]))
    snapshot = run("r*.csv", key=["id"])
    found = [row for batch in snapshots.scan(snapshot) for row in batch["id"].to_pylist()]
    assert found == [str(row) for row in range(2000)]


def test_a_key_of_a_csv_file_is_kept_as_it_is_written(tmp_path: Path, run: Ingest) -> None:
    """As a number, 012 and 12 were one key, and 19 digits lost the last ones."""
    keys = ["12", "012", "0012", *(str(1790000000000014858 + number) for number in range(40))]
    lines = [f"{key},0{number},{'ab'[number % 2]}" for number, key in enumerate(keys)]
    (tmp_path / "r.csv").write_text("\n".join(["id,x,y", *lines]))
    snapshot = run(key=["id"])
    assert sorted(
        key for batch in snapshots.scan(snapshot) for key in batch["_key"].to_pylist()
    ) == sorted(keys)
    assert not snapshot.repeated_keys
    assert run(key=["id"], columns={"id": {"type": "int"}}).repeated_keys == 2


def test_numbers_that_begin_with_zeros_are_warned_of(
    tmp_path: Path, run: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"{number},{number:05},{'ab'[number % 2]}" for number in range(40)]
    (tmp_path / "r.csv").write_text("\n".join(["id,zip,y", *lines]))
    with caplog.at_level("WARNING"):
        run(key=["id"])
    assert "zip is read as numbers" in caplog.text
    assert "id is read" not in caplog.text
    caplog.clear()
    run(key=["id"], columns={"zip": {"type": "category"}})
    assert "is read as numbers" not in caplog.text


def test_whole_numbers_of_19_digits_are_exact_beside_nulls(tmp_path: Path, run: Ingest) -> None:
    numbers = [1790000000000014858 + number for number in range(40)]
    lines = [f"{n},{number},{'ab'[n % 2]}" for n, number in enumerate(numbers)]
    (tmp_path / "r.csv").write_text("\n".join(["id,x,y", *lines, "40,NA,a", f"41,{10**19},b"]))
    snapshot = run(key=["id"], columns={"x": {"type": "int", "nullable": True}})
    found = [row for batch in snapshots.scan(snapshot) for row in batch["x"].to_pylist()]
    assert found == [*numbers, None]
    assert snapshot.quarantined == 1


def test_the_same_input_twice_makes_no_version(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 100, "bad,1,a\n")
    assert run().created
    again = run()
    assert (again.created, again.version, again.quarantined) == (False, 0, 1)
    assert versions(installation) == 1
    assert len(quarantined(installation)) == 1


def test_the_same_rows_from_another_format_and_order_are_the_same(
    tmp_path: Path, run: Ingest
) -> None:
    table = pa.table({"x": [0.5, 1.5, 2.5, 3.5], "y": ["a", "b", "a", "b"]})
    (tmp_path / "r.csv").write_text("x,y\n0.5,a\n1.5,b\n2.5,a\n3.5,b\n")
    pq.write_table(table.take([2, 0, 3, 1]), tmp_path / "r.parquet")
    assert run("r.csv").created
    assert not run("r.parquet").created


def test_old_versions_stay_readable(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    for version, rows in enumerate((100, 200)):
        write_csv(tmp_path / "r.csv", rows)
        assert run().version == version
    DeltaTable(installation.table("datasets", "t")).create_checkpoint()
    old, new = (snapshots.open_snapshot(installation, "t", version) for version in (0, 1))
    assert [sum(batch.num_rows for batch in snapshots.scan(s)) for s in (old, new)] == [100, 200]
    assert (old.rows, new.rows) == (100, 200)


def test_growth_moves_no_row_between_splits(tmp_path: Path, run: Ingest) -> None:
    shares = SplitSpec(train=0.6, validation=0.2, test=0.2)

    def splits(snapshot: snapshots.Snapshot) -> dict[str, str]:
        return {
            key: split
            for split in ("train", "validation", "test")
            for batch in snapshots.scan(snapshot, split, shares, columns=["_key"])  # type: ignore[arg-type]
            for key in batch.column("_key").to_pylist()
        }

    write_csv(tmp_path / "r.csv", 300)
    before = splits(run())
    write_csv(tmp_path / "r.csv", 900)
    grown = run()
    after = splits(grown)
    assert len(before) == 300
    assert before == {key: after[key] for key in before}
    counts = [
        snapshots.count_rows(grown, split, shares) for split in ("train", "validation", "test")
    ]
    assert sum(counts) == 900
    assert 100 < counts[2] < 260


def test_bad_rows_go_to_quarantine_with_the_reason(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    bad = "300,abc,a\n301,1.5,\n302,-9,b\n303,1\n304,1.5,c\n"
    write_csv(tmp_path / "r.csv", 200, bad)
    columns = {"x": {"min": 0}, "y": {"categories": ["a", "b"]}}
    made = run(columns=columns, features=["x"])
    assert (made.rows, made.quarantined) == (200, 5)
    assert (
        {row["reason"] for row in quarantined(installation)}
        == set(made.reasons)
        == {
            "x: not a number",
            "y: null",
            "x: below the minimum 0",
            "y: unknown category",
            "line has 2 cells, not 3",
        }
    )
    assert {row["source"] for row in quarantined(installation)} == {"r.csv"}


def test_a_file_that_cannot_be_read_is_told(
    tmp_path: Path, run: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError("Permission denied")

    write_csv(tmp_path / "r.csv", 10)
    monkeypatch.setattr(csv_source, "_read", denied)
    with pytest.raises(InputError, match="r.csv cannot be read"):
        run()


def test_quarantine_keeps_so_many_rows_and_counts_all(
    tmp_path: Path, run: Ingest, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MAX_ROWS", 3)
    write_csv(tmp_path / "r.csv", 100, "1,x,a\n" * 5)
    assert run().quarantined == 5
    assert len(quarantined(installation)) == 3


def test_too_many_bad_rows_fail_and_can_be_read_in_quarantine(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 10, "x,x,a\n" * 3)
    for _ in range(2):
        with pytest.raises(InputError, match="3 of the 13 rows"):
            run(columns={"x": {"type": "float"}, "id": {"type": "int"}})
    assert versions(installation) == 0
    assert len(quarantined(installation)) == 3


def test_types_are_held_across_versions(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 50)
    run()
    (tmp_path / "r.csv").write_text("id,x,y\n" + "1,high,a\n2,low,b\n" * 20)
    with pytest.raises(InputError, match="x: not a number"):
        run()
    assert versions(installation) == 1


def test_a_declaration_changes_a_held_type(tmp_path: Path, run: Ingest) -> None:
    write_csv(tmp_path / "r.csv", 50)
    run()
    assert run(columns={"id": {"type": "float"}}).schema.column("id").type == "float"


def test_categories_are_collected_from_all_rows(
    tmp_path: Path, run: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_source, "CHUNK_ROWS", 10)
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n"
        "def read():\n"
        "    for letter in 'ca' * 10 + 'b':\n"
        "        yield pa.record_batch({'x': [letter] * 5, 'y': ['p', 'q'] * 2 + ['p']})\n"
    )
    assert run("rows:read").schema.column("x").categories == ("a", "b", "c")


def test_a_source_that_fails_midway_leaves_nothing(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 100)
    run()
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n"
        "def read():\n"
        "    for number in range(40):\n"
        "        yield pa.record_batch({'id': [1] * 9999, 'x': [1.0] * 9999, 'y': ['a'] * 9999})\n"
        "    raise OSError('gone')\n"
    )
    with pytest.raises(InputError, match="gone"):
        run("rows:read")
    assert versions(installation) == 1
    assert quarantined(installation) == []
    assert list(installation.staging.iterdir()) == []


def test_a_publication_that_fails_leaves_the_table_as_it_was(
    tmp_path: Path, run: Ingest, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "r.csv", 100)
    run()
    write_csv(tmp_path / "r.csv", 200)

    folder = Path(snapshots.open_snapshot(installation, "t").uri)
    before = sorted(folder.rglob("*"))
    move = shutil.move

    def half(source: Path, target: str) -> None:
        if "-00001" in source.name:
            raise OSError("disk gone")
        move(source, target)

    monkeypatch.setattr(row_files, "FILE_BYTES", 1)
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(table_commit.shutil, "move", half)
    with pytest.raises(WorkError, match="disk gone"):
        run()
    assert sorted(folder.rglob("*")) == before
    assert snapshots.open_snapshot(installation, "t").rows == 100
    assert list(installation.staging.iterdir()) == []


def test_no_more_than_a_few_batches_are_alive(
    tmp_path: Path, installation: Installation, run: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    seen: list[weakref.ref[pa.RecordBatch]] = []
    check = read_source.check_chunk

    def counted(*values: Any) -> read_source.CheckedChunk:
        seen.append(weakref.ref(values[-1].rows))
        alive.append(sum(ref() is not None for ref in seen))
        return check(*values)

    monkeypatch.setattr(read_source, "CHUNK_ROWS", 1)
    monkeypatch.setattr(read_source, "check_chunk", counted)
    monkeypatch.setattr(row_files, "FILE_BYTES", 1)
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n"
        "def read():\n"
        "    for number in range(50):\n"
        "        yield pa.record_batch({'x': [float(number)] * 4, 'y': ['a', 'b'] * 2})\n"
    )
    assert run("rows:read").rows == 200
    assert len(alive) == 50
    assert max(alive) <= 2 * (os.cpu_count() or 1) + 2


def test_two_ingestions_at_once_do_not_overwrite_each_other(
    tmp_path: Path, run: Ingest, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "r.csv", 100)
    run()
    read = tables.read_changes

    def overtaken(*arguments: Any) -> Any:
        found = read(*arguments)
        monkeypatch.setattr(tables, "read_changes", read)
        write_csv(tmp_path / "other.csv", 300)
        run("other.csv")
        return found

    monkeypatch.setattr(tables, "read_changes", overtaken)
    write_csv(tmp_path / "r.csv", 200)
    with pytest.raises(TransientError, match="published a snapshot of .* first"):
        run()
    assert snapshots.open_snapshot(installation, "t").rows == 300


def test_two_first_ingestions_at_once_do_not_overwrite_each_other(
    tmp_path: Path, run: Ingest, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tables.read_changes

    def overtaken(*arguments: Any) -> Any:
        found = read(*arguments)
        monkeypatch.setattr(tables, "read_changes", read)
        write_csv(tmp_path / "other.csv", 300)
        run("other.csv")
        return found

    monkeypatch.setattr(tables, "read_changes", overtaken)
    write_csv(tmp_path / "r.csv", 200)
    with pytest.raises(TransientError, match="published a snapshot of .* first"):
        run()
    assert snapshots.open_snapshot(installation, "t").rows == 300


def test_commits_of_others_are_no_snapshots(
    tmp_path: Path, run: Ingest, installation: Installation
) -> None:
    write_csv(tmp_path / "r.csv", 100)
    made = run()
    table = DeltaTable(made.uri)
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    assert snapshots.open_snapshot(installation, "t").version == 0
    with pytest.raises(InputError, match="no snapshot of version 1"):
        snapshots.open_snapshot(installation, "t", 1)


def test_the_files_have_the_rows_of_a_split(tmp_path: Path, run: Ingest) -> None:
    write_csv(tmp_path / "r.csv", 500)
    made = run()
    shares = SplitSpec()
    wanted = snapshots.split_filter("test", shares)
    rows = sum(file.count_rows(filter=wanted) for file in snapshots.row_files(made))
    assert rows == snapshots.count_rows(made, "test", shares) > 10


def test_bundled_digits_become_plain_lists(run: Ingest) -> None:
    made = run("sklearn:digits", target="target")
    assert made.schema.column("image").width == 64
    assert made.schema.column("target").categories == tuple(range(10))
    assert (
        snapshots.row_files(made)[0].physical_schema.field("image").type.value_type == pa.float32()
    )


def test_progress_is_told_in_rows(tmp_path: Path, installation: Installation) -> None:
    write_csv(tmp_path / "r.csv", 100)
    values = {"name": "t", "dataset": {"source": "r.csv", "target": "y"}}
    told: list[int] = []
    tables.ingest(Pipeline.model_validate(values).with_folder(tmp_path), installation, told.append)
    assert told[-1] == 100


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("x,y\n1,a\n2,a\n", {}, "only one class"),
        ("x,y\n", {}, "holds no rows"),
        ("x,y\n1\n2\n", {}, "line has 1 cells, not 2"),
        ("x,y\n1,a\n2,b\n", {"columns": {"x": {"min": 9}}}, "all of the 2 rows"),
        ("x,y\n" + "".join(f"v{n},a\n" for n in range(2000)), {}, "more than 1000 different"),
    ],
)
def test_rows_that_cannot_be_learnt_from_are_refused(
    tmp_path: Path, run: Ingest, text: str, more: dict[str, Any], words: str
) -> None:
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        run(**more)


def test_a_dataset_that_is_not_there_is_told(installation: Installation) -> None:
    with pytest.raises(InputError, match="no dataset 'nothing'"):
        snapshots.open_snapshot(installation, "nothing")


def test_rows_of_many_files_stay_in_their_order(
    tmp_path: Path, run: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "FILE_BYTES", 1)
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 1000)
    write_csv(tmp_path / "r.csv", 2000)
    made = run()
    files = snapshots.row_files(made)
    assert len(files) > 20
    found = [
        row for batch in snapshots.scan(made, columns=["id"]) for row in batch["id"].to_pylist()
    ]
    assert found == list(range(2000))
    assert [n for file in files for n in file.to_table(columns=["id"])["id"].to_pylist()] == found
