import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from millrace.models.data.erase_bad_rows import by_dead_letter, by_stored_row, split_key
from millrace.models.data.erase_rows import erase_in_newest
from millrace.models.data.erasure import DRAFT, Erasure, pad
from millrace.models.data.row_checks import as_json
from millrace.models.data.schema import Column
from millrace.models.data.scrub_files import find_files, scrub_files

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
    done = erase_in_newest(uri, KEYS)
    assert (done.rows, done.keys) == (2, {"k7", "k4000"})
    assert DeltaTable(uri).version() == 1
    assert keys_of(uri) == {f"k{n}" for n in range(ROWS)} - {"k7", "k4000"}
    assert erase_in_newest(uri, KEYS).rows == 0
    assert DeltaTable(uri).version() == 1


def test_earlier_versions_lose_the_rows_and_are_read_as_before(uri: str) -> None:
    opened = DeltaTable(uri)  # a reader that has looked at the log already
    erase_in_newest(uri, KEYS)
    assert len(find_files(uri, KEYS).files) == 2
    assert scrub_files(uri, KEYS).files == 2
    assert find_files(uri, KEYS).files == {}
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
    assert erase_in_newest(uri, every).rows == ROWS // 2
    assert len(DeltaTable(uri).file_uris()) == 1
    scrub_files(uri, every)
    assert DeltaTable(uri, version=0).to_pyarrow_table().num_rows == ROWS // 2


def test_files_of_a_busy_job_stay_as_they_are(uri: str) -> None:
    assert erase_in_newest(uri, KEYS, "date=2026-01-02/").rows == 1
    for name in ("a.parquet", "b.parquet.draft-1234"):
        Path(uri, "date=2026-01-01", name).write_bytes(b"PAR1 and no footer")
    done = scrub_files(uri, KEYS, lambda: ["date=2026-01-01/"])
    assert (done.files, done.failed) == (1, ())
    assert "k7" in keys_of(uri)
    assert "k4000" not in keys_of(uri)
    assert len([*Path(uri, "date=2026-01-01").iterdir()]) == 3


def test_statistics_of_clean_files_name_no_keys(uri: str) -> None:
    erase_in_newest(uri, KEYS)
    newest = Path(uri, "_delta_log", "00000000000000000001.json").read_text()
    assert '\\"x\\"' in newest
    assert '\\"_key\\": \\"\\"' in newest


@pytest.mark.parametrize(
    "name",
    ["a.parquet", "a.parquet.draft-0123abcd", "a.parquet.0123abcd", "a.parquet#1", f"a{DRAFT}"],
)
def test_what_a_killed_command_left_half_written_is_deleted(uri: str, name: str) -> None:
    left = Path(uri, "date=2026-01-01", name)
    left.write_bytes(b"PAR1 k7 and no footer")
    done = scrub_files(uri, KEYS)
    assert (done.files, done.failed) == (2, ())
    assert not left.exists()
    assert len(DeltaTable(uri).to_pyarrow_table()) == ROWS - 2


def test_what_a_job_writes_that_began_meanwhile_is_not_deleted(uri: str) -> None:
    folder = Path(uri, "date=2026-01-01")
    left = [folder / name for name in ("a.parquet", "b.parquet.draft-1234")]
    for file in left:
        file.write_bytes(b"PAR1 and no footer")
    busy = iter([[], ["date=2026-01-01/"]])
    assert scrub_files(uri, KEYS, lambda: next(busy)).failed == ()
    assert all(file.exists() for file in left)


def test_a_file_that_is_finished_meanwhile_is_not_deleted(uri: str) -> None:
    file = Path(uri, "date=2026-01-01", "a.parquet")
    file.write_bytes(b"PAR1 and no footer")
    looks = iter([lambda: None, lambda: pq.write_table(table_of(3), file)])

    def end_job() -> list[str]:
        next(looks)()
        return []

    assert scrub_files(uri, KEYS, end_job).failed == ()
    assert pq.read_table(file, partitioning=None).num_rows == 3


def test_a_file_of_a_version_is_no_draft_whatever_its_name(uri: str) -> None:
    first = next(Path(uri).rglob("*.parquet"))
    name = str(first.relative_to(uri)).replace(".parquet", DRAFT)
    first.rename(Path(uri, name))
    for entry in Path(uri, "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(str(first.relative_to(uri)), name))
    scrub_files(uri, KEYS)
    assert len(DeltaTable(uri).to_pyarrow_table()) == ROWS - 2


def test_a_damaged_file_of_a_version_is_named_and_holds_up_no_other(uri: str) -> None:
    first, second = sorted(Path(uri).rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-100])
    assert erase_in_newest(uri, KEYS).rows == 1
    done = scrub_files(uri, KEYS)
    assert done.files == 1
    assert done.failed == (f"{uri}/{first.relative_to(uri)}: the file cannot be read",)
    assert first.exists()
    assert KEYS.search(LOCAL, str(second)) == {}


def test_a_file_that_cannot_become_smaller_holds_up_no_other(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(str(path) for path in Path(uri).rglob("*.parquet"))
    copy = Erasure.copy

    def grow(own: Erasure, files: fs.FileSystem, path: str, **options: Any) -> tuple[bytes, int]:
        content, left = copy(own, files, path, **options)
        return content + (bytes(ROWS * 100) if path == first else b""), left

    monkeypatch.setattr(Erasure, "copy", grow)
    done = scrub_files(uri, KEYS)
    assert (done.files, len(done.failed)) == (1, 1)
    assert "larger than the file with them" in done.failed[0]
    assert not KEYS.search(LOCAL, second)


def test_a_draft_goes_if_its_file_cannot_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(table_of(), file)

    class Files:
        """A file system whose moves fail."""

        def move(self, *_: str) -> None:
            raise OSError("no space")

        def __getattr__(self, name: str) -> object:
            return getattr(LOCAL, name)

    with pytest.raises(OSError, match="no space"):
        KEYS.scrub(Files(), str(file), f"{tmp_path}/")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


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
    KEYS.scrub(LOCAL, str(file), f"{tmp_path}/")
    assert file.stat().st_size == size
    assert pq.read_table(file).num_rows == ROWS - 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


UNKNOWN = {"id": None, "kind": None}


def matched(erasure: Erasure, rows: list[str | None]) -> list[str | None]:
    """Return the key for which each bad row is erased."""
    found = erasure.match(pa.table({"row": pa.array(rows, pa.string())}))
    return list(found.to_pylist())


def test_bad_rows_are_found_by_their_key_columns() -> None:
    key = "5|a\\|b"
    rows = [
        '{"id": 5, "kind": "a|b", "x": "bad"}',
        '{"id": 5, "kind": "a", "x": "bad"}',
        '{"id": null, "kind": "a|b"}',
        '{"line": "5,a|b,oops"}',
        '{"line": "15,a|b,oops"}',
        "no json",
        None,
    ]
    found = matched(by_stored_row([key], UNKNOWN), rows)
    assert found == [key, None, None, key, None, None, None]


@pytest.mark.parametrize("column", [Column("id", "int"), None])
@pytest.mark.parametrize("value", ["7", '"7"', '"007"', '" 7"', "7.0", '"7.0"'])
def test_a_value_is_cast_as_an_ingestion_casts_it(column: Column | None, value: str) -> None:
    erasure = by_stored_row(["7"], {"id": column})
    assert matched(erasure, [f'{{"id": {value}}}', '{"id": 70}']) == ["7", None]


def test_text_is_not_cast() -> None:
    rows = ['{"id": "007"}', '{"id": "7"}']
    assert matched(by_stored_row(["007"], {"id": Column("id", "string")}), rows) == ["007", None]
    assert matched(by_stored_row(["7"], {"id": Column("id", "string")}), rows) == [None, "7"]
    assert matched(by_stored_row(["007"], {"id": None}), rows) == ["007", None]


@pytest.mark.parametrize("key", ["", "|", "5|"])
def test_an_empty_value_is_in_no_line(key: str) -> None:
    rows = ['{"line": "5,,oops"}', '{"line": ""}']
    assert matched(by_stored_row([key], UNKNOWN), rows) == [None, None]


def test_the_key_of_one_column_is_not_split() -> None:
    rows = ['{"id": "a|b"}', '{"line": "a|b;x"}', '{"line": "a;b"}']
    assert matched(by_stored_row(["a|b"], {"id": None}), rows) == ["a|b", "a|b", None]


@pytest.mark.parametrize("customers", [5, 5_000])
def test_a_key_inside_a_record_of_many_lines_is_found(customers: int) -> None:
    record = "".join(f'C{n:06d},{n},"Rome"\n' for n in range(customers))
    rows = [as_json({"line": record})]
    for n in (0, 1, 4):
        key = f"C{n:06d}"
        assert matched(by_stored_row([key], {"id": None}), rows) == [key]
    assert matched(by_stored_row(["nC000001"], {"id": None}), rows) == [None]


def test_a_cut_row_is_searched_by_words() -> None:
    rows = [as_json({"id": "C:\\n1\u0001\\", "x": 30_000 * "a"})]
    assert matched(by_stored_row(["C:\\n1"], {"id": None}), rows) == ["C:\\n1"]
    assert matched(by_stored_row(["1"], {"id": None}), rows) == [None]


@pytest.mark.parametrize("key", ["DOMAIN\\\\user", "a|b"])
def test_a_key_of_one_column_is_searched_as_it_is(key: str) -> None:
    rows = [as_json({"line": f"{key},1,2"}), as_json({"line": "a,b,DOMAINuser"})]
    assert matched(by_stored_row([key], {"id": None}), rows) == [key, None]


def test_without_key_columns_only_unreadable_lines_are_found() -> None:
    assert matched(by_stored_row(["7"], {}), ['{"id": 7}', '{"line": "7;x"}']) == [None, "7"]


def test_dead_letters_are_found_by_key_or_by_row() -> None:
    erasure = by_dead_letter(["7"], {"id": None})
    rows = pa.table({"_key": ["7", None, "8"], "row": ['{"x": 1}', '{"id": 7}', '{"id": 8}']})
    assert erasure.match(rows).to_pylist() == ["7", "7", None]


@pytest.mark.parametrize(
    "keys", [pa.nulls(2), pa.array([None, "7"], pa.large_string()), pa.array([None, 7])]
)
def test_keys_of_any_type_are_searched(tmp_path: Path, keys: pa.Array) -> None:
    pq.write_table(pa.table({"_key": keys, "row": [None, '{"id": 7}']}), tmp_path / "a.parquet")
    erasure = by_dead_letter(["7"], {"id": None})
    assert erasure.search(LOCAL, str(tmp_path / "a.parquet")) == {"7": 1}


def test_statistics_name_no_bad_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "quarantine")
    rows = ['{"id": 7}', '{"id": "customer-8"}']
    write_deltalake(
        uri, pa.table({"row": rows}), configuration={"delta.dataSkippingNumIndexedCols": "0"}
    )
    assert erase_in_newest(uri, by_stored_row(["7"], {"id": None})).rows == 1
    assert "customer-8" not in Path(uri, "_delta_log", "00000000000000000001.json").read_text()


@pytest.mark.parametrize(
    ("key", "parts"),
    [("a", ["a"]), ("a|b", ["a", "b"]), ("a\\|b|c\\\\", ["a|b", "c\\"]), ("|", ["", ""])],
)
def test_a_key_is_split_into_the_values_of_its_columns(key: str, parts: list[str]) -> None:
    assert split_key(key, 2) == parts


def test_a_number_with_a_point_is_the_key_that_arrow_writes() -> None:
    rows = [json.dumps({"id": value}) for value in (7.0, 7.5, "7.0")]
    keys = by_stored_row(["7", "7.5", "7.0"], {"id": Column("id", "string")})
    assert matched(keys, rows) == ["7", "7.5", "7.0"]


@pytest.mark.parametrize(
    ("key", "line", "is_found"),
    [
        ("a b", "1,a b,2", True),
        ("a b", "1,a  b,2", False),
        ("(x", "y;(x;z", True),
        ("@@", "1,@@,2", True),
        ("k1", "k10,k-1,k1.", False),
        ("k1", "k10;k1", True),
        ("Zoë", "1|Zoë|", True),
    ],
)
def test_a_line_has_a_key_among_many_if_it_stands_there_as_a_word(
    key: str, line: str, is_found: bool
) -> None:
    erasure = by_stored_row([key, *(f"other{n}" for n in range(1000))], {"id": None})
    rows = [json.dumps({"line": line})]
    assert matched(erasure, rows) == [key if is_found else None]


def test_a_key_of_bytes_is_stored_as_the_text_that_good_rows_have() -> None:
    assert as_json({"id": b"ab0", "x": b"\xff"}) == '{"id": "ab0", "x": "\\\\xff"}'
