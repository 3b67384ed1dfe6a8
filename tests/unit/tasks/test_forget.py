import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.data.lease import hold_lease
from millrace.models.data.snapshot_use import hold_ingestion, hold_snapshot
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.serving.batch.commit import Partition, publish_dead_letters
from millrace.serving.batch.job import DEAD
from millrace.serving.batch.job_state import leases_of, open_job_state
from millrace.tasks.retention.forget import Forgotten, find_rows, forget

SECRET = "customer-4711"
OUTPUT = pa.schema([("_row", pa.int64()), ("_key", pa.string()), ("prediction", pa.string())])


class Ended(Exception):
    """Raised instead of waiting."""


def no_wait(what: str) -> None:
    raise Ended(what)


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    folder = tmp_path / "home"
    return Installation(folder, "", str(folder / "tables"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    source = tmp_path / "source"
    source.mkdir()
    dataset = {
        "source": f"{source}/*.csv",
        "target": "y",
        "key": ["id"],
        "columns": {"id": {"type": "string"}},
        "max_quarantine": 0.5,
    }
    return Pipeline.model_validate({"name": "things", "dataset": dataset})


Write = Callable[[str, list[str]], Snapshot]


@pytest.fixture
def write(pipeline: Pipeline, home: Installation) -> Write:
    folder = Path(pipeline.dataset.source).parent

    def ingest_file(name: str, ids: list[str]) -> Snapshot:
        lines = [f"{id},{n / 7:.3f},{'ab'[n % 2]}" for n, id in enumerate(ids)]
        (folder / name).write_text("\n".join(["id,x,y", *lines]) + "\n")
        return ingest(pipeline, home)

    return ingest_file


def ids(start: int, count: int = 20) -> list[str]:
    return [f"customer-{n}" for n in range(start, start + count)]


def predict(home: Installation, date: str, keys: list[str], dead: list[str]) -> None:
    partition = Partition(home.table("predictions", "things"), "date", date, f"job-{date}")
    rows = pa.table([range(len(keys)), keys, ["a"] * len(keys)], schema=OUTPUT)
    partition.folder.write_table("0.parquet", rows)
    partition.commit(OUTPUT, {})
    letters = pa.table(
        [range(len(dead)), dead, ["bad"] * len(dead), [json.dumps({"id": id}) for id in dead]],
        schema=DEAD,
    )
    publish_dead_letters(
        Partition(home.table("dead_letters", "things"), "date", date, f"job-{date}"), "f", letters
    )


def rows_with_secret(folder: Path) -> dict[str, int]:
    """Return how often the key is in each file: in the bytes, or in a value of a Parquet file."""
    found = {}
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        count = file.read_bytes().count(SECRET.encode())
        if file.suffix == ".parquet":
            count += str(pq.read_table(file).to_pylist()).count(SECRET)
        if count:
            found[str(file.relative_to(folder))] = count
    return found


def test_no_file_has_a_forgotten_key(home: Installation, write: Write) -> None:
    write("a.csv", [*ids(0), SECRET])
    write("b.csv", ids(100))
    # A row without x, which is quarantined, and a line that cannot be read.
    bad = home.home.parent / "source" / "c.csv"
    bad.write_text(
        f"id,x,y\n{SECRET},,a\ncustomer-1,,b\n{SECRET},1.5,a,too,long\ncustomer-2,1.0,a\n"
    )
    write("d.csv", ids(200))
    predict(home, "2026-01-05", [SECRET, "customer-1"], [SECRET])
    predict(home, "2026-01-05", [SECRET, "customer-2"], [SECRET, "customer-3"])
    predict(home, "2026-01-06", ["customer-1"], [])
    assert rows_with_secret(home.home)
    asked = {each.table: each.rows for each in find_rows(home, "things", [SECRET])}
    found = forget(home, "things", [SECRET], no_wait)
    assert {each.table: each.rows for each in found} == asked
    assert asked == {"datasets": 1, "quarantine": 2, "predictions": 1, "dead_letters": 1}
    assert rows_with_secret(home.home) == {}
    assert forget(home, "things", [SECRET], no_wait) == [
        Forgotten(each.table, each.uri, 0) for each in found
    ]


def test_the_newest_snapshot_is_as_if_the_row_had_never_been_there(
    home: Installation, write: Write, pipeline: Pipeline, tmp_path: Path
) -> None:
    first = write("a.csv", [*ids(0), SECRET])
    second = write("b.csv", ids(100))
    forget(home, "things", [SECRET], no_wait)
    now = open_snapshot(home, "things")
    assert (now.rows, now.version) == (second.rows - 1, second.version + 1)
    assert sum(batch.num_rows for batch in scan(first)) == first.rows - 1
    assert sum(batch.num_rows for batch in scan(second)) == second.rows - 1

    unread = ingest(pipeline, home)  # the source still has the row, and nothing changed in it
    assert (unread.version, unread.digest) == (now.version, now.digest)
    source = Path(pipeline.dataset.source).parent / "a.csv"
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join(line for line in lines if SECRET not in line))
    other = Installation(tmp_path / "other", "", str(tmp_path / "other" / "tables"))
    fresh = ingest(pipeline, other)
    assert (fresh.digest, fresh.statistics) == (now.digest, now.statistics)
    assert ingest(pipeline, home).digest == now.digest
    assert rows_with_secret(home.home) == {}


def test_a_snapshot_without_manifests_of_its_parts_forgets_too(
    home: Installation, write: Write
) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    for part in Path(made.uri, "_parts").iterdir():
        part.unlink()
    forget(home, "things", [SECRET], no_wait)
    now = open_snapshot(home, "things")
    assert now.rows == made.rows - 1
    assert sum(batch.num_rows for batch in scan(now)) == now.rows
    assert rows_with_secret(home.home) == {}


def test_a_table_whose_files_another_tool_has_joined_is_counted_anew(
    home: Installation, write: Write, pipeline: Pipeline
) -> None:
    write("a.csv", [*ids(0), SECRET])
    made = write("b.csv", ids(100))
    DeltaTable(made.uri).optimize.compact()
    forget(home, "things", [SECRET], no_wait)
    now = open_snapshot(home, "things")
    assert now.rows == made.rows - 1 == sum(batch.num_rows for batch in scan(now))
    source = Path(pipeline.dataset.source).parent / "a.csv"
    source.write_text(source.read_text().replace(f"{SECRET},", "customer-9,"))
    assert ingest(pipeline, home).rows == made.rows


def test_it_waits_for_an_ingestion(home: Installation, write: Write) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    with hold_ingestion(made.uri), pytest.raises(Ended, match="an ingestion"):
        forget(home, "things", [SECRET], no_wait)
    assert open_snapshot(home, "things").version == made.version


def test_files_of_a_snapshot_that_a_job_reads_stay_until_it_ends(
    home: Installation, write: Write
) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    with hold_snapshot(made.uri, made.version), pytest.raises(Ended, match="an earlier snapshot"):
        forget(home, "things", [SECRET], no_wait)
    assert open_snapshot(home, "things").rows == made.rows - 1
    assert sum(batch.num_rows for batch in scan(made)) == made.rows
    forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret(home.home) == {}


def test_the_partition_of_a_running_batch_job_comes_last(home: Installation, write: Write) -> None:
    write("a.csv", ids(0))
    predict(home, "2026-01-05", [SECRET], [])
    predict(home, "2026-01-06", [SECRET], [])
    running = Partition(home.table("predictions", "things"), "date", "2026-01-06", "")
    with hold_lease(leases_of(running), "abc"), pytest.raises(Ended, match="1 batch jobs"):
        forget(home, "things", [SECRET], no_wait)
    assert all("2026-01-06" in name for name in rows_with_secret(home.home))
    forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret(home.home) == {}


def test_what_a_killed_job_left_forgets_too(home: Installation, write: Write) -> None:
    write("a.csv", ids(0))
    predict(home, "2026-01-05", ["customer-1"], [])
    partition = Partition(home.table("predictions", "things"), "date", "2026-01-06", "")
    state, own = open_job_state(partition, "f" * 64)
    own.folder.write_table("0.parquet", pa.table([[0], [SECRET], ["a"]], schema=OUTPUT))
    letter = pa.table([[1], [SECRET], ["bad"], [f'{{"id": "{SECRET}"}}']], schema=DEAD)
    state.refuse("1", letter)
    forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret(home.home) == {}
    assert len(state.read_refused()) == 0


def test_a_model_without_tables_is_refused(home: Installation) -> None:
    with pytest.raises(InputError, match="no dataset 'things'"):
        forget(home, "things", [SECRET], no_wait)
