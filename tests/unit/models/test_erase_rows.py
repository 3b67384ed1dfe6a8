import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from millrace.models.data.erase_bad_rows import by_dead_letter, by_stored_row, split_key
from millrace.models.data.erase_rows import (
    Erasure,
    erase_in_newest,
    find_files,
    pad,
    scrub_files,
)
from millrace.models.data.row_checks import as_json

ROWS = 5_000
KEYS = Erasure.by_value("_key", ["k7", "k4000", "unknown"])
LOCAL = fs.LocalFileSystem()


def table_of(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "_key": [f"k{n}" for n in range(rows)],
            "x": np.random.default_rng(0).random(rows),
            "c": ["ab"[n % 2] for n in range(rows)],
            "date": [f"2026-01-0{1 + 2 * n // rows}" for n in range(rows)],
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "table")
    write_deltalake(uri, table_of(), partition_by=["date"])
    return uri


def keys_of(uri: str, version: int | None = None) -> set[str]:
    return set(DeltaTable(uri, version=version).to_pyarrow_table()["_key"].to_pylist())


def test_rows_are_erased_from_the_newest_version_in_one_commit(uri: str) -> None:
    assert erase_in_newest(uri, KEYS) == 2
    assert DeltaTable(uri).version() == 1
    assert keys_of(uri) == {f"k{n}" for n in range(ROWS)} - {"k7", "k4000"}
    assert erase_in_newest(uri, KEYS) == 0
    assert DeltaTable(uri).version() == 1


def test_earlier_versions_lose_the_rows_and_are_read_as_before(uri: str) -> None:
    opened = DeltaTable(uri)  # a reader that has looked at the log already
    erase_in_newest(uri, KEYS)
    assert len(find_files(uri, KEYS)) == 2
    assert scrub_files(uri, KEYS) == 2
    assert find_files(uri, KEYS) == {}
    assert opened.to_pyarrow_table().num_rows == ROWS - 2
    assert keys_of(uri, 0) == keys_of(uri, 1)
    sizes = pa.table(opened.get_add_actions()).to_pylist()
    for each in sizes:
        assert Path(uri, each["path"]).stat().st_size == each["size_bytes"]


def test_the_bytes_of_the_key_are_in_no_file(uri: str) -> None:
    write_deltalake(
        uri,
        pa.table({"_key": ["secret-4711"], "x": [1.0], "c": ["a"], "date": ["d"]}),
        mode="append",
    )
    erasure = Erasure.by_value("_key", ["secret-4711"])
    erase_in_newest(uri, erasure)
    scrub_files(uri, erasure)
    for file in Path(uri).rglob("*.parquet"):
        assert b"secret-4711" not in file.read_bytes()


def test_a_file_without_rows_left_is_removed_from_the_table(uri: str) -> None:
    every = Erasure.by_value("_key", [f"k{n}" for n in range(ROWS // 2)])
    assert erase_in_newest(uri, every) == ROWS // 2
    assert len(DeltaTable(uri).file_uris()) == 1
    scrub_files(uri, every)
    assert DeltaTable(uri, version=0).to_pyarrow_table().num_rows == ROWS // 2


def test_spared_files_stay_as_they_are(uri: str) -> None:
    assert erase_in_newest(uri, KEYS, ["date=2026-01-01/"]) == 1
    scrub_files(uri, KEYS, ["date=2026-01-01/"])
    assert "k7" in keys_of(uri)
    assert "k4000" not in keys_of(uri)


def test_statistics_of_clean_files_name_no_keys(uri: str) -> None:
    erase_in_newest(uri, KEYS)
    newest = Path(uri, "_delta_log", "00000000000000000001.json").read_text()
    assert '\\"x\\"' in newest
    assert '\\"_key\\": \\"\\"' in newest


def test_a_file_that_is_being_written_is_left_alone(uri: str) -> None:
    Path(uri, "unfinished.parquet").write_bytes(b"PAR1 and no footer")
    assert scrub_files(uri, KEYS) == 2


def test_a_padded_file_has_the_same_rows() -> None:
    sink = io.BytesIO()
    pq.write_table(table_of(100), sink, row_group_size=30)
    content = sink.getvalue()
    padded = pad(content, len(content) + 12_345)
    assert len(padded) == len(content) + 12_345
    assert pq.read_table(pa.BufferReader(padded)) == table_of(100)
    assert pad(content, 10) == content


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_a_scrubbed_file_has_the_same_size(tmp_path: Path, compression: str) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(table_of(), file, compression=compression, row_group_size=700)
    size = file.stat().st_size
    KEYS.scrub(LOCAL, str(file))
    assert file.stat().st_size == size
    assert pq.read_table(file).num_rows == ROWS - 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


def test_bad_rows_are_found_by_their_key_columns() -> None:
    erasure = by_stored_row(["5|a\\|b"], ("id", "kind"))
    rows = [
        '{"id": 5, "kind": "a|b", "x": "bad"}',
        '{"id": 5, "kind": "a", "x": "bad"}',
        '{"id": null, "kind": "a|b"}',
        '{"line": "5,a|b,oops"}',
        '{"line": "15,a|b,oops"}',
        "no json",
        None,
    ]
    found = erasure.find(pa.table({"row": pa.array(rows, pa.string())})).to_pylist()
    assert found == [True, False, False, True, False, False, False]


@pytest.mark.parametrize("customers", [5, 5_000])
def test_a_key_inside_a_record_of_many_lines_is_found(customers: int) -> None:
    record = "".join(f'C{n:06d},{n},"Rome"\n' for n in range(customers))
    rows = pa.table({"row": [as_json({"line": record})]})
    for n in (0, 1, 4):
        assert by_stored_row([f"C{n:06d}"], ("id",)).find(rows).to_pylist() == [True]
    assert by_stored_row(["nC000001"], ("id",)).find(rows).to_pylist() == [False]


def test_a_cut_row_is_searched_by_words() -> None:
    rows = pa.table({"row": [as_json({"id": "C:\\n1\u0001\\", "x": 30_000 * "a"})]})
    assert by_stored_row(["C:\\n1"], ("id",)).find(rows).to_pylist() == [True]
    assert by_stored_row(["1"], ("id",)).find(rows).to_pylist() == [False]


@pytest.mark.parametrize("key", ["DOMAIN\\\\user", "a|b"])
def test_a_key_of_one_column_is_searched_as_it_is(key: str) -> None:
    rows = pa.table({"row": [as_json({"line": f"{key},1,2"}), as_json({"line": "a,b,DOMAINuser"})]})
    assert by_stored_row([key], ("id",)).find(rows).to_pylist() == [True, False]


def test_without_key_columns_only_unreadable_lines_are_found() -> None:
    erasure = by_stored_row(["7"], ())
    rows = pa.table({"row": ['{"id": 7}', '{"line": "7;x"}']})
    assert erasure.find(rows).to_pylist() == [False, True]


def test_dead_letters_are_found_by_key_or_by_row() -> None:
    erasure = by_dead_letter(["7"], ("id",))
    rows = pa.table({"_key": ["7", None, "8"], "row": ['{"x": 1}', '{"id": 7}', '{"id": 8}']})
    assert erasure.find(rows).to_pylist() == [True, True, False]


@pytest.mark.parametrize(
    ("key", "parts"),
    [("a", ["a"]), ("a|b", ["a", "b"]), ("a\\|b|c\\\\", ["a|b", "c\\"]), ("|", ["", ""])],
)
def test_a_key_is_split_into_the_values_of_its_columns(key: str, parts: list[str]) -> None:
    assert split_key(key) == parts
