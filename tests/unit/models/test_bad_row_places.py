"""A bad row says which file it came from, and which row of it it is."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as module
from millrace.models.data.erase_bad_rows import by_stored_row
from millrace.models.data.erase_rows import erase_in_newest
from millrace.models.data.files_read import describe_files
from millrace.models.data.schema import Column
from millrace.models.data.scrub_files import scrub_files
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources import arrow_source, csv_source, jsonl_source

BAD = (3, 40, 41, 77)
"""Which rows of each file are bad, from 1."""
ROWS = 80


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))


def ingest(source: str, folder: Path, installation: Installation, **dataset: Any) -> Snapshot:
    values = {"source": source, "target": "y", "max_quarantine": 0.5, **dataset}
    pipeline = Pipeline.model_validate({"name": "t", "dataset": values})
    return module.ingest(pipeline.with_folder(folder), installation)


def stored(installation: Installation) -> pa.Table:
    return DeltaTable(installation.table("quarantine", "t")).to_pyarrow_table()


def places(installation: Installation) -> list[tuple[str | None, int | None]]:
    table = stored(installation)
    names = [path and Path(path).name for path in table["file"].to_pylist()]
    return sorted(zip(names, table["record"].to_pylist(), strict=True))


def make_rows() -> list[dict[str, Any]]:
    numbers = range(1, ROWS + 1)
    return [{"x": None if n in BAD[1:] else n / 3, "y": "ab"[n % 2]} for n in numbers]


def write_csv(path: Path) -> None:
    lines = ["" if row["x"] is None else str(row["x"]) for row in make_rows()]
    rows = [f"{x},{row['y']}" for x, row in zip(lines, make_rows(), strict=True)]
    rows[BAD[0] - 1] = "1,a,too,many"
    path.write_text("x,y\n" + "\n".join(rows) + "\n")


def write_jsonl(path: Path) -> None:
    lines = [json.dumps(row) for row in make_rows()]
    lines[BAD[0] - 1] = "{broken"
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path) -> None:
    rows = make_rows()
    rows[BAD[0] - 1]["x"] = None
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_bad_row_says_its_file_and_its_number(
    tmp_path: Path,
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    in_blocks: bool,
) -> None:
    if in_blocks:
        monkeypatch.setattr(csv_source, "BLOCK_BYTES", 300)
        monkeypatch.setattr(jsonl_source, "BLOCK_BYTES", 300)
        monkeypatch.setattr(arrow_source, "PIECE_BYTES", 300)
    write = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}[ending]
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{ending}")
    made = ingest(f"*.{ending}", tmp_path, installation)
    named = [f"{name}.{ending}" for name in ("a", "b")]
    assert places(installation) == [(name, number) for name in named for number in BAD]
    assert made.bad_files == {str(tmp_path / name): len(BAD) for name in named}


def test_kept_files_count_too(tmp_path: Path, installation: Installation) -> None:
    write_csv(tmp_path / "a.csv")
    ingest("*.csv", tmp_path, installation)
    write_csv(tmp_path / "b.csv")
    assert len(ingest("*.csv", tmp_path, installation).bad_files) == 2
    assert len(ingest("*.csv", tmp_path, installation).bad_files) == 2
    assert len(stored(installation)) == 2 * len(BAD)


def test_rows_of_a_function_have_no_place(tmp_path: Path, installation: Installation) -> None:
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n"
        "def read():\n"
        "    yield pa.record_batch({'x': [1.0, None, 2.0, 3.0], 'y': list('abab')})\n"
    )
    made = ingest("rows:read", tmp_path, installation)
    assert (places(installation), made.bad_files) == ([(None, None)], {})


def test_a_table_of_an_earlier_version_goes_on(tmp_path: Path, installation: Installation) -> None:
    write_csv(tmp_path / "r.csv")
    ingest("r.csv", tmp_path, installation)
    uri = installation.table("quarantine", "t")
    early = stored(installation).drop_columns(["file", "record"])
    write_deltalake(uri, early, mode="overwrite", schema_mode="overwrite")
    (tmp_path / "r.csv").write_text((tmp_path / "r.csv").read_text() + "7.5,\n8.5,a\n")
    ingest("r.csv", tmp_path, installation)
    table = stored(installation)
    assert table["record"].null_count == len(BAD)
    assert len(table) == 2 * len(BAD) + 1
    erasure = by_stored_row(["7.5"], {"x": Column("x", "float")})
    assert erase_in_newest(uri, erasure).rows == 1
    scrub_files(uri, erasure)
    assert len(stored(installation)) == 2 * len(BAD)


def test_files_are_named_from_the_folder_that_they_share() -> None:
    assert describe_files({"/in/a.csv": 3}) == "a.csv (3)"
    assert describe_files({"/in/x/a.csv": 3000, "/in/y/a.csv": 1}) == "x/a.csv (3,000), y/a.csv (1)"
    assert describe_files({f"bucket/{n}.csv": 1 for n in range(7)}).endswith("4.csv (1), … 2 more")
