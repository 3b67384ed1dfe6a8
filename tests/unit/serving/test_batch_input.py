from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import ray.data

from models.errors import InputError
from serving.batch_input import Resolved, read_rows, resolve

Opened = list[tuple[str, list[str]]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """What was opened by which of Ray's readers, in place of starting Ray to open it."""
    found: Opened = []

    def reader(name: str) -> object:
        def open_paths(paths: str | list[str], **_: object) -> None:
            found.append((name, [paths] if isinstance(paths, str) else list(paths)))

        return open_paths

    for name in ("read_csv", "read_json", "read_parquet"):
        monkeypatch.setattr(ray.data, name, reader(name))
    return found


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("rows.csv", "read_csv"),
        ("rows.csv.gz", "read_csv"),
        ("rows.jsonl", "read_json"),
        ("rows.ndjson", "read_json"),
        ("rows.json", "read_json"),
        ("rows.parquet", "read_parquet"),
    ],
)
def test_a_file_is_read_by_its_ending(
    tmp_path: Path, opened: Opened, name: str, reader: str
) -> None:
    (tmp_path / name).write_text("a\n1\n")
    read_rows(str(tmp_path / name))
    assert opened == [(reader, [str(tmp_path / name)])]


def test_a_named_format_wins_over_the_ending(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "rows.txt").write_text("a\n1\n")
    read_rows(str(tmp_path / "rows.txt"), "csv")
    assert opened == [("read_csv", [str(tmp_path / "rows.txt")])]


def test_a_glob_opens_its_files_in_order(tmp_path: Path, opened: Opened) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("a\n1\n")
    read_rows(str(tmp_path / "*.csv"))
    assert opened == [("read_csv", [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])]


def test_a_glob_may_start_from_the_current_folder(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a\n1\n")
    read_rows("*.csv")
    assert opened == [("read_csv", [str(tmp_path / "a.csv")])]


def test_a_folder_is_read_by_the_ending_of_its_files(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1")
    read_rows(str(tmp_path))
    assert opened == [("read_parquet", [str(tmp_path)])]


def test_a_delta_table_is_read_by_the_files_of_its_newest_version(
    tmp_path: Path, opened: Opened
) -> None:
    for value in (1, 2):
        deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"a": [value]}), mode="overwrite")
    read_rows(str(tmp_path / "t"))
    newest = deltalake.DeltaTable(str(tmp_path / "t")).file_uris()
    assert len(newest) == 1
    assert opened == [("read_parquet", newest)]


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})
    deltalake.write_deltalake(str(tmp_path / "t"), empty)
    with pytest.raises(InputError, match=r"the table .*/t has no rows"):
        resolve(str(tmp_path / "t"))


@pytest.mark.parametrize("made", [True, False])
def test_what_is_named_a_delta_table_and_is_none_is_told(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "t").mkdir()
    with pytest.raises(InputError, match="is not there") as caught:
        resolve(str(tmp_path / "t"), "delta")
    assert str(tmp_path / "t") in str(caught.value)


def test_a_glob_without_an_ending_goes_by_what_it_matches(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv.gz", "notes.txt"):
        (tmp_path / name).write_text("a\n1\n")
    paths = (str(tmp_path / "a.csv"), str(tmp_path / "b.csv.gz"))
    assert resolve(str(tmp_path / "*")) == Resolved("csv", paths)


def test_a_glob_may_match_folders(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "part.parquet").write_bytes(b"PAR1")
    paths = (str(tmp_path / "monday"), str(tmp_path / "tuesday"))
    assert resolve(str(tmp_path / "*day")) == Resolved("parquet", paths)


@pytest.mark.parametrize("source", ["*", ""])
def test_files_of_several_formats_are_told(tmp_path: Path, source: str) -> None:
    for name in ("a.csv", "b.jsonl"):
        (tmp_path / name).write_text("1\n")
    with pytest.raises(InputError, match="is not known") as caught:
        resolve(f"{tmp_path}/{source}")
    assert "seen: csv, jsonl" in str(caught.value)


def test_a_uri_goes_by_its_ending() -> None:
    assert resolve("http://nowhere/rows.csv") == Resolved("csv", ("http://nowhere/rows.csv",))


@pytest.mark.parametrize("name", ["rows.csv", "rows", "*.csv", "folder/rows.parquet"])
def test_an_input_that_is_not_there_is_told_with_its_whole_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not there") as caught:
        read_rows(str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(InputError, match=r"rows\.csv is empty"):
        read_rows(str(tmp_path / "rows.csv"))


def test_an_empty_file_among_others_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(InputError, match=r"b\.csv is empty"):
        read_rows(str(tmp_path / "*.csv"))


def test_an_unknown_ending_is_told_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"the format of .*rows\.txt is not known") as caught:
        read_rows(str(tmp_path / "rows.txt"))
    assert "seen: .txt" in str(caught.value)
    assert ".parquet, .csv, .jsonl" in str(caught.value)


def test_a_folder_without_rows_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not known"):
        read_rows(str(tmp_path))
