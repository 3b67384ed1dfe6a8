import gzip
import hashlib
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.errors import InputError
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.fingerprint import digest_of_json
from millrace.serving.batch.input.find_input import InputPaths, find_paths, open_input
from millrace.serving.batch.row_job import RowJob

JOB = RowJob("m", 7, "digest", Path(), Encoding((Feature("a", "number"),), "t"), ("id",))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows.csv", "csv"),
        ("rows.csv.gz", "csv"),
        ("rows.CSV", "csv"),
        ("rows.tsv", "csv"),
        ("rows.csv.zst", "csv"),
        ("rows.jsonl", "jsonl"),
        ("rows.ndjson", "jsonl"),
        ("rows.json", "jsonl"),
        ("rows.json.bz2", "jsonl"),
        ("rows.parquet", "parquet"),
        ("rows.pq", "parquet"),
    ],
)
def test_a_file_is_read_by_its_ending(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("a\n1\n")
    assert find_paths(str(tmp_path / name)) == InputPaths(kind, (str(tmp_path / name),))


def test_a_glob_opens_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("a\n1\n")
    paths = (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert find_paths(str(tmp_path / "*.csv")) == InputPaths("csv", paths)


def test_a_glob_may_start_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert find_paths("*.csv") == InputPaths("csv", (str(tmp_path / "a.csv"),))


def test_a_folder_is_read_by_the_ending_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    assert find_paths(str(tmp_path)) == InputPaths("parquet", (str(tmp_path),))


def test_a_delta_table_is_read_by_the_files_of_its_newest_version(tmp_path: Path) -> None:
    for value in (1, 2):
        deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"a": [value]}), mode="overwrite")
    newest = deltalake.DeltaTable(str(tmp_path / "t")).file_uris()
    assert len(newest) == 1
    found = find_paths(str(tmp_path / "t"))
    assert (found.format, found.paths) == ("parquet", tuple(newest))


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})
    deltalake.write_deltalake(str(tmp_path / "t"), empty)
    with pytest.raises(InputError, match=r"the table .*/t has no rows"):
        find_paths(str(tmp_path / "t"))


def test_a_glob_without_an_ending_goes_by_what_it_matches(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv.gz", "notes.txt"):
        (tmp_path / name).write_text("a\n1\n")
    paths = (str(tmp_path / "a.csv"), str(tmp_path / "b.csv.gz"))
    assert find_paths(str(tmp_path / "*")) == InputPaths("csv", paths)


def test_a_glob_may_match_folders(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "part.parquet").write_bytes(b"PAR1")
    paths = (str(tmp_path / "monday"), str(tmp_path / "tuesday"))
    assert find_paths(str(tmp_path / "*day")) == InputPaths("parquet", paths)


@pytest.mark.parametrize("source", ["*", ""])
def test_files_of_several_formats_are_told(tmp_path: Path, source: str) -> None:
    for name in ("a.csv", "b.jsonl"):
        (tmp_path / name).write_text("1\n")
    with pytest.raises(InputError, match="is not known") as caught:
        find_paths(f"{tmp_path}/{source}")
    assert "seen: csv, jsonl" in str(caught.value)


def test_a_uri_goes_by_its_ending() -> None:
    assert find_paths("http://nowhere/rows.csv") == InputPaths("csv", ("http://nowhere/rows.csv",))


@pytest.mark.parametrize("name", ["rows.csv", "rows", "*.csv", "folder/rows.parquet"])
def test_an_input_that_is_not_there_is_told_with_its_whole_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="does not exist") as caught:
        open_input(str(tmp_path / name), JOB)
    assert str(tmp_path / name) in str(caught.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(InputError, match=r"rows\.csv is empty"):
        open_input(str(tmp_path / "rows.csv"), JOB)


def test_an_empty_file_among_others_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(InputError, match=r"b\.csv is empty"):
        open_input(str(tmp_path / "*.csv"), JOB)


def test_an_unknown_ending_is_told_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"the format of .*rows\.txt is not known") as caught:
        open_input(str(tmp_path / "rows.txt"), JOB)
    assert "seen: .txt" in str(caught.value)
    assert ".parquet, .pq, .csv, .tsv, .jsonl" in str(caught.value)


def test_a_folder_without_rows_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not known"):
        open_input(str(tmp_path), JOB)


@pytest.mark.parametrize("name", ["part.csv", "deeper/part.csv"])
def test_an_empty_file_in_a_folder_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text("a,id\n1,1\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=rf"{name} is empty"):
        open_input(str(tmp_path), JOB)


@pytest.mark.parametrize(
    ("name", "text"), [("r.csv", "id,b\n1,2\n"), ("r.jsonl", '{"id": 1, "b": 2}\n')]
)
def test_a_column_that_is_not_there_is_told(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="lacks columns") as caught:
        open_input(str(tmp_path / name), JOB)
    assert "seen: missing a; there are id, b" in str(caught.value)


def test_a_key_column_that_is_not_there_is_told_unless_the_rows_have_keys(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match="lacks columns") as caught:
        open_input(str(tmp_path / "r.csv"), JOB)
    assert "seen: missing id; there are a" in str(caught.value)


def test_json_without_a_row_is_told(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[1, 2]\n")
    with pytest.raises(InputError, match="has no rows") as caught:
        open_input(str(tmp_path / "r.json"), JOB)
    assert "valid: one JSON object to a line" in str(caught.value)


def test_a_file_that_is_not_what_its_ending_says_is_told(tmp_path: Path) -> None:
    (tmp_path / "r.csv.gz").write_text("a,id\n1,1\n")
    with pytest.raises(InputError, match="cannot be read"):
        open_input(str(tmp_path / "r.csv.gz"), JOB)


def test_a_uri_that_nothing_can_open_is_told() -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        open_input("nowhere://rows.csv", JOB)


def test_the_row_groups_of_a_piece_are_read_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's place is counted while they are read; as a set, 6, 7 and 8 are 8, 6 and 7."""
    monkeypatch.setattr("millrace.serving.batch.input.input_pieces.PIECE_ROWS", 6)
    rows = {"id": range(40), "a": [1.0] * 40}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet", row_group_size=2)
    read = {
        piece.row: [
            cell for chunk in piece.chunks(("id",)) for cell in chunk.rows["id"].to_pylist()
        ]
        for piece in open_input(str(tmp_path / "r.parquet"), JOB).pieces
    }
    assert read == {first: list(range(first, min(first + 6, 40))) for first in range(0, 40, 6)}


def test_rows_of_text_are_told_by_its_lines_unless_it_is_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,id\n" + "1,1\n" * 1000)
    (tmp_path / "b.csv").write_text("a,id\n" + "1,1\n" * 10)
    found = open_input(str(tmp_path), JOB)
    assert found.rows is None
    assert found.about_rows() == 1010, "a head is no row"
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a,id\n1,1\n"))
    assert open_input(str(tmp_path / "c.csv.gz"), JOB).about_rows() is None


def test_files_are_told_by_their_number_and_one_digest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,id\n1,1\n")
    (tmp_path / "b.csv").write_text("a,id\n2,2\n")
    found = open_input(str(tmp_path), JOB)
    assert found.words == f"{tmp_path}, 2 files, digest {digest_of_json(found.manifest)}"
    alone = hashlib.sha256((tmp_path / "a.csv").read_bytes()).hexdigest()
    one = open_input(str(tmp_path / "a.csv"), JOB)
    assert one.words == f"{tmp_path}/a.csv, sha256 {alone}", "as sha256sum says it"
    (tmp_path / "b.csv").write_text("a,id\n3,3\n")
    assert open_input(str(tmp_path), JOB).words != found.words
