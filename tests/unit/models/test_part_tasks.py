"""A snapshot is the same, to the last bit, whoever runs the tasks that read its source."""

import json
import pickle
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.errors import InputError
from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as module
from millrace.models.data import part_tasks, parts, snapshots
from millrace.models.data.cluster_tasks import ClusterTasks
from millrace.models.data.part_store import read_manifest
from millrace.models.data.part_tasks import LocalTasks, Task, TaskRunner
from millrace.models.data.read_source import Progress
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources import arrow_source

SCHEMA = pa.schema([("x", pa.float64()), ("c", pa.string()), ("y", pa.string())])
FILES, ROWS = 5, 400
HERE = LocalTasks(threads=2)


def make_rows(seed: int) -> list[dict[str, Any]]:
    """Return rows with nulls, of which some are bad, and with categories that no other file has."""
    chance = random.Random(seed)
    return [
        {
            "x": None if chance.random() < 0.05 else chance.uniform(-5, 5),
            "c": chance.choice(["p", "q", f"only{seed}"]),
            "y": chance.choice(["no", "yes"]),
        }
        for _ in range(ROWS)
    ]


def write_csv(folder: Path) -> str:
    for number in range(FILES):
        lines = [
            ",".join("" if v is None else str(v) for v in r.values()) for r in make_rows(number)
        ]
        text = "\n".join([",".join(SCHEMA.names), *lines, "one,cell,too,many"])
        (folder / f"{number}.csv").write_text(text + "\n")
    return "*.csv"


def write_jsonl(folder: Path) -> str:
    for number in range(FILES):
        lines = [json.dumps(row) for row in make_rows(number)]
        (folder / f"{number}.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    return "*.jsonl"


def write_parquet(folder: Path) -> str:
    for number in range(FILES):
        table = pa.Table.from_pylist(make_rows(number), SCHEMA)
        pq.write_table(table, folder / f"{number}.parquet")
    return "*.parquet"


def write_large_file(folder: Path) -> str:
    rows = [row for number in range(FILES) for row in make_rows(number)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table, folder / "large.parquet", row_group_size=70)
    return "large.parquet"


def write_delta(folder: Path) -> str:
    for number in range(FILES):
        table = pa.Table.from_pylist(make_rows(number), SCHEMA)
        write_deltalake(str(folder / "rows"), table, mode="append")
    return "rows"


WRITERS = [write_csv, write_jsonl, write_parquet, write_large_file, write_delta]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LARGE_BYTES", 2000)
    monkeypatch.setattr(arrow_source, "PIECE_BYTES", 8000)


class Elsewhere:
    """Runs every task as if in another process, the last first, and after an attempt that is lost.

    Attributes:
        tasks: number of tasks that it ran.
    """

    def __init__(self) -> None:
        self.tasks = 0

    def __call__(self, tasks: Sequence[Task[Any]], on_rows: Progress) -> list[Any]:
        self.tasks += len(tasks)
        results = []
        for task in reversed(tasks):
            sent = pickle.dumps(task)
            pickle.loads(sent).run(on_rows, 1)
            results.append(pickle.dumps(pickle.loads(sent).run(lambda _: None, 1)))
        return [pickle.loads(each) for each in reversed(results)]


@pytest.fixture
def ingest_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, TaskRunner], Snapshot]:
    """Ingest a source by some runner, each into a home of its own."""

    def ingest(source: str, run_tasks: TaskRunner) -> Snapshot:
        home = tmp_path / type(run_tasks).__name__
        installation = Installation(home, "", str(home / "tables"))
        monkeypatch.setattr(module, "task_runner", lambda _: nullcontext(run_tasks))
        values = {
            "name": "t",
            "dataset": {"source": source, "target": "y", "max_quarantine": 0.5},
        }
        made = module.ingest(Pipeline.model_validate(values).with_folder(tmp_path), installation)
        assert list(installation.staging.iterdir()) == []
        listed = DeltaTable(made.uri).file_uris()
        assert len(listed) == len(list(Path(made.uri).glob("*.parquet")))
        return made

    return ingest


@pytest.mark.parametrize("write", WRITERS)
def test_a_snapshot_is_the_same_whoever_reads_it(
    tmp_path: Path,
    write: Callable[[Path], str],
    ingest_with: Callable[[str, TaskRunner], Snapshot],
) -> None:
    source, elsewhere = write(tmp_path), Elsewhere()
    here, there = ingest_with(source, HERE), ingest_with(source, elsewhere)
    assert elsewhere.tasks >= FILES
    assert (here.digest, here.rows, here.schema) == (there.digest, there.rows, there.schema)
    assert here.statistics == there.statistics
    assert read_manifest(here) == read_manifest(there)
    assert here.quarantined == there.quarantined > FILES
    assert here.reasons == there.reasons
    assert content(here) == content(there)
    assert quarantine_of(here) == quarantine_of(there)
    column = next(each for each in here.schema.columns if each.name == "c")
    assert column.categories == tuple(sorted(["p", "q", *(f"only{n}" for n in range(FILES))]))


def test_a_large_file_is_read_in_pieces_and_then_kept(
    tmp_path: Path, ingest_with: Callable[[str, TaskRunner], Snapshot]
) -> None:
    source = write_large_file(tmp_path)
    first = ingest_with(source, Elsewhere())
    assert [file["path"] for file in read_manifest(first)["files"]] == [str(tmp_path / source)]
    elsewhere = Elsewhere()
    again = ingest_with(source, elsewhere)
    assert (again.created, again.digest, elsewhere.tasks) == (False, first.digest, 0)


def test_an_error_of_a_task_ends_the_ingestion(
    tmp_path: Path, ingest_with: Callable[[str, TaskRunner], Snapshot]
) -> None:
    source = write_parquet(tmp_path)
    (tmp_path / "3.parquet").write_bytes(b"PAR1 no parquet PAR1" * 200)
    with pytest.raises(InputError, match=r"3\.parquet is not a Parquet file"):
        ingest_with(source, Elsewhere())


def test_tasks_run_here_without_a_cluster(tmp_path: Path) -> None:
    installation = Installation(tmp_path, "", str(tmp_path / "tables"), ray_address=EMBEDDED)
    with module.task_runner(installation) as run_tasks:
        assert isinstance(run_tasks, LocalTasks)


def test_tasks_run_on_the_cluster_where_there_is_one(tmp_path: Path) -> None:
    installation = Installation(tmp_path, "", str(tmp_path / "tables"), ray_address="head:6379")
    with module.task_runner(installation) as run_tasks:
        assert isinstance(run_tasks, ClusterTasks)


@pytest.mark.parametrize(("gib", "threads"), [(0.01, 1), (0.4, 1), (0.6, 2), (1, 4), (4, 8)])
def test_as_many_threads_run_as_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, gib: float, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert LocalTasks.within(int(gib * 2**30)).threads == threads


def test_the_default_is_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(part_tasks, "memory_bytes", lambda: 4 * 2**30)
    assert LocalTasks.within(None).threads == 4


def content(snapshot: Snapshot) -> list[Any]:
    """Return the rows in the order of the table."""
    return [row for batch in snapshots.scan(snapshot) for row in batch.to_pylist()]


def quarantine_of(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    table = DeltaTable(snapshot.uri.replace("datasets", "quarantine")).to_pyarrow_table()
    columns = [table[name].to_pylist() for name in ("reason", "row", "ingest")]
    return sorted(zip(*columns, strict=True))
