"""The whole job: from files into the committed partition.

Rows go through Ray where it could matter, and else through this process.
"""

import bz2
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.data.erase_bad_rows import by_dead_letter
from millrace.models.data.erasure import Erasure
from millrace.models.data.schema import Column
from millrace.models.data.scrub_files import scrub_files
from millrace.models.data.snapshot_use import hold_erasure
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.batch.commit import Partition, committed_dates
from millrace.serving.batch.forget_predictions import BatchTables, forget_in_batches
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.input.row_lineage import find_origins, read_seen
from millrace.serving.batch.job import FILE_ROWS
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.drift import Bins
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions, Target, score

pytestmark = pytest.mark.usefixtures("rows_here")
through_ray = pytest.mark.through_ray

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


@pytest.fixture
def job(tmp_path: Path, write_model: Callable[[Path, int], Path]) -> RowJob:
    """A job whose model gives back the column `a`."""
    path = write_model(tmp_path / "model.onnx", 1)
    return RowJob("m", 7, "digest", path, ENCODING, ("id",), HELD)


@pytest.fixture
def run(job: RowJob) -> Run:
    """Scores a source into a table, its dead letters beside it."""

    def score_into(source: Path, table: str) -> BatchReport:
        target = Target(table, f"{table}-dead", "2026-01-05")
        return score(open_input(str(source), job), job, target, RunOptions())

    return score_into


@pytest.fixture
def scored(tmp_path: Path, run: Run) -> Scored:
    """Scores a source and returns what both tables then hold."""

    def rows_of(source: Path) -> list[dict[str, Any]]:
        report = run(source, str(tmp_path / "table"))
        good, dead = held(tmp_path / "table"), held(tmp_path / "table-dead")
        assert (report.rows, report.dead) == (len(good) + len(dead), len(dead))
        return good + dead

    return rows_of


def held(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table; none where it is not there."""
    there = deltalake.DeltaTable.is_deltatable(str(table))
    rows: list[dict[str, Any]]
    rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist() if there else []
    return rows


def answers(rows: list[dict[str, Any]]) -> dict[str | None, Any]:
    """Return by key what was predicted, or why nothing was."""
    return {row["_key"]: row.get("reason") or row["prediction"] for row in rows}


@through_ray
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
        None: "the key is missing, or not text",
    }


def test_lines_with_too_many_or_too_few_cells_are_dead(tmp_path: Path, scored: Scored) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n2,1\n3,1,0,x,9\n4,4,0,x\n")
    rows = scored(tmp_path / "r.csv")
    assert [(row["_row"], row["_key"], row.get("prediction"), row.get("row")) for row in rows] == [
        (0, "1", 1.0, None),
        (3, "4", 4.0, None),
        (1, None, None, '{"line": "2,1"}'),
        (2, None, None, '{"line": "3,1,0,x,9"}'),
    ]


def test_keys_that_are_lists_are_no_keys(tmp_path: Path, scored: Scored) -> None:
    rows = {"_key": [[1], [2]], "a": [1.0, 2.0], "f": [True, None], "c": ["x", "x"]}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    assert answers(scored(tmp_path / "r.parquet")) == {None: "the key is missing, or not text"}


def test_codes_keep_their_zeros_and_keys_are_those_of_ingestion(
    tmp_path: Path, scored: Scored
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "0042,1,0,007\n5.0,1,0,7\n")
    assert answers(scored(tmp_path / "r.csv")) == {"42": 1.0, "5": "c is an unknown category"}


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
        "5": "c is an unknown category",
        "6": 6.0,
        None: "line is not a JSON object",
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
        "6": "c is missing",
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


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path, job: RowJob) -> None:
    (tmp_path / "r.parquet").write_text("no Parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        open_input(str(tmp_path / "r.parquet"), job)


def test_parquet_without_a_column_is_told(tmp_path: Path, job: RowJob) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match="lacks columns") as caught:
        open_input(str(tmp_path / "r.parquet"), job)
    assert "seen: missing f, c, id; there are a" in str(caught.value)


@through_ray
def test_what_ends_a_read_in_a_worker_is_told_as_ingestion_tells_it(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "1.csv").write_text(HEADER + "1,1,0,x\n")
    (tmp_path / "2.csv").write_bytes(HEADER.encode() + b"1,1,0,\xff\n")
    with pytest.raises(InputError, match=r"2\.csv cannot be read as CSV") as caught:
        run(tmp_path / "*.csv", str(tmp_path / "table"))
    assert type(caught.value) is InputError
    assert not list((tmp_path / "table").rglob("*.parquet"))


@through_ray
def test_an_error_of_an_actor_is_told_in_its_own_words(
    tmp_path: Path, job: RowJob, run: Run
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    job.onnx.write_text("no model")
    with pytest.raises(WorkError, match="nothing was committed") as caught:
        run(tmp_path / "r.csv", str(tmp_path / "table"))
    assert "is not a model that ONNX Runtime can run" in str(caught.value)


@through_ray
def test_an_error_of_ours_in_an_actor_is_that_error(tmp_path: Path, job: RowJob) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    narrow = replace(job, encoding=Encoding(ENCODING.features[:2], "t"))
    target = Target(str(tmp_path / "table"), str(tmp_path / "dead"), "2026-01-05")
    found = open_input(str(tmp_path / "r.csv"), narrow)
    with pytest.raises(WorkError, match="^ONNX Runtime could not run the model") as caught:
        score(found, narrow, target, RunOptions())
    assert type(caught.value) is WorkError


MONDAY = "2026-01-05"


def target_in(folder: Path) -> Target:
    return Target(str(folder / "table"), str(folder / "table-dead"), MONDAY)


def numbers(file: Path, rows: int, bad: int = 0) -> Path:
    """Write rows of which the last few have no `a`."""
    cells = [None if number >= rows - bad else float(number) for number in range(rows)]
    columns = {"id": list(range(rows)), "a": cells, "f": [True] * rows, "c": ["x"] * rows}
    pq.write_table(pa.table(columns), file, row_group_size=max(rows // 4, 1))
    return file


def test_the_same_job_again_does_nothing(tmp_path: Path, run: Run) -> None:
    source = numbers(tmp_path / "r.parquet", 40, bad=1)
    first = run(source, str(tmp_path / "table"))
    again = run(source, str(tmp_path / "table"))
    assert again == replace(first, unchanged=True, seconds=again.seconds)
    assert deltalake.DeltaTable(tmp_path / "table").version() == first.table_version


@pytest.mark.parametrize(
    "change", ["input", "parameter", "digest", pytest.param("model", marks=through_ray)]
)
def test_scores_of_another_job_are_never_used_again(
    tmp_path: Path, job: RowJob, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With one folder for all jobs Ray's checkpoint would keep the first job's scores."""
    source = numbers(tmp_path / "r.parquet", 40)
    found = open_input(str(source), job)
    with monkeypatch.context() as stopped:  # all is written, nothing committed
        stopped.setattr(Partition, "commit", _raise(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score(found, job, target_in(tmp_path), RunOptions())
    if change == "input":
        columns = {"id": list(range(40)), "a": [7.0] * 40, "f": [True] * 40, "c": ["x"] * 40}
        pq.write_table(pa.table(columns), source)
    others = {
        "model": replace(job, version=8),
        "parameter": replace(job, batch_size=8),
        "digest": replace(job, digest="another"),
    }
    other = others.get(change, job)
    report = score(open_input(str(source), other), other, target_in(tmp_path), RunOptions())
    assert (report.resumed, report.scored) == (0, 40)
    (row,) = (row for row in held(tmp_path / "table") if row["_key"] == "3")
    assert row["prediction"] == (7.0 if change == "input" else 3.0)
    assert row["model_version"] == other.version
    assert not list((tmp_path / "table" / "_jobs" / f"date={MONDAY}").iterdir())


def _raise(error: type[BaseException]) -> Callable[..., None]:
    def stop(*_: object, **__: object) -> None:
        raise error

    return stop


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("before the commit", marks=through_ray),
        "after it",
        "before the dead letters",
    ],
)
def test_a_job_that_was_stopped_at_its_commit_is_finished_by_the_next(
    tmp_path: Path, job: RowJob, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    found = open_input(str(numbers(tmp_path / "r.parquet", 40, bad=1)), job)
    commit = Partition.commit

    def stopping(partition: Partition, *given: Any, **named: Any) -> int:
        is_dead = partition.table.endswith("-dead")
        if where == "before the commit" or (is_dead and where == "before the dead letters"):
            raise KeyboardInterrupt
        version = commit(partition, *given, **named)
        if where == "after it" and not is_dead:
            raise KeyboardInterrupt
        return version

    with monkeypatch.context() as stopped:
        stopped.setattr(Partition, "commit", stopping)
        with pytest.raises(KeyboardInterrupt):
            score(found, job, target_in(tmp_path), RunOptions())
    report = score(found, job, target_in(tmp_path), RunOptions())
    assert report.unchanged == (where != "before the commit")
    assert report.resumed == (0 if report.unchanged else 39)
    assert len(held(tmp_path / "table")) == 39
    assert [row["_key"] for row in held(tmp_path / "table-dead")] == ["39"]
    assert not list((tmp_path / "table" / "_jobs" / f"date={MONDAY}").iterdir())


def test_dead_letters_of_a_date_are_those_of_its_last_job(tmp_path: Path, run: Run) -> None:
    first = run(numbers(tmp_path / "r.parquet", 40, bad=2), str(tmp_path / "table"))
    then = run(numbers(tmp_path / "s.parquet", 40, bad=0), str(tmp_path / "table"))
    assert first.replaced == ""
    assert then.replaced == f"38 rows of {first.input}, by version {first.model_version}"
    assert held(tmp_path / "table-dead") == []


def test_too_many_dead_rows_commit_nothing_and_a_larger_share_takes_the_work_up(
    tmp_path: Path, job: RowJob
) -> None:
    found = open_input(str(numbers(tmp_path / "r.parquet", 40, bad=3)), job)
    with pytest.raises(InputError, match="3 of 40 rows cannot be scored"):
        score(found, job, target_in(tmp_path), RunOptions(max_dead_letters=0.05))
    assert held(tmp_path / "table") == held(tmp_path / "table-dead") == []
    report = score(found, job, target_in(tmp_path), RunOptions(max_dead_letters=0.1))
    assert (report.resumed, report.scored, report.dead) == (37, 37, 3)


def test_of_two_rows_with_one_key_the_second_is_dead(tmp_path: Path, scored: Scored) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n2,2,0,x\n1,3,0,x\n")
    assert [(row["_key"], row.get("prediction")) for row in scored(tmp_path / "r.csv")] == [
        ("1", 1.0),
        ("2", 2.0),
        ("1", None),
    ]


def test_an_input_that_changes_while_it_is_scored_is_not_committed(
    tmp_path: Path, job: RowJob
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    found = open_input(str(tmp_path / "r.csv"), job)
    (tmp_path / "r.csv").write_text(HEADER + "1,9,0,x\n2,2,0,x\n")
    with pytest.raises(TransientError, match="changed while it was read"):
        score(found, job, target_in(tmp_path), RunOptions())
    assert held(tmp_path / "table") == []


def test_rows_know_their_place_in_the_input(tmp_path: Path, scored: Scored) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.csv").write_text(HEADER + f"{name}1,1,0,x\n{name}2,1,0,x\n")
    positions = {row["_key"]: row["_row"] for row in scored(tmp_path / "*.csv")}
    assert positions == {"11": 0, "12": 1, "21": FILE_ROWS, "22": FILE_ROWS + 1}


def test_columns_that_folders_give_are_read(tmp_path: Path, scored: Scored) -> None:
    for kind in ("x", "007"):
        folder = tmp_path / "in" / f"c={kind}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [kind], "a": [1.0], "f": [True]}), folder / "r.parquet")
    assert answers(scored(tmp_path / "in")) == {"x": 1.0, "7": 1.0}


@through_ray
def test_a_partitioned_delta_table_is_read_with_its_partition_column(
    tmp_path: Path, scored: Scored
) -> None:
    rows = pa.table({"id": [1, 2], "a": [1.0, 2.0], "f": [True, None], "c": ["x", "007"]})
    deltalake.write_deltalake(str(tmp_path / "in"), rows, partition_by=["c"])
    assert answers(scored(tmp_path / "in")) == {"1": 1.0, "2": 2.0}


def test_a_row_is_traced_to_its_place_in_its_file(tmp_path: Path, run: Run) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.csv").write_text(HEADER + f"{name}1,1,0,x\n{name}2,4,0,x\n")
    report = run(tmp_path / "*.csv", str(tmp_path / "table"))
    (origin,) = find_origins(report.table, "22")
    assert (origin.file, origin.place) == (str(tmp_path / "2.csv"), 1)
    assert origin.manifest["sha256"] == digest_of(tmp_path / "2.csv")
    assert origin.row["prediction"] == 4.0
    assert origin.committed["fingerprint"] == report.fingerprint
    assert origin.committed["model_version"] == "7"
    assert origin.table_version == report.table_version


def test_a_row_of_a_delta_table_is_traced_to_its_version(tmp_path: Path, run: Run) -> None:
    rows = pa.table({"id": [1, 2], "a": [1.0, 2.0], "f": [True, None], "c": ["x", "007"]})
    deltalake.write_deltalake(str(tmp_path / "in"), rows)
    report = run(tmp_path / "in", str(tmp_path / "table"))
    (origin,) = find_origins(report.table, "2", MONDAY)
    assert origin.source["version"] == 0
    assert Path(origin.file).suffix == ".parquet"


def test_a_row_is_traced_to_its_place_after_a_row_before_it_was_erased(
    tmp_path: Path, run: Run
) -> None:
    rows = pa.table({"_key": ["k1", "k2", "k3"], "a": [1.0, 2.0, 3.0]})
    rows = rows.append_column("f", pa.array([True] * 3)).append_column("c", pa.array(["x"] * 3))
    rows = rows.append_column("id", pa.array([1, 2, 3]))
    deltalake.write_deltalake(str(tmp_path / "in"), rows)
    report = run(tmp_path / "in", str(tmp_path / "table"))
    places = []
    for erased in (None, "k1", "k3"):
        if erased:
            scrub_files(str(tmp_path / "in"), Erasure.by_value("_key", [erased]))
        places.append(find_origins(report.table, "k3")[0].place)
    assert places == [2, 1, 2]  # the last one is gone: the place that it had


@pytest.mark.parametrize(("key", "date"), [("9", None), ("1", "2026-01-06")])
def test_a_row_that_is_not_there_is_told(
    tmp_path: Path, run: Run, key: str, date: str | None
) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n")
    report = run(tmp_path / "r.csv", str(tmp_path / "table"))
    with pytest.raises(InputError, match=f"has the key '{key}'"):
        find_origins(report.table, key, date)


def test_a_table_that_is_none_of_predictions_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no table of predictions"):
        find_origins(str(tmp_path / "t"), "1")
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"x": [1]}))
    with pytest.raises(InputError, match="does not say where its rows come from"):
        find_origins(str(tmp_path / "t"), "1")


def test_what_was_seen_of_each_column_is_kept_for_its_drift(tmp_path: Path, job: RowJob) -> None:
    bins = Bins("a", "number", (10.0, 20.0), (), (1, 1, 1, 0))
    watched = replace(job, bins=(bins,), output_bins=(replace(bins, column="prediction"),))
    found = open_input(str(numbers(tmp_path / "r.parquet", 40, bad=2)), watched)
    report = score(found, watched, target_in(tmp_path), RunOptions())
    assert read_seen(report.table, report.job) == {
        "a": [10, 10, 18, 2],
        "prediction": [10, 10, 18, 0],
    }


ODD_VALUES = ("New York", "a/b", "ü", "e:f", "g=h", "100%", "plain", None)


def delta(folder: Path, value: float) -> Path:
    """Write a Delta table with a file for each of `ODD_VALUES`."""
    count = len(ODD_VALUES)
    columns = {"id": range(count), "a": [value] * count, "f": [1.0] * count, "c": ["x"] * count}
    rows = pa.table(columns).append_column("where", pa.array(ODD_VALUES))
    deltalake.write_deltalake(folder, rows, partition_by=["where"])
    return folder


def test_all_rows_of_a_delta_table_are_read_whatever_its_folders_are_called(
    tmp_path: Path, run: Run
) -> None:
    report = run(delta(tmp_path / "with space", 1.0), str(tmp_path / "table"))
    assert report.input == f"{tmp_path}/with space version 0"
    kept = deltalake.DeltaTable(tmp_path / "table").history(1)[0]
    assert kept["millrace.input"] == report.input
    assert (report.rows, report.scored) == (len(ODD_VALUES), len(ODD_VALUES))


def test_a_delta_table_without_one_of_its_files_is_told(tmp_path: Path, run: Run) -> None:
    source = delta(tmp_path / "in", 1.0)
    next(source.glob("where=New*/*.parquet")).unlink()
    with pytest.raises(InputError, match="a file of the Delta table .* is missing"):
        run(source, str(tmp_path / "table"))


def test_a_delta_table_made_anew_in_its_place_is_another_input(tmp_path: Path, run: Run) -> None:
    table = str(tmp_path / "table")
    run(delta(tmp_path / "in", 1.0), table)
    shutil.rmtree(tmp_path / "in")
    again = run(delta(tmp_path / "in", 2.0), table)
    assert not again.unchanged
    assert {row["prediction"] for row in held(tmp_path / "table")} == {2.0}


def test_dead_letters_of_a_job_that_died_before_it_told_them_outlive_another_job(
    tmp_path: Path, job: RowJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object) -> None:
        raise KeyboardInterrupt

    good = open_input(str(numbers(tmp_path / "r.parquet", 40, bad=2)), job)
    with monkeypatch.context() as patched:
        patched.setattr("millrace.serving.batch.scoring.publish_dead_letters", dying)
        with pytest.raises(KeyboardInterrupt):
            score(good, job, target_in(tmp_path), RunOptions())
    assert len(held(tmp_path / "table")) == 38
    worse = open_input(str(numbers(tmp_path / "worse.parquet", 40, bad=20)), job)
    with pytest.raises(InputError, match="20 of 40 rows cannot be scored"):
        score(worse, job, target_in(tmp_path), RunOptions(max_dead_letters=0.1))
    assert score(good, job, target_in(tmp_path), RunOptions()).unchanged
    assert len(held(tmp_path / "table-dead")) == 2


def test_what_failed_runs_of_other_dates_wrote_is_kept_for_a_month(
    tmp_path: Path, job: RowJob
) -> None:
    bad = open_input(str(numbers(tmp_path / "bad.parquet", 40, bad=20)), job)
    good = open_input(str(numbers(tmp_path / "good.parquet", 40)), job)
    target = target_in(tmp_path)
    for date in ("2025-11-01", "2025-12-24"):
        with pytest.raises(InputError, match="20 of 40 rows"):
            score(bad, job, replace(target, date=date), RunOptions(max_dead_letters=0.1))
    (record,) = (tmp_path / "table/_jobs/date=2025-11-01").glob("*/job.json")
    month_ago = time.time() - 31 * 86_400
    os.utime(record, (month_ago, month_ago))
    score(good, job, target, RunOptions())
    left = [path.parent.parent.name for path in (tmp_path / "table/_jobs").glob("*/*/job.json")]
    assert left == ["date=2025-12-24"]
    assert not list((tmp_path / "table/date=2025-11-01").glob("*"))
    assert list((tmp_path / "table/date=2025-12-24").glob("*/*.parquet"))
    assert len(held(tmp_path / "table")) == 40


@through_ray
def test_a_date_without_one_row_that_can_be_scored_is_done_once(tmp_path: Path, run: Run) -> None:
    source, table = numbers(tmp_path / "r.parquet", 4, bad=4), str(tmp_path / "table")
    report = run(source, table)
    assert (report.scored, report.dead, report.unchanged) == (0, 4, False)
    assert run(source, table).unchanged
    assert committed_dates(table) == {report.date}
    assert run(numbers(tmp_path / "s.parquet", 4), table).scored == 4
    deltalake.DeltaTable(table).delete("true")  # by hand: that is no commit of ours
    assert committed_dates(table) == frozenset()
    assert not run(tmp_path / "s.parquet", table).unchanged


def test_the_dead_letter_of_a_second_key_holds_its_row(tmp_path: Path, scored: Scored) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n2,2,0,x\n1,7,1,007\n")
    (dead,) = (row for row in scored(tmp_path / "r.csv") if "reason" in row)
    assert (dead["_row"], float(json.loads(dead["row"])["a"])) == (2, 7)


def test_rows_a_second_are_those_of_the_output(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,1,0,x\n" * 10)
    report = run(tmp_path / "r.csv", str(tmp_path / "table"))
    assert report.scored == 1
    assert report.rows_per_second == pytest.approx(1 / report.seconds)


def test_a_job_begins_when_rows_are_erased(tmp_path: Path, run: Run) -> None:
    table = tmp_path / "table"
    (tmp_path / "r.csv").write_text(f"{HEADER}1,2,0,x\n")
    with hold_erasure(str(table)):
        beginning = Thread(target=run, args=(tmp_path / "r.csv", str(table)))
        beginning.start()
        beginning.join(0.5)
        assert beginning.is_alive()
        assert held(table) == []
    beginning.join()
    assert len(held(table)) == 1


def test_a_job_whose_rows_were_all_forgotten_is_not_scored_again(tmp_path: Path, run: Run) -> None:
    table = str(tmp_path / "table")
    (tmp_path / "r.csv").write_text(f"{HEADER}1,2,0,x\n3,oops,0,x\n")
    first = run(tmp_path / "r.csv", table)
    tables = BatchTables(table, f"{table}-dead")
    erasures = Erasure.by_value("_key", ["1"]), by_dead_letter(["3"], {"id": None})
    predictions, letters = forget_in_batches(tables, *erasures, lambda what: pytest.fail(what))
    assert (predictions.rows, letters.rows) == (1, 1)
    again = run(tmp_path / "r.csv", table)
    assert (again.unchanged, again.fingerprint) == (True, first.fingerprint)
    assert held(Path(table)) == held(Path(f"{table}-dead")) == []
    assert committed_dates(table) == {first.date}


def test_a_job_stands_still_while_it_is_paused(job: RowJob, tmp_path: Path) -> None:
    source, table = tmp_path / "rows.csv", str(tmp_path / "table")
    source.write_text(HEADER + "1,1,true,x\n2,2,true,x\n")
    pause, busy = PauseFile(tmp_path / "batch.paused"), list[float]()
    pause.pause()
    resume = Timer(0.5, pause.resume)
    resume.start()
    began = time.monotonic()
    report = score(
        open_input(str(source), job),
        job,
        Target(table, f"{table}-dead", "2026-01-05"),
        RunOptions(pause=pause),
        lambda _, actors, __: busy.extend(each.busy for each in actors.values()),
    )
    assert time.monotonic() - began >= 0.4
    resume.join()
    assert report.scored == 2
    assert 0 < busy[-1] < 0.3  # waiting is no work
