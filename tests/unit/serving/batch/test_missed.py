from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from serving.batch.missed import committed_dates, dates_to_do

DUE = "2026-03-02"


@pytest.mark.parametrize(
    ("committed", "days", "to_do"),
    [
        ([], 7, [DUE]),
        (["2026-03-01"], 7, [DUE]),
        (["2026-02-26", "2026-02-28"], 7, ["2026-02-27", "2026-03-01", DUE]),
        (["2026-01-01"], 2, ["2026-02-28", "2026-03-01", DUE]),
        (["2026-01-01"], 0, [DUE]),
        (["2026-03-01", DUE], 7, [DUE]),
        (["2026-03-05"], 7, [DUE]),
    ],
)
def test_missed_dates_are_made_up_for_the_oldest_first(
    committed: list[str], days: int, to_do: list[str]
) -> None:
    assert dates_to_do(committed, DUE, days) == to_do


def test_the_dates_of_a_table_are_its_partitions(tmp_path: Path) -> None:
    assert committed_dates(str(tmp_path / "t")) == frozenset()
    rows = pa.table({"date": ["2026-03-01", "2026-03-01", DUE], "x": [1, 2, 3]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["date"])
    assert committed_dates(str(tmp_path / "t")) == {"2026-03-01", DUE}
