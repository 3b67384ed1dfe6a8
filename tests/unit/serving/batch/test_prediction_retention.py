from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from millrace.models.data.table_files import SUPERSEDED, remove_replaced_files
from millrace.serving.batch.commit import Partition, committed_dates
from millrace.serving.batch.job_state import find_unfinished, open_job_state
from millrace.serving.batch.prediction_retention import (
    drop_partitions,
    find_old_partitions,
)

SCHEMA = pa.schema([("x", pa.int64())])
NOW = datetime.now(UTC)
AFTER = NOW + SUPERSEDED + timedelta(hours=1)


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "predictions")


def commit(table: str, day: str, job: str, values: list[int]) -> Partition:
    partition = Partition(table, "date", day, job)
    partition.folder.write_table("0.parquet", pa.table({"x": values}, SCHEMA))
    partition.commit(SCHEMA, {})
    return partition


def read(table: str) -> list[int]:
    rows = deltalake.DeltaTable(table).to_pyarrow_table()
    return sorted(rows["x"].to_pylist())


def test_partitions_before_a_date_are_dropped(table: str) -> None:
    commit(table, "2026-01-05", "a", [1])
    commit(table, "2026-02-05", "b", [2])
    commit(table, "2026-02-06", "c", [3])
    assert find_old_partitions(table, date(2026, 2, 6)) == ("2026-01-05", "2026-02-05")
    drop_partitions(table, date(2026, 2, 6))
    assert read(table) == [3]
    assert committed_dates(table) == {"2026-02-06"}


def test_a_table_that_does_not_exist_has_nothing_old(table: str) -> None:
    assert find_old_partitions(table, date(2026, 2, 6)) == ()
    assert remove_replaced_files(table, NOW, dry_run=False).files == 0


def test_a_replaced_file_stays_for_readers_of_the_earlier_version(table: str) -> None:
    old = commit(table, "2026-01-05", "a", [1])
    commit(table, "2026-01-05", "b", [2])
    assert remove_replaced_files(table, NOW, dry_run=False).files == 0
    assert old.files()
    assert remove_replaced_files(table, AFTER, dry_run=True).files == 1
    assert old.files()
    assert remove_replaced_files(table, AFTER, dry_run=False).files == 1
    assert not old.files()
    assert read(table) == [2]


def test_the_files_of_a_running_or_killed_job_stay_however_old(table: str) -> None:
    commit(table, "2026-01-05", "a", [1])
    state, running = open_job_state(Partition(table, "date", "2026-01-06", ""), "f" * 64)
    running.folder.write_table("0.parquet", pa.table({"x": [2]}, SCHEMA))
    jobs = find_unfinished(table)
    assert remove_replaced_files(table, AFTER, spared=jobs, dry_run=False).files == 0
    _, resumed = open_job_state(Partition(table, "date", "2026-01-06", ""), "f" * 64)
    assert len(resumed.files()) == 1
    state.folder.remove()
    jobs = find_unfinished(table)
    assert remove_replaced_files(table, AFTER, spared=jobs, dry_run=False).files == 1
    assert not running.files()
