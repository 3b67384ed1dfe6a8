import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import table_commit
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.ingest import ingest
from millrace.models.data.lease import hold_lease
from millrace.models.data.snapshot_retention import remove_snapshots
from millrace.models.data.snapshot_use import (
    find_held_versions,
    hold_erasure,
    hold_ingested,
    hold_ingestion,
    hold_snapshot,
    is_ingesting,
)
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.data.spool import staging_folder
from millrace.serving.batch.commit import (
    FILES,
    JOB,
    Partition,
    committed_dates,
    publish_dead_letters,
)
from millrace.serving.batch.forget_predictions import (
    BatchTables,
    find_running,
    forget_in_batches,
)
from millrace.serving.batch.job import DEAD
from millrace.serving.batch.job_state import leases_of, open_job_state
from millrace.tasks.retention.forget import find_rows, forget

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
    partition.commit(OUTPUT, {"millrace.fingerprint": "f"})
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
    asked = find_rows(home, "things", [SECRET, "unknown"])
    assert asked.missing == ("unknown",)
    found = forget(home, "things", [SECRET, "unknown"], no_wait)
    assert found == asked
    assert {each.table: (each.rows, each.files) for each in found.tables} == {
        "datasets": (1, 1),
        "quarantine": (2, 1),
        "predictions": (1, 1),
        "dead_letters": (1, 1),
    }
    assert rows_with_secret(home.home) == {}
    again = forget(home, "things", [SECRET], no_wait)
    assert again.tables == tuple(replace(each, rows=0, files=0) for each in found.tables)
    assert again.missing == (SECRET,)


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

    assert (second.repeated_keys, now.repeated_keys) == (0, 0)

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


def test_a_partition_whose_job_began_meanwhile_is_looked_at_again(home: Installation) -> None:
    predict(home, "2026-01-06", [SECRET], [])
    tables = BatchTables(home.table("predictions", "things"), home.table("dead_letters", "things"))
    erasure = Erasure.by_value("_key", [SECRET])
    with ExitStack() as running:

        def begin(rows: pa.Table) -> pa.Array:
            """Begin a job when the first file is searched."""
            if not find_running(tables):
                leases = leases_of(Partition(tables.predictions, "date", "2026-01-06", ""))
                running.enter_context(hold_lease(leases, "abc"))
            return erasure.match(rows)

        beginning = replace(erasure, match=begin)
        with pytest.raises(Ended, match="1 batch jobs"):
            forget_in_batches(tables, beginning, erasure, no_wait)
    forget_in_batches(tables, erasure, erasure, no_wait)
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


def derived_of(home: Installation) -> list[Path]:
    """Make tables as a language model makes them of a snapshot."""
    folders = [Path(home.table(name, "things")) for name in ("tokens", "tokenizers")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "0.parquet").write_text("tokens of the rows")
    return folders


def without(write: Write, home: Installation) -> Snapshot:
    """Ingest a row, and then a source without it; return the first snapshot."""
    made = write("a.csv", [*ids(0), SECRET])
    write("a.csv", ids(0))
    return made


def test_tokens_go_if_only_an_earlier_snapshot_had_the_row(
    home: Installation, write: Write
) -> None:
    without(write, home)
    tokens = derived_of(home)
    found = forget(home, "things", [SECRET], no_wait)
    assert (found.tables[0].rows, found.tables[0].files) == (0, 1)
    assert not any(folder.exists() for folder in tokens)
    derived_of(home)
    forget(home, "things", [SECRET], no_wait)
    assert all(folder.exists() for folder in tokens)  # no row had the key any more


def test_tokens_go_though_the_first_command_was_stopped(home: Installation, write: Write) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    tokens = derived_of(home)
    with hold_snapshot(made.uri, made.version), pytest.raises(Ended):
        forget(home, "things", [SECRET], no_wait)
    assert all(folder.exists() for folder in tokens)
    remove_snapshots(
        made.uri, [made.version], None, dry_run=False
    )  # so no file has the row any more
    forget(home, "things", [SECRET], no_wait)
    assert not any(folder.exists() for folder in tokens)


def test_tokens_stay_while_a_job_reads_any_snapshot(home: Installation, write: Write) -> None:
    without(write, home)
    now = open_snapshot(home, "things")
    tokens = derived_of(home)
    with hold_snapshot(now.uri, now.version), pytest.raises(Ended, match="tables made of the rows"):
        forget(home, "things", [SECRET], no_wait)
    assert all(folder.exists() for folder in tokens)
    forget(home, "things", [SECRET], no_wait)
    assert not any(folder.exists() for folder in tokens)


def test_nobody_is_waited_for_if_no_file_has_the_row(home: Installation, write: Write) -> None:
    made = write("a.csv", ids(0))
    derived_of(home)
    write("b.csv", ids(100))
    with hold_snapshot(made.uri, made.version):
        assert forget(home, "things", [SECRET], no_wait).missing == (SECRET,)
    assert not Path(home.table("predictions", "things")).exists()


def test_a_job_whose_snapshot_never_had_the_row_is_not_waited_for(
    home: Installation, write: Write
) -> None:
    made = write("a.csv", ids(0))
    write("b.csv", [SECRET, *ids(100)])
    with hold_snapshot(made.uri, made.version):
        assert forget(home, "things", [SECRET], no_wait).tables[0].rows == 1
        assert sum(batch.num_rows for batch in scan(made)) == made.rows


def test_a_snapshot_that_is_published_during_the_wait_is_whole(
    home: Installation, write: Write
) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    with ExitStack() as reading:
        reading.enter_context(hold_snapshot(made.uri, made.version))

        def ingest_once(what: str) -> None:
            assert "earlier snapshot" in what
            write("b.csv", [SECRET, *ids(100)])
            reading.close()

        found = forget(home, "things", [SECRET], ingest_once)
    assert found.tables[0].rows == 1  # the ingestion has left out the other
    now = open_snapshot(home, "things")
    assert now.rows == 40 == sum(batch.num_rows for batch in scan(now))
    assert rows_with_secret(home.home) == {}


def test_an_ingestion_waits_until_the_rows_are_erased(home: Installation, write: Write) -> None:
    made = write("a.csv", ids(0))
    with hold_erasure(made.uri):
        beginning = Thread(target=write, args=("b.csv", ids(100)))
        beginning.start()
        beginning.join(0.5)
        assert beginning.is_alive()
        assert open_snapshot(home, "things").version == made.version
    beginning.join()
    assert open_snapshot(home, "things").rows == made.rows + 20


def test_a_snapshot_is_held_before_its_ingestion_ends(home: Installation, write: Write) -> None:
    uri = home.table("datasets", "things")

    def ingest_file() -> Snapshot:
        made = write("a.csv", [*ids(0), SECRET])
        assert is_ingesting(uri)  # though the ingestion itself has ended
        return made

    with hold_ingested(uri, ingest_file) as made:
        assert not is_ingesting(uri)
        assert find_held_versions(uri) == {made.version}
        with pytest.raises(Ended, match="an earlier snapshot"):
            forget(home, "things", [SECRET], no_wait)
        assert sum(batch.num_rows for batch in scan(made)) == made.rows
    assert not find_held_versions(uri)


def test_two_commands_erase_in_turn(home: Installation, write: Write) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    with hold_erasure(made.uri), pytest.raises(Ended, match="another command that erases"):
        forget(home, "things", [SECRET], no_wait)
    forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret(home.home) == {}


def test_what_a_killed_ingestion_left_goes(home: Installation, write: Write) -> None:
    write("a.csv", ids(0))
    left = home.staging / "ingest-things-abcd_123"
    others = [home.staging / f"ingest-{name}-abcd1234" for name in ("things-too", "other")]
    for folder in (left, *others):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"_key": [SECRET]}), folder / "0.parquet")
    with staging_folder(home.staging, "tokens-things") as held:
        assert find_rows(home, "things", [SECRET]).tables[-1].files == 1
        found = forget(home, "things", [SECRET], no_wait)
        assert held.exists()
    assert (found.tables[-1].table, found.tables[-1].files) == ("staging", 1)
    assert not left.exists()
    assert all(folder.exists() for folder in others)


def test_files_of_a_killed_first_job_forget_without_a_table(home: Installation) -> None:
    row = pa.table([[0], [SECRET], ["a"]], schema=OUTPUT)
    letter = pa.table([[0], [None], ["bad"], [f'{{"id": "{SECRET}"}}']], schema=DEAD)
    rows = {"datasets": row, "quarantine": letter, "predictions": row, "dead_letters": letter}
    for table, left in rows.items():
        folder = Folder(f"{home.table(table, 'things')}/date=2026-01-05/job")
        folder.write_table("0.parquet", left)
    found = forget(home, "things", [SECRET], no_wait, ("id",))
    assert [(each.table, each.rows, each.files) for each in found.tables] == [
        (table, 0, 1) for table in rows
    ]
    assert rows_with_secret(home.home) == {}


def test_what_a_killed_job_left_half_written_goes(home: Installation, write: Write) -> None:
    write("a.csv", ids(0))
    predict(home, "2026-01-05", ["customer-1"], [])
    table = Path(home.table("predictions", "things"))
    left = [
        table / "date=2026-01-06" / "job" / "0.parquet",
        table / "_jobs" / "date=2026-01-06" / "abc" / "dead" / "1.parquet.draft-0123abcd",
    ]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_text(f"PAR1 {SECRET}")
    running = Partition(str(table), "date", "2026-01-06", "")
    with hold_lease(leases_of(running), "abc"), pytest.raises(Ended, match="1 batch jobs"):
        forget(home, "things", [SECRET], no_wait)
    assert all(file.exists() for file in left)
    forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret(home.home) == {}


def test_a_damaged_file_is_named_after_all_others_are_erased(
    home: Installation, write: Write
) -> None:
    write("a.csv", [*ids(0), SECRET])
    predict(home, "2026-01-05", [SECRET], [SECRET])
    predict(home, "2026-01-06", [SECRET], [])
    (damaged,) = Path(home.table("predictions", "things"), "date=2026-01-05").rglob("*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert len(find_rows(home, "things", [SECRET]).failed) == 1
    with pytest.raises(WorkError, match="1 files still may have the rows") as raised:
        forget(home, "things", [SECRET], no_wait)
    assert str(damaged) in str(raised.value)
    assert "retention.predictions" in str(raised.value)
    assert rows_with_secret_but(home, damaged) == {}


def test_a_damaged_newest_snapshot_is_told_and_can_be_made_anew(
    home: Installation, write: Write, pipeline: Pipeline
) -> None:
    write("a.csv", ids(0))
    (damaged,) = Path(home.table("datasets", "things")).glob("*.parquet")
    write("b.csv", [SECRET, *ids(100)])
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(WorkError, match="a file that cannot be read") as raised:
        forget(home, "things", [SECRET], no_wait)
    assert str(damaged) in str(raised.value)
    source = Path(pipeline.dataset.source).parent / "b.csv"
    source.write_text(source.read_text().replace(SECRET, "customer-9"))
    dataset = pipeline.dataset.model_copy(update={"mode": "full"})
    ingest(pipeline.model_copy(update={"dataset": dataset}), home)
    with pytest.raises(WorkError, match="1 files still may have the rows"):
        forget(home, "things", [SECRET], no_wait)
    assert rows_with_secret_but(home, damaged) == {}


def rows_with_secret_but(home: Installation, damaged: Path) -> dict[str, int]:
    """Look into all files but one that cannot be read."""
    damaged.unlink()
    return rows_with_secret(home.home)


def test_a_home_with_a_quarantine_alone_forgets(
    home: Installation, pipeline: Pipeline, tmp_path: Path
) -> None:
    source = tmp_path / "source" / "a.csv"
    source.write_text(f"id,x,y\n{SECRET},,a\ncustomer-1,,b\ncustomer-2,1.0,a\n")
    with pytest.raises(InputError, match="are bad"):
        ingest(pipeline, home)
    with pytest.raises(InputError, match="columns that make the key") as raised:
        forget(home, "things", [SECRET], no_wait)
    assert "--key-column" in str(raised.value)
    found = forget(home, "things", [SECRET], no_wait, ("id",))
    assert (found.tables[1].rows, found.missing) == (1, ())
    assert rows_with_secret(home.home) == {}


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_refused(home: Installation, write: Write, key: str) -> None:
    write("a.csv", ids(0))
    for ask in (find_rows, partial(forget, wait=no_wait)):
        with pytest.raises(InputError, match="a key is empty"):
            ask(home, "things", [SECRET, key])


def test_all_rows_are_not_forgotten(home: Installation, write: Write) -> None:
    made = write("a.csv", ids(0))
    with pytest.raises(InputError, match="no row left") as raised:
        forget(home, "things", ids(0), no_wait)
    assert made.uri in str(raised.value)
    now = open_snapshot(home, "things")
    assert (now.version, len(now.classes)) == (made.version, 2)


def test_an_emptied_partition_counts_as_scored(home: Installation, write: Write) -> None:
    write("a.csv", ids(0))
    predict(home, "2026-01-05", [SECRET], [])
    predict(home, "2026-01-06", [SECRET, "customer-1"], [])
    table = home.table("predictions", "things")
    before = Partition(table, "date", "2026-01-05", "").read_commit()
    forget(home, "things", [SECRET], no_wait)
    assert committed_dates(table) == {"2026-01-05", "2026-01-06"}
    for date, files in (("2026-01-05", "0"), ("2026-01-06", "1")):
        commit = Partition(table, "date", date, "").read_commit()
        assert (commit[JOB], commit[FILES]) == (f"job-{date}", files)
        assert commit["millrace.fingerprint"] == "f"
    assert before["millrace.fingerprint"] == "f"


def test_rows_that_another_program_added_are_no_part_of_the_new_snapshot(
    home: Installation, write: Write
) -> None:
    made = write("a.csv", [*ids(0), SECRET])
    table = DeltaTable(made.uri)
    rows = table.to_pyarrow_table()
    write_deltalake(made.uri, rows.filter(pc.equal(rows["id"], SECRET)), mode="append")
    write_deltalake(made.uri, rows.slice(0, 3), mode="append")
    forget(home, "things", [SECRET], no_wait)
    now = open_snapshot(home, "things")
    assert now.rows == made.rows - 1 == sum(batch.num_rows for batch in scan(now))
    assert not find_rows(home, "things", [SECRET]).tables[0].files


def test_tables_in_an_object_store_forget(
    tmp_path: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_commit, "LOCAL", "no scheme")  # as if the folder were a store
    home = Installation(tmp_path / "home", "", f"file://{tmp_path}/home/tables")
    for name in ("datasets", "quarantine", "predictions", "predictions/things/_jobs"):
        folder = tmp_path / "home" / "tables" / name  # a store has no folders to make
        (folder if name.endswith("_jobs") else folder / "things").mkdir(parents=True)
    source = tmp_path / "source" / "a.csv"
    lines = [f"{id},{n / 7:.3f},{'ab'[n % 2]}" for n, id in enumerate([*ids(0), SECRET])]
    source.write_text("\n".join(["id,x,y", *lines]) + "\n")
    made = ingest(pipeline, home)
    predict(home, "2026-01-05", [SECRET, "customer-1"], [SECRET])
    damaged = tmp_path / "home" / "tables" / "datasets" / "things" / "left.parquet"
    damaged.write_text(f"PAR1 {SECRET}")
    found = forget(home, "things", [SECRET], no_wait)
    assert [(each.rows, each.files) for each in found.tables] == [(1, 1), (0, 0), (1, 1), (1, 1)]
    assert open_snapshot(home, "things").rows == made.rows - 1
    assert sum(batch.num_rows for batch in scan(made)) == made.rows - 1
    assert rows_with_secret(home.home) == {}
