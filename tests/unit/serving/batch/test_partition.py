from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.serving.batch.commit import Partition

MONDAY, TUESDAY = "2026-01-05", "2026-01-06"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "predictions")


def write(partition: Partition, *files: list[int]) -> pa.Schema:
    """Write Parquet files as a worker does, and return their schema."""
    schema = pa.schema([("x", pa.int64())])
    Path(partition.folder.uri).mkdir(parents=True, exist_ok=True)
    for number, values in enumerate(files):
        rows = pa.table({"x": values}, schema=schema)
        pq.write_table(rows, f"{partition.folder.uri}/{number}.parquet")
    return schema


def commit(table: str, date: str, job: str, *files: list[int], **metadata: str) -> int:
    partition = Partition(table, "date", date, job)
    return partition.commit(write(partition, *files), metadata)


def seen(table: str, version: int | None = None) -> dict[str, list[int]]:
    """Return what a reader sees, by date."""
    rows = deltalake.DeltaTable(table, version=version).to_pyarrow_table()
    found: dict[str, list[int]] = {}
    for row in rows.sort_by("x").to_pylist():
        found.setdefault(row["date"], []).append(row["x"])
    return found


def history(table: str) -> list[dict[str, Any]]:
    return deltalake.DeltaTable(table).history()


def test_the_first_commit_makes_the_table(table: str) -> None:
    commit(table, MONDAY, "a", [1, 2], [3])
    assert seen(table) == {MONDAY: [1, 2, 3]}


def test_another_date_is_added(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    commit(table, TUESDAY, "b", [2])
    assert seen(table) == {MONDAY: [1], TUESDAY: [2]}


def test_a_commit_replaces_its_own_date_and_no_other(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    commit(table, TUESDAY, "b", [2])
    commit(table, MONDAY, "c", [8, 9])
    assert seen(table) == {MONDAY: [8, 9], TUESDAY: [2]}


def test_running_a_date_again_gives_the_same_rows_once(table: str) -> None:
    for job in ("a", "b", "c"):
        commit(table, MONDAY, job, [1, 2], [3])
    assert seen(table) == {MONDAY: [1, 2, 3]}


def test_a_commit_returns_the_new_version(table: str) -> None:
    first = commit(table, MONDAY, "a", [1])
    assert commit(table, MONDAY, "b", [2]) == first + 1
    assert seen(table, first) == {MONDAY: [1]}


def test_a_commit_is_one_version_of_the_table(table: str) -> None:
    before = commit(table, MONDAY, "a", [1])
    commit(table, MONDAY, "b", [2], [3], [4])
    assert deltalake.DeltaTable(table).version() == before + 1


def test_a_reader_sees_the_old_rows_until_the_commit(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", MONDAY, "b")
    schema = write(partition, [2])
    assert seen(table) == {MONDAY: [1]}
    partition.commit(schema, {})
    assert seen(table) == {MONDAY: [2]}


def test_a_reader_that_has_the_table_open_keeps_its_rows(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    reader = deltalake.DeltaTable(table)
    commit(table, MONDAY, "b", [2])
    assert reader.to_pyarrow_table()["x"].to_pylist() == [1]


def test_the_commit_keeps_its_metadata(table: str) -> None:
    commit(table, MONDAY, "a", [1], model_version="7")
    assert history(table)[0]["model_version"] == "7"


def test_a_readers_row_count_needs_no_file(table: str) -> None:
    commit(table, MONDAY, "a", [1, 2], [3])
    actions = pa.table(deltalake.DeltaTable(table).get_add_actions(flatten=True))
    assert sum(actions["num_records"].to_pylist()) == 3


def test_a_filter_on_the_date_reads_that_date_only(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    commit(table, TUESDAY, "b", [2])
    files = deltalake.DeltaTable(table).file_uris(file_pruning_predicate=f"date = '{TUESDAY}'")
    assert [f"date={TUESDAY}" in file for file in files] == [True]


def test_the_files_of_a_run_are_its_parquet_files(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    write(partition, [1], [2])
    Path(partition.folder.uri, "notes.txt").write_text("")
    assert sorted(file.base_name for file in partition.files()) == ["0.parquet", "1.parquet"]


def test_a_run_that_wrote_nothing_has_no_files(table: str) -> None:
    assert Partition(table, "date", MONDAY, "a").files() == []


def test_what_was_not_committed_can_be_removed(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", MONDAY, "b")
    write(partition, [2])
    partition.remove()
    assert not Path(partition.folder.uri).exists()
    assert seen(table) == {MONDAY: [1]}


def test_a_run_that_wrote_nothing_has_nothing_to_remove(table: str) -> None:
    Partition(table, "date", MONDAY, "a").remove()
    assert not Path(table).exists()


def test_a_committed_run_keeps_its_files(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    Partition(table, "date", MONDAY, "a").remove()
    assert seen(table) == {MONDAY: [1]}


def test_some_of_the_written_files_may_be_committed(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    schema = write(partition, [1], [2], [3])
    partition.commit(schema, {}, files=partition.files()[:2])
    assert len(seen(table)[MONDAY]) == 2


def test_a_partition_can_become_empty(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    commit(table, TUESDAY, "b", [2])
    partition = Partition(table, "date", MONDAY, "c")
    partition.commit(pa.schema([("x", pa.int64())]), {})
    assert seen(table) == {TUESDAY: [2]}


def test_what_was_kept_with_the_commit_of_a_partition_is_found(table: str) -> None:
    commit(table, MONDAY, "a", [1], fingerprint="f")
    commit(table, TUESDAY, "b", [2], fingerprint="g")
    assert Partition(table, "date", MONDAY, "").read_commit()["fingerprint"] == "f"
    assert Partition(table, "date", "2026-01-07", "").read_commit() == {}


def test_files_that_were_replaced_since_stay_for_the_version_that_holds_them(table: str) -> None:
    version = commit(table, MONDAY, "a", [1])
    commit(table, MONDAY, "b", [2])
    Partition(table, "date", MONDAY, "a").remove()
    assert seen(table, version) == {MONDAY: [1]}


def test_a_date_that_another_job_committed_since_the_start_is_told(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", MONDAY, "c")
    start = partition.active_files()
    commit(table, MONDAY, "b", [2])
    with pytest.raises(WorkError, match=f"date={MONDAY} .* by another job meanwhile"):
        partition.commit(write(partition, [3]), {}, start)
    assert seen(table) == {MONDAY: [2]}


def test_of_two_first_jobs_for_a_date_one_wins(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "b")
    start = partition.active_files()
    commit(table, MONDAY, "a", [1])
    with pytest.raises(WorkError, match="by another job meanwhile"):
        partition.commit(write(partition, [2]), {}, start)
    assert seen(table) == {MONDAY: [1]}


def test_another_date_may_be_committed_since_the_start(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", MONDAY, "c")
    start = partition.active_files()
    commit(table, TUESDAY, "b", [2])
    partition.commit(write(partition, [3]), {}, start)
    assert seen(table) == {MONDAY: [3], TUESDAY: [2]}


def opened_before(table: str, monkeypatch: pytest.MonkeyPatch, date: str) -> None:
    """Let another job commit `date` between the next opening of the table and its commit."""
    opened = [deltalake.DeltaTable(table)]
    commit(table, date, "other", [2])
    newest = Partition._table
    monkeypatch.setattr(
        Partition, "_table", lambda *given: opened.pop() if opened else newest(*given)
    )


def test_another_date_that_is_committed_at_the_same_moment_is_no_conflict(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = commit(table, MONDAY, "a", [1])
    opened_before(table, monkeypatch, TUESDAY)
    assert commit(table, MONDAY, "c", [3]) == before + 2
    assert seen(table) == {MONDAY: [3], TUESDAY: [2]}


@pytest.mark.parametrize("first", [True, False])
def test_the_same_date_that_is_committed_at_the_same_moment_is_told(
    table: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    commit(table, TUESDAY if first else MONDAY, "a", [1])
    opened_before(table, monkeypatch, MONDAY)
    with pytest.raises(WorkError, match="by another job meanwhile"):
        commit(table, MONDAY, "c", [3])
    assert seen(table)[MONDAY] == [2]


def text_rows(partition: Partition) -> pa.Schema:
    """Write a file as a worker of a model with text labels does."""
    rows = pa.table({"x": ["a"]})
    Path(partition.folder.uri).mkdir(parents=True)
    pq.write_table(rows, f"{partition.folder.uri}/0.parquet")
    return rows.schema


def test_another_schema_is_refused_and_the_table_stays_readable(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", TUESDAY, "b")
    schema = text_rows(partition)
    with pytest.raises(InputError, match="another schema") as caught:
        partition.commit(schema, {})
    assert "seen: x string, date string" in str(caught.value)
    assert "valid: x long, date string" in str(caught.value)
    assert seen(table) == {MONDAY: [1]}


def test_columns_that_are_new_are_added_and_may_be_left_out_again(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    for day, job, more in ((TUESDAY, "b", {"city": ["p"]}), ("2026-01-07", "c", {})):
        partition = Partition(table, "date", day, job)
        rows = pa.table({"x": [2], **more})
        Path(partition.folder.uri).mkdir(parents=True)
        pq.write_table(rows, f"{partition.folder.uri}/0.parquet")
        partition.require_schema(rows.schema)
        partition.commit(rows.schema, {})
    found = deltalake.DeltaTable(table).to_pyarrow_table().sort_by("date")
    assert found["city"].to_pylist() == [None, "p", None]
    assert found["x"].to_pylist() == [1, 2, 2]
    log = "".join(each.read_text() for each in Path(table, "_delta_log").glob("*.json"))
    assert '\\"p\\"' not in log


def test_a_column_that_differs_in_its_case_alone_is_told_before_the_work(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    with pytest.raises(InputError, match="another schema"):
        Partition(table, "date", MONDAY, "b").require_schema(pa.schema([("X", pa.int64())]))


def test_predictions_of_another_kind_are_refused(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    Path(partition.folder.uri).mkdir(parents=True)
    schema = pa.schema([("_key", pa.string()), ("prediction", pa.string())])
    pq.write_table(schema.empty_table(), f"{partition.folder.uri}/0.parquet")
    partition.commit(schema, {})
    with pytest.raises(InputError, match="another schema"):
        partition.require_schema(pa.schema([("_key", pa.string()), ("completion", pa.string())]))


def test_another_schema_is_told_before_the_work_as_well(table: str) -> None:
    commit(table, MONDAY, "a", [1])
    partition = Partition(table, "date", TUESDAY, "b")
    with pytest.raises(InputError, match="another schema"):
        partition.require_schema(pa.schema([("x", pa.string())]))


def test_any_schema_will_do_before_the_first_commit(table: str) -> None:
    Partition(table, "date", MONDAY, "a").require_schema(pa.schema([("x", pa.string())]))
    assert not Path(table).exists()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_schema_may_come_back_in_another_order(table: str, kind: pa.DataType) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    Path(partition.folder.uri).mkdir(parents=True)
    schema = pa.schema([("x", pa.int64()), ("y", kind)])
    pq.write_table(schema.empty_table(), f"{partition.folder.uri}/0.parquet")
    partition.commit(schema, {})
    partition.require_schema(pa.schema([("y", kind), ("x", pa.int64())]))


def test_what_a_run_wrote_is_read_from_any_store() -> None:
    partition = Partition("memory://predictions", "date", MONDAY, "a")
    filesystem, folder = partition.location
    for number, values in enumerate([[1, None], [3]]):
        with filesystem.open_output_stream(f"{folder}/{number}.parquet") as stream:
            pq.write_table(pa.table({"x": values}), stream)
    with filesystem.open_output_stream(f"{folder}/2.parquet") as stream:
        stream.write(b"PAR1 not whole yet")
    rows = partition.count_rows()
    assert sorted(rows.values()) == [1, 2]
    assert partition.count_rows(known=rows) == {}


def test_a_table_may_be_named_by_a_uri(tmp_path: Path) -> None:
    table = (tmp_path / "a b").as_uri()
    partition = Partition(table, "date", MONDAY, "a")
    filesystem, folder = partition.location
    filesystem.create_dir(folder)
    rows = pa.table({"x": [1, 2]})
    pq.write_table(rows, f"{folder}/0.parquet", filesystem=filesystem)
    partition.commit(rows.schema, {})
    assert seen(table) == {MONDAY: [1, 2]}


def test_files_say_between_which_values_their_rows_are_but_of_carried_columns(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    Path(partition.folder.uri).mkdir(parents=True)
    rows = pa.table({"_row": [3, 1], "salary": [30, 10]})
    pq.write_table(rows, f"{partition.folder.uri}/0.parquet")
    partition.commit(rows.schema, {})
    (action,) = pa.table(deltalake.DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    assert (action["min._row"], action["max._row"], action["num_records"]) == (1, 3, 2)
    assert action["min.salary"] < -(2**60)


def test_a_job_deletes_the_files_that_its_commit_left_out(table: str) -> None:
    partition = Partition(table, "date", MONDAY, "a")
    schema = write(partition, [1], [2], [2])
    first, second, again = partition.files()
    partition.commit(schema, {}, files=[first, second])
    partition.delete_uncommitted([first, second])
    assert not Path(again.path).exists()
    assert seen(table) == {MONDAY: [1, 2]}
