import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as module
from millrace.models.data.lacked_columns import (
    MAX_NAMED,
    LackedColumns,
    combine_lacked,
    describe_lacked,
    describe_remedy,
    find_lacked,
)
from millrace.models.data.publish_decision import nulls_hint
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.source import FileColumns

Write = Callable[..., None]


def write_csv(path: Path, *names: str, rows: int = 20) -> None:
    lines = [",".join(names), *(",".join(cells(names, row)) for row in range(rows))]
    path.with_suffix(".csv").write_text("\n".join(lines) + "\n")


def write_jsonl(path: Path, *names: str, rows: int = 20) -> None:
    made = [dict(zip(names, cells(names, row), strict=True)) for row in range(rows)]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def write_parquet(path: Path, *names: str, rows: int = 20) -> None:
    made = [dict(zip(names, cells(names, row), strict=True)) for row in range(rows)]
    pq.write_table(pa.Table.from_pylist(made), path.with_suffix(".parquet"))


def cells(names: tuple[str, ...], row: int) -> list[str]:
    return [("no", "yes")[row % 2] if name == "left" else str(row) for name in names]


WRITERS: dict[str, Write] = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def ingest(folder: Path, ending: str = "csv", mode: str = "auto", **dataset: Any) -> Snapshot:
    home = folder / f"home-{mode}"
    values = {
        "name": "t",
        "dataset": {"source": f"*.{ending}", "target": "left", "key": ["id"], "mode": mode}
        | {"columns": {"income": {"type": "float", "nullable": True}, "age": {"type": "float"}}}
        | dataset,
    }
    pipeline = Pipeline.model_validate(values).with_folder(folder)
    return module.ingest(pipeline, Installation(home, "", str(home / "tables")))


def said(snapshot: Snapshot) -> list[str]:
    return describe_lacked(snapshot.lacked_columns)


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("features", [None, ["income", "age"]])
def test_a_file_without_a_nullable_column_is_told(
    tmp_path: Path, ending: str, features: list[str] | None
) -> None:
    write = WRITERS[ending]
    write(tmp_path / "c-1", "id", "income", "age", "left")
    options = {"features": features}
    assert said(ingest(tmp_path, ending, **options)) == []
    write(tmp_path / "c-2", "id", "income_eur", "age", "left")
    found = ingest(tmp_path, ending, **options)
    knows = ending != "jsonl" or features is None
    has = " (it has income_eur, which the table does not have)" if knows else ""
    line = f"c-2.{ending} has no column income; its rows have null there{has}"
    assert (said(found), found.rows, found.quarantined) == ([line], 40, 0)


def test_an_incremental_snapshot_says_what_a_full_one_says(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    ingest(tmp_path)
    write_csv(tmp_path / "c-2", "id", "income_eur", "age", "left")
    found, full = ingest(tmp_path), ingest(tmp_path, mode="full")
    assert found.lacked_columns == full.lacked_columns
    assert (found.digest, found.schema) == (full.digest, full.schema)
    again = ingest(tmp_path)
    assert not again.created
    assert again.lacked_columns == found.lacked_columns


def refusal(folder: Path, ending: str = "csv", **dataset: Any) -> InputError:
    with pytest.raises(InputError, match="quarantine") as caught:
        ingest(folder, ending, **dataset)
    return caught.value


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_without_a_column_that_is_not_nullable_is_refused(
    tmp_path: Path, ending: str
) -> None:
    write = WRITERS[ending]
    write(tmp_path / "c-1", "id", "income", "age", "left")
    ingest(tmp_path, ending)
    write(tmp_path / "c-2", "id", "income", "years", "left")
    error = refusal(tmp_path, ending)
    has = "(it has years, which the table does not have)"
    assert error.seen == f"age: null (20 rows); c-2.{ending} has no column age {has}"
    assert error.hint == f"name the column age in c-2.{ending} as in the other files"


def test_a_file_without_the_key_is_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    write_csv(tmp_path / "c-2", "customer", "income", "age", "left")
    error = refusal(tmp_path)
    assert "c-2.csv has no column id (it has customer" in str(error.seen)
    assert error.hint == "name the column id in c-2.csv as in the other files"


def test_two_files_without_columns_are_both_named(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    write_csv(tmp_path / "c-2", "id", "income", "left")
    write_csv(tmp_path / "c-3", "id", "left")
    error = refusal(tmp_path)
    assert "c-2.csv has no column age; c-3.csv has no columns " in str(error.seen)
    assert "in c-2.csv, c-3.csv as in the other files" in str(error.hint)
    assert "nullable" not in str(error.hint)


def test_other_bad_rows_keep_their_hint(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    write_csv(tmp_path / "c-2", "id", "income", "left")
    (tmp_path / "c-3.csv").write_text("id,income,age,left\n1,much,2,no\n")
    hint = str(refusal(tmp_path).hint)
    assert hint.startswith("name the column age in c-2.csv as in the other files; read the columns")


def test_a_few_bad_rows_have_no_hint_to_accept_the_nulls(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    write_csv(tmp_path / "c-2", "id", "income", "left", rows=1)
    found = ingest(tmp_path, max_quarantine=0.5)
    assert (found.quarantined, nulls_hint(found)) == (1, None)
    assert said(found) == ["c-2.csv has no column age; its rows have null there"]


def test_a_later_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "c-1", "id", "income", "age", "left")
    twice = pa.Table.from_arrays([pa.array(["1"])] * 3, names=["id", "age", "age"])
    pq.write_table(twice, tmp_path / "c-2.parquet")
    with pytest.raises(InputError, match=r"c-2.parquet has two columns of the same name"):
        ingest(tmp_path, "parquet")


def test_a_later_csv_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "c-1", "id", "income", "age", "left")
    (tmp_path / "c-2.csv").write_text("q,1,1,no\nr,2,2,yes\n")  # has no header
    with pytest.raises(InputError, match=r"c-2.csv has two columns of the same name"):
        ingest(tmp_path)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_column_that_only_a_later_file_has_is_told(tmp_path: Path, ending: str) -> None:
    names = ("id", "income", "age", "left")
    WRITERS[ending](tmp_path / "c-1", *names)
    WRITERS[ending](tmp_path / "c-2", *names, "city")
    found = ingest(tmp_path, ending)
    told = "c-2.%s has the column city, which the source's first file does not have; it is not read"
    assert describe_lacked(found.lacked_columns) == [told % ending]
    assert "city" not in [column.name for column in found.schema.columns]
    chosen = ingest(tmp_path, ending, mode="full", features=["income", "age"])
    assert chosen.lacked_columns == ()


def test_a_parquet_file_without_columns_holds_no_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "c-1", "id", "income", "age", "left")
    pq.write_table(pa.table({}), tmp_path / "c-2.parquet")
    assert ingest(tmp_path, "parquet").rows == 20


def test_a_column_that_some_row_of_a_file_has_is_not_lacked() -> None:
    columns = FileColumns(("a",), ("a",)).joined(FileColumns(("a", "b"), ("a", "b")))
    assert find_lacked({"f": columns}, ["a", "b"]) == ()
    assert find_lacked({"f": columns}, ["b", "c"]) == (LackedColumns("f", ("c",), ("a",)),)


def test_a_large_file_in_several_parts_is_named_once() -> None:
    one, other = LackedColumns("a", ("x",)), LackedColumns("b", ("x",))
    assert combine_lacked([(other,), (one,), (one,)]) == (one, other)


def test_many_files_are_counted() -> None:
    lacked = [LackedColumns(f"/in/{n}.csv", ("x",)) for n in range(MAX_NAMED + 2)]
    assert describe_lacked(lacked)[-1] == "2 more files have other columns"
    assert describe_remedy(lacked).endswith("4.csv and 2 more files as in the other files")
