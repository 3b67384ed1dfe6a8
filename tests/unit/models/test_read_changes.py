"""An ingestion that reads only what changed gives what a full reading gives."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import csv

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as module
from millrace.models.data import part_tasks, parts, repeated_keys, snapshots
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.part_store import read_manifest
from millrace.models.data.snapshot_retention import remove_snapshots
from millrace.models.data.snapshots import Snapshot

SCHEMA = pa.schema(
    [("id", pa.int64()), ("x", pa.float64()), ("c", pa.string()), ("y", pa.string())]
)
Rows = list[dict[str, Any]]


def make_rows(chance: random.Random, count: int) -> Rows:
    """Return rows, some of them bad: a null in a column that may not have one."""
    return [
        {
            "id": chance.randrange(10**3),
            "x": None if chance.random() < 0.05 else chance.uniform(-5, 5),
            "c": chance.choice("pqrs"),
            "y": chance.choice(["no", "yes"]),
        }
        for _ in range(count)
    ]


def write_csv(path: Path, rows: Rows) -> None:
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
    path.write_text("\n".join([",".join(SCHEMA.names), *lines]) + "\n")


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def shrink_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few rows be large enough for a part of their own."""
    monkeypatch.setattr(parts, "LARGE_BYTES", 2000)
    monkeypatch.setattr(parts, "MOST_SMALL", 3)
    monkeypatch.setattr(parts, "SMALL_PARTS", 2)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_groups(monkeypatch)


class Home:
    """A home with one dataset.

    Attributes:
        folder: folder of the source.
        mode: `dataset.mode`.
    """

    def __init__(self, folder: Path, mode: str, source: str, *key: str) -> None:
        home = folder.parent / mode
        self.installation = Installation(home, "", str(home / "tables"))
        values = {
            "name": "t",
            "dataset": {
                "source": source,
                "target": "y",
                "mode": mode,
                "key": list(key),
                "max_quarantine": 0.9,
                "columns": {"x": {"type": "float"}, "id": {"type": "int"}},
            },
        }
        self.pipeline = Pipeline.model_validate(values).with_folder(folder)
        self.rows_read = 0

    def ingest(self) -> Snapshot:
        self.rows_read = 0

        def tell(rows: int) -> None:
            self.rows_read = rows

        return module.ingest(self.pipeline, self.installation, tell)


def with_dataset(pipeline: Pipeline, **changes: Any) -> Pipeline:
    """Return a pipeline with other settings of its dataset."""
    values = {**pipeline.dataset.model_dump(exclude_unset=True), **changes}
    return Pipeline.model_validate({"name": "t", "dataset": values}).with_folder(pipeline.folder)


def content(snapshot: Snapshot) -> list[str]:
    rows = [row for batch in snapshots.scan(snapshot) for row in batch.to_pylist()]
    return sorted(map(repr, rows))


def rounded(statistics: ColumnStatistics) -> dict[str, Any]:
    """Return statistics without the last digits, which depend on the order of the additions."""
    values = statistics.as_json()
    for name in ("mean", "squares", "std"):
        if values["numbers"]:
            values["numbers"][name] = pytest.approx(values["numbers"][name], rel=1e-9, abs=1e-9)
    return values


def require_same(one: Snapshot, other: Snapshot) -> None:
    assert (one.digest, one.rows, one.schema) == (other.digest, other.rows, other.schema)
    assert (one.quarantined, dict(one.reasons)) == (other.quarantined, dict(other.reasons))
    assert read_manifest(one) == read_manifest(other)
    assert one.repeated_keys == other.repeated_keys
    assert {n: s.as_json() for n, s in one.statistics.items()} == {
        n: rounded(s) for n, s in other.statistics.items()
    }
    assert content(one) == content(other)
    if one.schema.key:
        keys = [key for batch in snapshots.scan(one) for key in batch["_key"].to_pylist()]
        assert one.repeated_keys == len(keys) - len(set(keys))


def change_files(folder: Path, ending: str, chance: random.Random) -> None:
    """Add, change, remove, rename or touch a few files; at least one stays."""
    for _ in range(chance.randint(1, 3)):
        files = sorted(folder.iterdir())
        kind = chance.choice(["add", "add", "change", "remove", "rename", "touch"])
        old = chance.choice(files) if files else None
        new = folder / f"{chance.randrange(1000):03d}.{ending}"
        if old is None or kind == "add":
            WRITERS[ending](new, make_rows(chance, chance.choice([1, 5, 80])))
        elif kind == "change":
            WRITERS[ending](old, make_rows(chance, chance.choice([1, 5, 80])))
        elif kind == "remove" and len(files) > 1:
            old.unlink()
        elif kind == "rename":
            old.rename(new)
        elif kind == "touch":
            old.touch()


def attempt(home: Home) -> Snapshot | str:
    """Return the snapshot, or why there is none."""
    try:
        return home.ingest()
    except InputError as error:
        return str(error).replace(str(home.installation.home), "")


def run_history(folder: Path, ending: str, seed: int, steps: int = 6) -> None:
    """Ingest a changing source in two homes, and compare what they have after each step."""
    chance = random.Random(seed)
    (folder / "in").mkdir(parents=True)
    WRITERS[ending](folder / "in" / f"000.{ending}", make_rows(chance, 60))
    key = ["id"] if seed % 2 else []
    homes = [Home(folder / "in", mode, f"*.{ending}", *key) for mode in ("auto", "full")]
    for _ in range(steps):
        one, other = map(attempt, homes)
        if isinstance(one, Snapshot) and isinstance(other, Snapshot):
            require_same(one, other)
        else:  # too few rows are left
            assert one == other
        change_files(folder / "in", ending, chance)


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_files_ends_as_a_full_reading(
    tmp_path: Path, ending: str, seed: int
) -> None:
    run_history(tmp_path, ending, seed)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home whose source has two files of 80 rows, and the snapshot of them."""
    folder = tmp_path / "in"
    folder.mkdir()
    chance = random.Random(0)
    for name in ("a", "b"):
        write_csv(folder / f"{name}.csv", make_rows(chance, 80))
    made = Home(folder, "auto", "*.csv")
    assert made.ingest().created
    assert made.rows_read == 160
    return made


def test_only_a_new_file_is_read(home: Home) -> None:
    write_csv(home.pipeline.folder / "c.csv", make_rows(random.Random(1), 7))
    assert home.ingest().version == 1
    assert home.rows_read == 7


def test_nothing_is_read_if_nothing_changed(home: Home) -> None:
    assert not home.ingest().created
    assert home.rows_read == 0


def test_a_file_that_was_only_touched_is_not_read(home: Home) -> None:
    (home.pipeline.folder / "b.csv").touch()
    assert not home.ingest().created
    assert home.rows_read == 0


@pytest.fixture
def four_files(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home, with four files in its snapshot that are small beside the usual limits."""
    monkeypatch.undo()
    for name in ("c", "d"):
        write_csv(home.pipeline.folder / f"{name}.csv", make_rows(random.Random(5), 80))
    other = Home(home.pipeline.folder, "auto", "*.csv")
    other.installation = Installation(
        home.installation.home / "other", "", str(home.installation.home / "other" / "tables")
    )
    assert str(other.ingest().files_read) == "read all 4 files: the first ingestion"
    return other


@pytest.mark.parametrize(
    ("changed", "removed", "touched", "words"),
    [
        ("b", "", "", "read 1 of 4 files (1 changed); 3 as before"),
        ("", "c", "b", "read 0 of 3 files; 3 as before, 1 removed"),
        ("d", "b", "a", "read 1 of 3 files (1 changed); 2 as before, 1 removed"),
        ("e", "", "", "read 1 of 5 files (1 new); 4 as before"),
        ("", "", "d", "read 0 of 4 files; 4 as before"),
        ("a", "", "", "read 1 of 4 files (1 changed); 3 as before"),
        ("0", "", "", "read 1 of 5 files (1 new); 4 as before"),
        ("", "a", "", "read 0 of 3 files; 3 as before, 1 removed"),
    ],
)  # fmt: skip
def test_small_files_are_read_one_by_one(
    four_files: Home, changed: str, removed: str, touched: str, words: str
) -> None:
    folder = four_files.pipeline.folder
    if changed:
        write_csv(folder / f"{changed}.csv", make_rows(random.Random(7), 30))
    if removed:
        (folder / f"{removed}.csv").unlink()
    if touched:
        (folder / f"{touched}.csv").touch()
    made = four_files.ingest()
    assert str(made.files_read) == words
    require_same(made, Home(folder, "full", "*.csv").ingest())


def add_column(folder: Path, name: str, ending: str, column: str) -> None:
    """Write a file whose rows have one more column."""
    rows = pa.Table.from_pylist(make_rows(random.Random(9), 30), SCHEMA)
    table = rows.append_column(column, pa.array([float(n) for n in range(30)]))
    path = folder / f"{name}.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    elif ending == "csv":
        csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("ending", WRITERS)
def test_the_columns_are_those_of_a_full_reading(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        WRITERS[ending](folder / f"{name}.{ending}", make_rows(random.Random(3), 30))
    homes = [Home(folder, mode, f"*.{ending}") for mode in ("auto", "full")]
    for name in ("a", "b", ""):  # at last only files with the new column are left
        one, other = (home.ingest() for home in homes)
        require_same(one, other)
        add_column(folder, f"c{name}", ending, "z")
        one, other = (home.ingest() for home in homes)
        require_same(one, other)
        if name:
            (folder / f"{name}.{ending}").unlink()
    assert "z" in one.schema.features


def test_columns_that_changed_are_named(home: Home) -> None:
    add_column(home.pipeline.folder, "0", "csv", "z")
    words = "the first rows say which columns there are, and have changed: z is new"
    assert str(home.ingest().files_read) == f"read all 3 files: {words}"


def test_an_appended_delta_table_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST_SMALL", 32)
    source = str(tmp_path / "source")
    home = Home(tmp_path / "in", "auto", source)
    for night in range(12):
        rows = pa.Table.from_pylist(make_rows(random.Random(night), 30), SCHEMA)
        write_deltalake(source, rows, mode="append")
        made = home.ingest()
        assert (home.rows_read, made.rows + made.quarantined) == (30, 30 * (night + 1))


def test_a_file_beside_the_first_one_does_not_read_all(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (home.pipeline.folder / "a.csv").stat().st_size
    monkeypatch.setattr(parts, "LARGE_BYTES", int(3.5 * size))
    monkeypatch.setattr(parts, "SMALL_PARTS", 1)
    for name in ("c", "d", "e", "f", "g"):
        write_csv(home.pipeline.folder / f"{name}.csv", make_rows(random.Random(5), 80))
    (home.pipeline.folder / "a.csv").write_text("id,x,c,y\n1,2,p,no\n")
    home.pipeline = with_dataset(home.pipeline, mode="full")
    home.ingest()
    home.pipeline = with_dataset(home.pipeline, mode="auto")
    write_csv(home.pipeline.folder / "b.csv", make_rows(random.Random(6), 80))
    made = home.ingest()
    beside = "unchanged beside them"
    assert str(made.files_read) == f"read 5 of 7 files (1 changed, 4 {beside}); 2 as before"
    require_same(made, Home(home.pipeline.folder, "full", "*.csv").ingest())


def test_files_that_an_earlier_version_read_together_come_apart(
    four_files: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = four_files.pipeline.folder
    monkeypatch.setattr(parts, "SMALL_PARTS", 1)
    four_files.pipeline = with_dataset(four_files.pipeline, mode="full")
    write_csv(folder / "a.csv", make_rows(random.Random(8), 80))
    four_files.ingest()
    four_files.pipeline = with_dataset(four_files.pipeline, mode="auto")
    monkeypatch.undo()
    beside = "unchanged beside them"
    for seed, words in enumerate(
        [f"read 4 of 4 files (1 changed, 3 {beside}); 0 as before",
         "read 1 of 4 files (1 changed); 3 as before"]
    ):  # fmt: skip
        write_csv(folder / "b.csv", make_rows(random.Random(seed), 80))
        assert str(four_files.ingest().files_read) == words


def test_a_snapshot_that_another_run_made_says_no_files(home: Home) -> None:
    assert snapshots.open_snapshot(home.installation, "t").files_read is None


def test_the_files_of_kept_rows_stay_and_those_of_others_go(home: Home) -> None:
    uri = home.installation.table("datasets", "t")
    before = set(pa.table(DeltaTable(uri).get_add_actions())["path"].to_pylist())
    write_csv(home.pipeline.folder / "b.csv", make_rows(random.Random(1), 90))
    home.ingest()
    after = set(pa.table(DeltaTable(uri).get_add_actions())["path"].to_pylist())
    assert (len(before & after), len(before - after), len(after - before)) == (1, 1, 1)


def test_an_older_snapshot_keeps_its_rows(home: Home) -> None:
    first = snapshots.open_snapshot(home.installation, "t", 0)
    kept = content(first)
    write_csv(home.pipeline.folder / "b.csv", make_rows(random.Random(1), 90))
    home.ingest()
    assert content(snapshots.open_snapshot(home.installation, "t", 0)) == kept


@pytest.mark.parametrize(
    "change",
    [
        {"columns": {"x": {"type": "float", "max": 4.0}, "id": {"type": "int"}}},
        {"features": ["x"]},
        {"mode": "full"},
    ],
)
def test_other_settings_read_all(home: Home, change: dict[str, Any]) -> None:
    home.pipeline = with_dataset(home.pipeline, **change)
    assert home.ingest().files_read.all_because
    assert home.rows_read == 160


@pytest.mark.parametrize("change", [{"split": {"train": 0.5, "validation": 0.3, "test": 0.2}}])
def test_other_shares_read_nothing(home: Home, change: dict[str, Any]) -> None:
    home.pipeline = with_dataset(home.pipeline, **change)
    assert not home.ingest().created
    assert home.rows_read == 0


def test_a_manifest_that_is_gone_reads_all(home: Home) -> None:
    for file in Path(home.installation.table("datasets", "t"), "_parts").iterdir():
        file.unlink()
    write_csv(home.pipeline.folder / "c.csv", make_rows(random.Random(1), 7))
    assert home.ingest().rows > 150
    assert home.rows_read == 167


def test_a_table_that_another_program_rewrote_is_read_again(home: Home) -> None:
    uri = home.installation.table("datasets", "t")
    DeltaTable(uri).optimize.compact()
    write_csv(home.pipeline.folder / "c.csv", make_rows(random.Random(1), 7))
    made = home.ingest()
    assert home.rows_read == 167
    assert made.rows == len(content(made))


def test_rows_of_another_program_are_not_kept(home: Home) -> None:
    uri = home.installation.table("datasets", "t")
    table = DeltaTable(uri)
    write_deltalake(uri, table.to_pyarrow_table().slice(0, 3), mode="append")
    write_csv(home.pipeline.folder / "c.csv", make_rows(random.Random(1), 7))
    made = home.ingest()
    assert home.rows_read == 7
    assert made.rows == len(content(made))


def test_a_new_file_with_too_many_categories_is_refused(home: Home) -> None:
    rows = [{**row, "c": f"c{n}"} for n, row in enumerate(make_rows(random.Random(1), 1100))]
    write_csv(home.pipeline.folder / "c.csv", rows)
    with pytest.raises(InputError, match="more than 1000 different values"):
        home.ingest()
    assert snapshots.open_snapshot(home.installation, "t").version == 0


def test_new_bad_rows_are_added_to_the_quarantine_once(home: Home) -> None:
    bad = [{**row, "x": None} for row in make_rows(random.Random(1), 5)]
    write_csv(home.pipeline.folder / "c.csv", [*bad, *make_rows(random.Random(2), 50)])
    first = home.ingest()
    write_csv(home.pipeline.folder / "d.csv", make_rows(random.Random(3), 1))
    second = home.ingest()
    table = DeltaTable(home.installation.table("quarantine", "t")).to_pyarrow_table()
    assert first.quarantined <= second.quarantined == len(table)
    assert len(set(table["ingest"].to_pylist())) == 3


def test_a_file_that_changes_while_it_is_read_is_told(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home.pipeline.folder / "c.csv"
    write_csv(path, make_rows(random.Random(1), 7))
    read = part_tasks.read_part

    def read_and_change(*arguments: Any) -> Any:
        found = read(*arguments)
        write_csv(path, make_rows(random.Random(2), 9))
        return found

    monkeypatch.setattr(part_tasks, "read_part", read_and_change)
    with pytest.raises(Exception, match="changed while it was read"):
        home.ingest()
    assert snapshots.open_snapshot(home.installation, "t").version == 0


def test_only_new_files_of_a_delta_table_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    chance, uri = random.Random(0), str(folder / "rows")
    write_deltalake(uri, pa.Table.from_pylist(make_rows(chance, 80), SCHEMA), partition_by=["c"])
    home = Home(folder, "auto", "rows")
    assert home.ingest().rows > 50
    write_deltalake(uri, pa.Table.from_pylist(make_rows(chance, 30), SCHEMA), mode="append")
    made = home.ingest()
    full = Home(folder, "full", "rows").ingest()
    assert (made.digest, made.rows) == (full.digest, full.rows)
    assert home.rows_read in (30, 110)  # all of it, if a new file comes first by its name


def keyed(path: Path, ids: list[int]) -> None:
    rows = make_rows(random.Random(len(ids)), len(ids))
    write_csv(path, [{**row, "x": 1.5, "id": n} for row, n in zip(rows, ids, strict=True)])


@pytest.fixture
def keyed_home(tmp_path: Path) -> Home:
    """A home with the key `id`, and the snapshot of rows 100 to 199, of which one came twice."""
    folder = tmp_path / "in"
    folder.mkdir()
    keyed(folder / "a.csv", [*range(100, 200), 150])
    made = Home(folder, "auto", "*.csv", "id")
    assert made.ingest().repeated_keys == 1
    return made


@pytest.mark.parametrize(
    ("ids", "repeated"),
    [
        (list(range(200, 300)), 1),
        ([*range(200, 300), 200, 201], 3),
        (list(range(150, 250)), 51),
        ([100, 100, 100], 4),
        ([1, 999], 1),
    ],
)
def test_repeated_keys_of_new_rows_are_added(
    keyed_home: Home, ids: list[int], repeated: int
) -> None:
    keyed(keyed_home.pipeline.folder / "b.csv", ids)
    assert keyed_home.ingest().repeated_keys == repeated
    assert keyed_home.rows_read == len(ids)
    keyed_home.rows_read = 0
    assert keyed_home.ingest().repeated_keys == repeated
    (keyed_home.pipeline.folder / "b.csv").unlink()
    assert keyed_home.ingest().repeated_keys == 1


def test_a_new_file_without_a_good_row_repeats_no_key(keyed_home: Home) -> None:
    bad = keyed_home.pipeline.folder / "b.csv"
    bad.write_text(",".join(SCHEMA.names) + "\n" + "none,?,,\n" * 3)
    found = keyed_home.ingest()
    assert (found.repeated_keys, found.quarantined) == (1, 3)


def test_a_new_file_of_bad_rows_ends_with_the_error_of_the_quarantine(keyed_home: Home) -> None:
    bad = keyed_home.pipeline.folder / "b.csv"
    bad.write_text(",".join(SCHEMA.names) + "\n" + "none,?,,\n" * 3000)
    with pytest.raises(InputError, match="3,000 of the 3,101 rows .* are bad"):
        keyed_home.ingest()


def test_keys_that_grow_are_not_read_again(
    keyed_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    hash_texts = repeated_keys.hash_texts

    def counted(keys: pa.Array) -> Any:
        seen.append(len(keys))
        return hash_texts(keys)

    monkeypatch.setattr(repeated_keys, "hash_texts", counted)
    keyed(keyed_home.pipeline.folder / "b.csv", list(range(200, 300)))
    keyed_home.ingest()
    assert sum(seen) == 0
    keyed(keyed_home.pipeline.folder / "c.csv", [150])
    assert keyed_home.ingest().repeated_keys == 2
    assert sum(seen) == 2  # the rows with the key 150


def test_a_snapshot_that_did_not_count_is_counted_anew(
    keyed_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest_snapshot = module.newest_snapshot

    def of_an_earlier_version(*arguments: Any) -> Snapshot | None:
        found = newest_snapshot(*arguments)
        return replace(found, repeated_keys=None) if found else None

    monkeypatch.setattr(module, "newest_snapshot", of_an_earlier_version)
    keyed(keyed_home.pipeline.folder / "b.csv", [1, 2, 2])
    assert keyed_home.ingest().repeated_keys == 2


def test_rows_without_a_key_are_not_counted(home: Home) -> None:
    assert home.ingest().repeated_keys is None


@pytest.fixture
def three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a snapshot of three files, each of which is a part."""
    monkeypatch.setattr(parts, "MOST_SMALL", 32)
    monkeypatch.setattr(parts, "SMALL_PARTS", 16)
    source = tmp_path / "source"
    source.mkdir()
    chance = random.Random(3)
    for name in "abd":
        write_csv(source / f"{name}.csv", make_rows(chance, 60))
    home = Home(source, "auto", "*.csv")
    home.ingest()
    return home


def test_a_renamed_file_is_read_once(three_files: Home) -> None:
    source = Path(three_files.pipeline.folder)
    (source / "b.csv").rename(source / "c.csv")
    again = three_files.ingest()
    assert (again.created, three_files.rows_read) == (False, 60)
    before = sorted(DeltaTable(again.uri).file_uris())
    three_files.ingest()
    assert three_files.rows_read == 0
    # A later snapshot keeps its rows, and loses them with it.
    write_csv(source / "e.csv", make_rows(random.Random(4), 50))
    grown = three_files.ingest()
    assert three_files.rows_read == 50
    assert set(before) < set(DeltaTable(grown.uri).file_uris())
    paths = [file["path"] for file in read_manifest(grown)["files"]]
    assert sum(path.endswith("c.csv") for path in paths) == 1
    (source / "c.csv").unlink()
    shrunk = three_files.ingest()
    assert three_files.rows_read == 0
    full = Home(source, "full", "*.csv").ingest()
    assert (shrunk.digest, shrunk.rows) == (full.digest, full.rows)
    assert content(shrunk) == content(full)


def test_a_file_with_bad_rows_only_is_read_once(three_files: Home) -> None:
    source = Path(three_files.pipeline.folder)
    (source / "z.csv").write_text("id,x,c,y\n1,,p,no\n")
    first = three_files.ingest()
    assert (first.created, three_files.rows_read) == (False, 1)
    second = three_files.ingest()
    assert three_files.rows_read == 0
    assert second.quarantined == first.quarantined
    (source / "z.csv").unlink()
    assert three_files.ingest().quarantined == first.quarantined - 1


def test_what_an_unchanged_reading_found_outlives_clean(three_files: Home) -> None:
    source = Path(three_files.pipeline.folder)
    (source / "b.csv").rename(source / "c.csv")
    uri = three_files.ingest().uri
    remove_snapshots(uri, (), datetime.now(UTC) + timedelta(days=1), dry_run=False)
    three_files.ingest()
    assert three_files.rows_read == 0
