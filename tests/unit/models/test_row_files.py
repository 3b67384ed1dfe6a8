import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from millrace.models.common.errors import WorkError
from millrace.models.data import row_files as module
from millrace.models.data.file_statistics import statistics_of
from millrace.models.data.row_files import RowFile, RowFiles
from millrace.models.data.table_commit import commit_files

SCHEMA = pa.schema([("n", pa.int64()), ("c", pa.string())])


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        numbers = range(start, start + size)
        yield pa.record_batch({"n": numbers, "c": ["ab"[n % 2] for n in numbers]}, schema=SCHEMA)
        start += size


def written(folder: Path, *sizes: int, threads: int = 2) -> tuple[RowFile, ...]:
    with closing(RowFiles(folder, "p", SCHEMA, ["c"], threads=threads)) as files:
        for batch in batches(*sizes):
            files.add(batch)
        return files.finish()


def test_small_batches_share_a_file(tmp_path: Path) -> None:
    (file,) = written(tmp_path, 3, 0, 4)
    assert (file.rows, file.size) == (7, file.path.stat().st_size)
    assert pq.read_table(file.path)["n"].to_pylist() == list(range(7))


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert written(tmp_path) == written(tmp_path, 0) == ()


@pytest.mark.parametrize("threads", [1, 3])
def test_files_are_in_the_order_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 100)
    files = written(tmp_path, *[50] * 9, threads=threads)
    assert len(files) == 9
    rows = [n for file in files for n in pq.read_table(file.path)["n"].to_pylist()]
    assert rows == list(range(450))


def test_large_rows_make_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_GROUP_BYTES", 400)
    (file,) = written(tmp_path, 100)
    assert pq.read_metadata(file.path).num_row_groups > 3


def test_categories_have_dictionaries_and_numbers_have_none(tmp_path: Path) -> None:
    (file,) = written(tmp_path, 100)
    group = pq.read_metadata(file.path).row_group(0)
    assert [group.column(n).has_dictionary_page for n in (0, 1)] == [False, True]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="the rows cannot be written"):
        written(tmp_path / "gone", 3)


def test_statistics_are_those_of_the_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([3, None, 1], pa.int64()),
            "x": [0.5, -2.0, 9.25],
            "c": ["b", "a", None],
            "long": ["z" * 100, "a", "b"],
            "none": pa.nulls(3, pa.float64()),
            "yes": [True, False, None],
            "a.b": [1, 2, 3],
            "s": [{"b": 1}, {"b": 2}, {"b": 3}],
            "v": pa.array([[1.0], [2.0], [3.0]], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=2)
    found = json.loads(statistics_of(pq.read_metadata(tmp_path / "r.parquet")))
    assert found == {
        "numRecords": 3,
        "minValues": {"n": 1, "x": -2.0, "c": "a", "long": "a", "yes": False, "a.b": 1},
        "maxValues": {
            **{"n": 3, "x": 9.25, "c": "b", "long": "z" * 64 + "\U0010ffff"},
            **{"yes": True, "a.b": 3},
        },
        "nullCount": {"n": 1, "x": 0, "c": 1, "long": 0, "none": 3, "yes": 1, "a.b": 0},
    }


def test_statistics_of_many_rows_cover_every_row_group(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    pq.write_table(pa.table({"x": values}), tmp_path / "r.parquet", row_group_size=64)
    found = json.loads(statistics_of(pq.read_metadata(tmp_path / "r.parquet")))
    assert (found["minValues"]["x"], found["maxValues"]["x"]) == (values.min(), values.max())


def test_statistics_name_no_private_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["secret-1"], "n": [4711], "x": [1.5]}), tmp_path / "r.parquet")
    metadata = pq.read_metadata(tmp_path / "r.parquet")
    assert "secret" in statistics_of(metadata)
    found = statistics_of(metadata, ["id", "n"])
    assert "secret" not in found
    assert "4711" not in found
    assert json.loads(found)["minValues"] == {"id": "", "n": -(2**63), "x": 1.5}


def test_a_column_without_ends_leaves_the_number_of_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": [b"bytes"], "x": [1.5]}), tmp_path / "r.parquet")
    assert json.loads(statistics_of(pq.read_metadata(tmp_path / "r.parquet"))) == {"numRecords": 1}


@pytest.mark.parametrize("private", [(), ("x",)])
@pytest.mark.parametrize("ends", [(-math.inf, 1.5), (1.5, math.inf)])
def test_infinite_values_have_no_ends_in_json(
    tmp_path: Path, ends: tuple[float, float], private: tuple[str, ...]
) -> None:
    pq.write_table(pa.table({"x": ends, "n": [1, 2]}), tmp_path / "r.parquet")
    found = statistics_of(pq.read_metadata(tmp_path / "r.parquet"), private)
    assert json.loads(found) == {"numRecords": 2}


@pytest.mark.parametrize("private", [(), ("key", "n", "long", "yes")])
def test_a_reader_finds_the_rows_by_every_column(tmp_path: Path, private: tuple[str, ...]) -> None:
    columns = {
        "key": ["a", "ü", "z" * 90],
        "n": [1, None, -3],
        "long": ["y" * 70, "y" * 100, None],
        "yes": [True, None, False],
        "petal.length": [0.5, None, 2.5],
        "none": pa.nulls(3, pa.float64()),
        "v": pa.array([[1.0], [2.0], [3.0]], pa.list_(pa.float32())),
    }
    table = pa.table(columns)
    with closing(RowFiles(tmp_path, "p", table.schema, [], private=private)) as files:
        files.add(table.to_batches()[0])
        made = files.finish()
    uri = str(tmp_path / "table")
    commit_files(uri, None, made, table.schema, {})
    rows = DeltaTable(uri).to_pyarrow_dataset()
    for name in ("key", "n", "long", "yes", "petal.length"):
        for value in columns[name]:
            if value is not None:
                found = rows.to_table(filter=ds.field(name) == value)
                assert value in found[name].to_pylist(), (name, value)
    assert rows.to_table(filter=ds.field("none").is_null()).num_rows == 3
