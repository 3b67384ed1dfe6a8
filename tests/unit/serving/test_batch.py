"""The whole job: from files, through Ray, into the committed partition."""

import bz2
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.cluster import connected
from models.columns import Column
from models.errors import InputError, WorkError
from models.features import Encoding, Feature
from serving.batch import BatchReport, score
from serving.batch_input import read_rows
from serving.partition import Partition
from serving.scorer import ScoreJob

ENCODING = Encoding(
    (
        Feature("a", "number"),
        Feature("f", "number", nullable=True),
        Feature("c", "category", categories=("007", "x")),
    ),
    "t",
)
HELD = (Column("id", "int"), Column("f", "bool", nullable=True))
HEADER = "id,a,f,c\n"
MANY = 100_000
"""Rows of more than a megabyte, the first block of a reader that infers types."""

Run = Callable[[Path, str], BatchReport]
Scored = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module", autouse=True)
def ray_is_there() -> Iterator[None]:
    with connected("local", 1):
        yield


@pytest.fixture
def job(tmp_path: Path, write_model: Callable[[Path, int], Path]) -> ScoreJob:
    """A job whose model gives back the column `a`."""
    path = write_model(tmp_path / "model.onnx", 1)
    return ScoreJob("m", 7, "digest", path, ENCODING, ("id",), HELD)


@pytest.fixture
def run(job: ScoreJob) -> Run:
    """Scores a source into a table."""

    def score_into(source: Path, table: str) -> BatchReport:
        partition = Partition(table, "date", "2026-01-05", "job")
        return score(read_rows(str(source), job), job, partition, batch_size=512, num_actors=1)

    return score_into


@pytest.fixture
def scored(tmp_path: Path, run: Run) -> Scored:
    """Scores a source and returns what the table then holds."""

    def rows_of(source: Path) -> list[dict[str, Any]]:
        report = run(source, str(tmp_path / "table"))
        rows: list[dict[str, Any]]
        rows = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
        assert report.rows == len(rows)
        assert report.unscored == sum(row["error"] is not None for row in rows)
        return rows

    return rows_of


def answers(rows: list[dict[str, Any]]) -> dict[str | None, Any]:
    """Return by key what was predicted, or why nothing was."""
    return {row["_key"]: row["error"] or row["prediction"] for row in rows}


def test_odd_cells_late_in_a_csv_file_are_their_rows_alone(tmp_path: Path, scored: Scored) -> None:
    first = "".join(f"{number},1,true,x\n" for number in range(MANY))
    (tmp_path / "r.csv").write_text(HEADER + first + "-1,3.5,no,x\n-2,abc,1,x\n-3,1,5,x\n,2,,x\n")
    found = answers(scored(tmp_path / "r.csv"))
    assert len(found) == MANY + 4
    assert {key: found[key] for key in ("0", "-1", "-2", "-3", None)} == {
        "0": 1.0,
        "-1": 3.5,
        "-2": "a is not a finite number",
        "-3": "f is not a finite number",
        None: 2.0,
    }


def test_lines_with_too_many_or_too_few_cells_are_kept(tmp_path: Path, scored: Scored) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n2,1\n3,1,0,x,9\n4,4,0,x\n")
    rows = [(row["_key"], row["prediction"], row["error"]) for row in scored(tmp_path / "r.csv")]
    assert sorted(rows, key=str) == [
        ("1", 1.0, None),
        ("4", 4.0, None),
        (None, None, "line has 2 cells, not 4: 2,1"),
        (None, None, "line has 5 cells, not 4: 3,1,0,x,9"),
    ]


def test_codes_keep_their_zeros_and_keys_are_those_of_ingestion(
    tmp_path: Path, scored: Scored
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "0042,1,0,007\n5.0,1,0,7\n")
    assert answers(scored(tmp_path / "r.csv")) == {"42": 1.0, "5": "c is unknown or missing"}


def test_mixed_types_in_json_lines_are_their_rows_alone(tmp_path: Path, scored: Scored) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "a": 1, "f": True, "c": "x"},
        {"id": 2, "a": 2.5, "f": None, "c": "007"},
        {"id": 3, "a": "abc", "f": False, "c": "x"},
        {"id": 4, "a": [4], "f": "yes", "c": "x"},
        {"id": 5, "a": "5", "c": 7},
    ]
    lines = [*map(json.dumps, rows), "no json", '{"id": 6, "a": 6, "c": "x"}']
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    assert answers(scored(tmp_path / "r.jsonl")) == {
        "1": 1.0,
        "2": 2.5,
        "3": "a is not a finite number",
        "4": "a is not a finite number",
        "5": "c is unknown or missing",
        "6": 6.0,
        None: "line is not a JSON object: no json",
    }


def test_a_folder_is_read_whole_whatever_lies_beside_its_rows(
    tmp_path: Path, scored: Scored
) -> None:
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    (folder / "_SUCCESS").write_text("")
    (folder / "notes.txt").write_text("no rows")
    (folder / "1.csv").write_text(HEADER + "1,1,0,x\n")
    (folder / "2.csv").write_text("c,id,a\nx,2,2\n")
    (folder / "3.tsv").write_text(HEADER.replace(",", "\t") + "3\t3\t0\tx\n")
    (folder / "deeper/4.csv.bz2").write_bytes(bz2.compress((HEADER + "4,4,0,x\n").encode()))
    (folder / "5.csv").write_text(HEADER)
    (folder / "6.csv").write_text("id,a,f\n6,6,0\n")
    assert answers(scored(folder)) == {
        **{str(number): float(number) for number in (1, 2, 3, 4)},
        "6": "c is unknown or missing",
    }


def test_parquet_may_end_in_pq(tmp_path: Path, scored: Scored) -> None:
    rows = {"id": [1, 2], "a": [1.0, None], "f": [True, None], "c": ["x", "x"], "more": [0, 0]}
    pq.write_table(pa.table(rows), tmp_path / "r.pq")
    assert answers(scored(tmp_path / "r.pq")) == {"1": 1.0, "2": "a is missing"}


def test_predictions_go_to_a_table_named_by_a_uri(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    table = (tmp_path / "tables here").as_uri()
    run(tmp_path / "r.csv", table)
    assert deltalake.DeltaTable(table).to_pyarrow_table()["prediction"].to_pylist() == [1.0]


def test_an_input_without_rows_is_told(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r.csv").write_text(HEADER)
    with pytest.raises(InputError, match="has no rows"):
        run(tmp_path / "r.csv", str(tmp_path / "table"))


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path, job: ScoreJob) -> None:
    (tmp_path / "r.parquet").write_text("no Parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_rows(str(tmp_path / "r.parquet"), job)


def test_parquet_without_a_column_is_told(tmp_path: Path, job: ScoreJob) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match="lacks columns") as caught:
        read_rows(str(tmp_path / "r.parquet"), job)
    assert "seen: missing f, c, id; there are a" in str(caught.value)


def test_what_ends_a_read_in_a_worker_is_told_as_ingestion_tells_it(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "1.csv").write_text(HEADER + "1,1,0,x\n")
    (tmp_path / "2.csv").write_bytes(HEADER.encode() + b"1,1,0,\xff\n")
    with pytest.raises(InputError, match=r"2\.csv cannot be read as CSV") as caught:
        run(tmp_path / "*.csv", str(tmp_path / "table"))
    assert type(caught.value) is InputError
    assert not list((tmp_path / "table").rglob("*.parquet"))


def test_an_error_of_an_actor_is_told_in_its_own_words(
    tmp_path: Path, job: ScoreJob, run: Run
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    job.onnx.write_text("no model")
    with pytest.raises(WorkError, match="nothing was committed") as caught:
        run(tmp_path / "r.csv", str(tmp_path / "table"))
    assert "is not a model that ONNX Runtime can run" in str(caught.value)


def test_an_error_of_ours_in_an_actor_is_that_error(tmp_path: Path, job: ScoreJob) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    narrow = replace(job, encoding=Encoding(ENCODING.features[:2], "t"))
    partition = Partition(str(tmp_path / "table"), "date", "2026-01-05", "job")
    rows = read_rows(str(tmp_path / "r.csv"), narrow)
    with pytest.raises(WorkError, match="^the model failed in ONNX Runtime") as caught:
        score(rows, narrow, partition, batch_size=512, num_actors=1)
    assert type(caught.value) is WorkError
