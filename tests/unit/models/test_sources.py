import gzip
import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from sklearn.datasets import load_digits

from millrace.models.common.errors import InputError, TransientError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources import arrow_source, csv_source, find_files, jsonl_source
from millrace.models.data.sources.find_files import strip_file_scheme
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.source import CHUNK_BYTES, CHUNK_ROWS

ROWS = pa.table({"a": [1.5, 2.5, 3.5], "b": ["x", "y", None], "target": [0, 1, 0]})


def spec(source: str, **more: Any) -> DatasetSpec:
    return DatasetSpec(source=source, target=more.pop("target", "target"), **more)


def read(source: str, folder: Path, **more: Any) -> list[dict[str, Any]]:
    batches = open_source(spec(source, **more), folder).batches()
    return [row for batch in batches for row in batch.to_pylist()]


def test_parquet_is_read_with_its_types_and_described(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "r.parquet")
    source = open_source(spec("r.parquet"), tmp_path)
    assert source.schema is not None
    assert source.schema.equals(ROWS.schema)
    assert pa.Table.from_batches(source.batches()).equals(ROWS)
    digest = hashlib.sha256((tmp_path / "r.parquet").read_bytes()).hexdigest()
    (file,) = source.describe()["files"]
    assert file["sha256"] == digest
    assert file["size"] == (tmp_path / "r.parquet").stat().st_size


def test_a_large_row_group_is_not_in_memory_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 2_000_000))
    table = pa.table({"target": values[0], **{f"x{n}": values[n] for n in range(1, 5)}})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=len(table), use_dictionary=False)
    size = table.nbytes
    del table
    before, largest, rows = pa.total_allocated_bytes(), 0, 0
    for batch in open_source(spec("r.parquet"), tmp_path).batches():
        rows += batch.num_rows
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert rows == 2_000_000
    assert largest < size / 2


@pytest.mark.parametrize("source", ["r.parquet", "rows:read"])
def test_chunks_of_wide_rows_have_fewer_rows(tmp_path: Path, source: str) -> None:
    row = list(range(2000))
    table = pa.table({"x": [row] * 4000, "target": [0] * 4000})
    pq.write_table(table, tmp_path / "r.parquet", use_dictionary=False)
    (tmp_path / "rows.py").write_text(
        "import pathlib, pyarrow.parquet as pq\n"
        "def read():\n"
        "    yield from pq.read_table(pathlib.Path(__file__).with_name('r.parquet')).to_batches()\n"
    )
    sizes = [batch.nbytes for batch in open_source(spec(source), tmp_path).batches()]
    assert sum(sizes) >= 4000 * 2000 * 8
    assert max(sizes) <= 1.1 * CHUNK_BYTES


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "r.tsv"])
def test_csv_cells_come_as_text(tmp_path: Path, name: str) -> None:
    text = 'a,b,target\n1.5,"x, y",0\n,NA,1\n'
    text = text.replace(", y", "; y").replace(",", "\t") if name == "r.tsv" else text
    data = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    (tmp_path / name).write_bytes(data)
    comma = ";" if name == "r.tsv" else ","
    assert read(name, tmp_path) == [
        {"a": "1.5", "b": f"x{comma} y", "target": "0"},
        {"a": None, "b": "NA", "target": "1"},
    ]


def test_ragged_csv_lines_are_put_aside(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a,target\n1,0\n2\n3,1,9\n4,1\n")
    chunks = list(open_source(spec("r.csv"), tmp_path).chunks())
    assert sum(chunk.rows.num_rows for chunk in chunks) == 2
    unreadable = [line for chunk in chunks for line in chunk.unreadable]
    assert [(line.line, line.reason) for line in unreadable] == [
        ("2", "line has 1 cells, not 2"),
        ("3,1,9", "line has 3 cells, not 2"),
    ]


def test_a_csv_line_is_put_aside_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 64)
    lines = ["ragged" if n % 7 == 3 else f'{n},"over\ntwo lines"' for n in range(200)]
    lines[100] = ""  # no row at all
    (tmp_path / "r.csv").write_text("\n".join(["a,target", *lines, ""]))
    chunks = list(open_source(spec("r.csv"), tmp_path).chunks())
    assert len(chunks) > 20
    del lines[100]
    first = 0
    for chunk in chunks:
        for place, row in zip(chunk.row_positions(), chunk.rows.to_pylist(), strict=True):
            assert lines[first + place].startswith(f"{row['a']},")
        for place in chunk.unreadable_positions():
            assert lines[first + place] == "ragged"
        first += len(chunk)
    assert first == len(lines)


def test_json_lines_keep_text_that_looks_like_a_date(tmp_path: Path) -> None:
    rows = [{"d": "2024-01-01", "v": [1, 2.5], "target": 1}, {"d": "2024-01-02", "target": 0}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read("r.jsonl", tmp_path)[0] == {"d": "2024-01-01", "v": [1.0, 2.5], "target": 1}


def test_bad_json_lines_are_put_aside_and_mixed_types_become_text() -> None:
    chunk = jsonl_source.read_block(b'{"a": 1}\nnot json\n\n{"a": "x"}\n[1]\n')
    assert chunk.rows.to_pylist() == [{"a": "1"}, {"a": "x"}]
    assert [line.line for line in chunk.unreadable] == ["not json", "[1]"]
    assert (chunk.row_positions().tolist(), chunk.unreadable_positions().tolist()) == (
        [0, 2],
        [1, 3],
    )


def test_json_lines_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_source, "BLOCK_BYTES", 100)
    rows = [{"a": number, "target": 0} for number in range(50)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    batches = list(open_source(spec("r.jsonl"), tmp_path).batches())
    assert len(batches) > 5
    assert [row for batch in batches for row in batch.to_pylist()] == rows


def test_a_delta_table_is_read_at_one_version(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS)
    source = open_source(spec("t"), tmp_path)
    write_deltalake(str(tmp_path / "t"), ROWS, mode="append")
    assert sum(batch.num_rows for batch in source.batches()) == 3
    assert source.describe()["version"] == 0


def test_a_glob_reads_files_in_order_and_only_the_used_columns(tmp_path: Path) -> None:
    for number in (2, 1):
        pq.write_table(
            pa.table({"a": [number], "b": [0], "target": [0]}), tmp_path / f"{number}.pq"
        )
    assert read("*.pq", tmp_path, features=("a",)) == [
        {"a": 1, "target": 0},
        {"a": 2, "target": 0},
    ]


def test_a_uri_of_any_fsspec_store_is_read() -> None:
    with fsspec.open("memory://bucket/r.csv", "w") as stream:
        stream.write("a,target\n1,0\n")
    assert read("memory://bucket/*.csv", Path.cwd()) == [{"a": "1", "target": "0"}]


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [("iris", 5, 150), ("wine", 14, 178), ("breast_cancer", 31, 569), ("diabetes", 11, 442)],
)
def test_bundled_sets_have_one_column_per_feature(name: str, columns: int, rows: int) -> None:
    batch = next(open_source(spec(f"sklearn:{name}"), Path()).batches())
    assert (batch.num_columns, batch.num_rows) == (columns, rows)
    assert all(column.replace("_", "").isalnum() for column in batch.schema.names)
    assert batch.schema.field("target").type == (pa.float64() if name == "diabetes" else pa.int64())


def test_digits_are_vectors_of_64() -> None:
    batch = next(open_source(spec("sklearn:digits"), Path()).batches())
    assert batch.schema.field("image").type == pa.list_(pa.float32())
    pixels = np.array(batch.column("image").to_pylist())
    assert pixels.shape == (1797, 64)
    expected = load_digits()
    assert np.array_equal(pixels, expected.data)
    assert np.array_equal(batch.column("target"), expected.target)


def test_the_users_function_is_read_in_slices(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n"
        "def read():\n"
        "    yield pa.record_batch({'a': list(range(100_000)), 'target': [0] * 100_000})\n"
    )
    source = open_source(spec("rows:read"), tmp_path)
    assert [batch.num_rows for batch in source.batches()] == [CHUNK_ROWS, 100_000 - CHUNK_ROWS]
    assert source.describe()["function"] == "rows:read"


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a,target\n1,0\n")
    source = open_source(spec("r.csv"), tmp_path)
    (tmp_path / "r.csv").write_text("a,target\n1,0\n2,0\n")
    with pytest.raises(TransientError, match="changed while it was read"):
        source.describe()


def unreachable(*given: object) -> None:
    raise OSError("\x1b[31mAWS Error\x1b[0m\n  during HeadBucket")


@pytest.mark.parametrize("file_format", ["auto", "delta"])
def test_a_store_that_cannot_be_reached_is_told_with_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    filesystems = SimpleNamespace(FileSystem=SimpleNamespace(from_uri=unreachable))
    monkeypatch.setattr(find_files, "fs", filesystems)
    monkeypatch.setattr(arrow_source, "DeltaTable", unreachable)
    given = spec("s3://u:pw@bucket/r.csv", format=file_format)
    with pytest.raises(TransientError) as caught:
        open_source(given, tmp_path)
    assert caught.value.what == "s3://***@bucket/r.csv cannot be reached"
    assert caught.value.seen == "AWS Error during HeadBucket"
    assert "region and credentials" in (caught.value.hint or "")


def test_extension_types_are_refused(tmp_path: Path) -> None:
    pixels = np.zeros((3, 4), dtype=np.float32)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    pq.write_table(pa.table({"image": tensors, "target": [0, 1, 0]}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match="'image'.*Arrow extension type"):
        list(open_source(spec("r.parquet"), tmp_path).batches())


def prepare(folder: Path) -> None:
    (folder / "train.csv").write_text("a,label\n1,0\n")
    (folder / "empty.csv").write_text("")
    (folder / "bad.parquet").write_text("no")
    (folder / "bad.csv").write_bytes(b"a,target\n\xff\xfe,1\n")
    (folder / "twice.csv").write_text("a,a,target\n1,2,3\n")
    (folder / "notes.txt").write_text("x")
    (folder / "notes.dat").write_text("x")
    (folder / "sub").mkdir()
    (folder / "rows.py").write_text(
        "def broken():\n    raise KeyError('x')\n\ndef dicts():\n    yield {}\n\nnumber = 3\n"
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("trian.csv", ["{folder}/trian.csv", "did you mean 'train.csv'?"]),
        ("nowhere/r.csv", ["the folder {folder}/nowhere does not exist"]),
        ("*.jsonl", ["matches no file", "{folder}/*.jsonl"]),
        ("empty.csv", ["is empty", "{folder}/empty.csv"]),
        ("bad.parquet", ["is not a Parquet file"]),
        ("bad.csv", ["cannot be read as CSV", "UTF-8"]),
        ("twice.csv", ["two columns of the same name"]),
        ("notes.dat", ["cannot be inferred from its ending", "dataset.format"]),
        ("notes.txt", ["dataset.target", "seen: target", "valid: path, text"]),
        ("sub", ["a folder and not a Delta table", "sub/*.parquet"]),
        ("train.csv", ["dataset.target", "seen: target", "valid: a, label"]),
        ("sklearn:digit", ["did you mean 'digits'?", "sklearn:iris"]),
        ("sklearn:fetch_openml", ["not a data set that comes with scikit-learn"]),
        ("rows:broken", ["KeyError", "(rows.py, line 2)"]),
        ("rows:dicts", ["seen: dict", "RecordBatch"]),
        ("rows:number", ["is not a function"]),
        ("nosuch://x/y.csv", ["nosuch"]),
    ],
)
def test_bad_sources_are_told_clearly(tmp_path: Path, source: str, words: list[str]) -> None:
    prepare(tmp_path)
    with pytest.raises(InputError) as caught:
        list(open_source(spec(source), tmp_path).batches())
    for word in words:
        assert word.format(folder=tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("key", {"key": ("idd",)}),
        ("features", {"features": ("idd",)}),
        ("columns", {"columns": {"idd": {}}}),
    ],
)
def test_unknown_columns_are_named_with_the_nearest(
    tmp_path: Path, place: str, more: dict[str, Any]
) -> None:
    (tmp_path / "r.csv").write_text("id,target\n1,0\n")
    with pytest.raises(InputError, match=rf"dataset\.{place}(.|\n)*did you mean 'id'"):
        list(open_source(spec("r.csv", **more), tmp_path).batches())


def test_json_lines_with_text_that_is_not_utf8_are_put_aside() -> None:
    for bad in (b'{"a": "x\xff"}', b'{"a": "x\\ud800"}', b'{"a": "x\xed\xa0\x80"}'):
        chunk = jsonl_source.read_block(b'{"a": "\\ud83d\\ude00"}\n' + bad + b'\n{"a": "y"}\n')
        assert chunk.rows.to_pylist() == [{"a": "\U0001f600"}, {"a": "y"}]
        assert [line.reason for line in chunk.unreadable] == ["line holds text that is not UTF-8"]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("file:///mnt/a%20b/rows.csv", "/mnt/a b/rows.csv"),
        ("/mnt/a%20b/rows.csv", "/mnt/a%20b/rows.csv"),
        ("s3://bucket/rows.csv", "s3://bucket/rows.csv"),
    ],
)
def test_a_uri_of_this_machine_is_a_path(source: str, path: str) -> None:
    assert strip_file_scheme(source) == path


@pytest.mark.parametrize("columns", [3, 30_000])
def test_a_header_of_any_length_is_read(tmp_path: Path, columns: int) -> None:
    names = [f"x{n}" for n in range(columns)] + ["y"]
    rows = [["1"] * columns + ["a"], ["2"] * columns + ["b" * 100_000]]
    (tmp_path / "r.csv").write_text("".join(",".join(row) + "\n" for row in [names, *rows]))
    source = open_source(spec("r.csv", target="y"), tmp_path)
    assert source.schema is not None
    assert source.schema.names == names
    assert sum(chunk.rows.num_rows for chunk in source.chunks()) == 2


def test_only_the_start_of_a_file_is_parsed_for_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    open_csv = csv_source.csv.open_csv

    def counted(*arguments: Any, read_options: Any, **options: Any) -> Any:
        opened.append(read_options.block_size)
        return open_csv(*arguments, read_options=read_options, **options)

    monkeypatch.setattr(csv_source.csv, "open_csv", counted)
    (tmp_path / "r.csv").write_text("x,y\n1,a\n2,b\n")
    list(open_source(spec("r.csv", target="y"), tmp_path).chunks())
    assert opened.count(csv_source.BLOCK_BYTES) == 1


@pytest.mark.parametrize("home", ["state", ".millrace"])
def test_a_glob_reads_no_tables_no_home_and_no_hidden_folder(tmp_path: Path, home: str) -> None:
    files = ("a.csv", "b/c.csv", f"{home}/staging/d.csv", "t/part.csv", ".git/e.csv", ".f.csv")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    (tmp_path / home / "home.version").write_text("1\n")
    (tmp_path / "t/_delta_log").mkdir()
    found = [file.path for file in find_files.find_files("**/*.csv", tmp_path)]
    assert found == [str(tmp_path / name) for name in ("a.csv", "b/c.csv")]
    assert [file.path for file in find_files.find_files(f"{home}/**/*.csv", tmp_path)]
    assert [file.path for file in find_files.find_files("**/.git/*.csv", tmp_path)]


def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"x,y\n" + b"1,2\n" * 5000)
    (tmp_path / "a.csv.gz").write_bytes(whole)
    (tmp_path / "b.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"b\.csv\.gz cannot be read"):
        read("*.csv.gz", tmp_path, target="y")


def test_cells_between_semicolons_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n1;2\n")
    with pytest.raises(InputError, match="seem to be separated by ';'"):
        read("a.csv", tmp_path, target="y")


def test_a_file_that_changes_while_its_digest_is_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the manifest had the digest of other content than the rows, and kept them for ever."""
    path = tmp_path / "a.csv"
    path.write_text("a,y\n1,no\n")
    (file,) = find_files.find_files("a.csv", tmp_path)

    def overwrite(_: object) -> str:
        path.write_text("a,y\n2,no\n")
        os.utime(path, ns=(1, 1))
        return "digest"

    monkeypatch.setattr(find_files.File, "sha256", overwrite)
    with pytest.raises(TransientError, match="changed while it was read"):
        file.described()
