from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest, snapshots
from millrace.models.inference.features import fit_encoding
from millrace.models.training import table_job
from millrace.models.training.table_job import SnapshotShard, is_small

ROWS = 203
SHARES = SplitSpec()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> snapshots.Snapshot:
    folder = tmp_path_factory.mktemp("rows")
    lines = (f"{number},{number / 2},{'ab'[number % 2]}\n" for number in range(ROWS))
    (folder / "r.csv").write_text("id,x,y\n" + "".join(lines))
    values = {"name": "t", "dataset": {"source": "r.csv", "target": "y", "key": ["id"]}}
    installation = Installation(folder / "home", "", str(folder / "home" / "tables"))
    return ingest.ingest(Pipeline.model_validate(values).with_folder(folder), installation)


def taken_rows(
    snapshot: snapshots.Snapshot, split: Split, rank: int = 0, world_size: int = 1, **more: Any
) -> list[float]:
    shard = SnapshotShard(snapshot, SHARES, split, rank, world_size)
    read = shard.iter_batches(**{"batch_size": 8, **more})
    return pa.concat_tables(read)["x"].to_pylist()


def of_split(snapshot: snapshots.Snapshot, split: Split) -> list[float]:
    found = snapshots.scan(snapshot, split, SHARES, columns=["x"])
    return [row for batch in found for row in batch["x"].to_pylist()]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_worker_reads_every_row_of_the_split(
    snapshot: snapshots.Snapshot, split: Split
) -> None:
    assert taken_rows(snapshot, split) == of_split(snapshot, split)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_workers_get_different_rows_and_equally_many(
    snapshot: snapshots.Snapshot, world_size: int
) -> None:
    parts = [taken_rows(snapshot, "train", rank, world_size) for rank in range(world_size)]
    every = of_split(snapshot, "train")
    assert {len(part) for part in parts} == {len(every) // world_size}
    taken = [row for part in parts for row in part]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(every)


def test_a_batch_has_the_rows_that_were_asked_for(snapshot: snapshots.Snapshot) -> None:
    shard = SnapshotShard(snapshot, SHARES, "train")
    rows = [len(table) for table in shard.iter_batches(batch_size=50)]
    assert rows[:-1] == [50] * (len(rows) - 1)
    assert 0 < rows[-1] <= 50


def test_it_reads_the_features_and_the_target(snapshot: snapshots.Snapshot) -> None:
    table = next(SnapshotShard(snapshot, SHARES, "train").iter_batches(batch_size=5))
    assert table.column_names == ["x", "y"]


def test_a_buffer_shuffles_by_its_seed(snapshot: snapshots.Snapshot) -> None:
    once, again, other = (
        taken_rows(snapshot, "train", local_shuffle_buffer_size=16, local_shuffle_seed=seed)
        for seed in (1, 1, 2)
    )
    assert once == again != other
    assert sorted(once) == sorted(other) == sorted(of_split(snapshot, "train"))


@pytest.mark.parametrize(("rows", "small"), [(100, True), (101, False)])
def test_a_table_is_small_while_its_tensors_fit(
    snapshot: snapshots.Snapshot, rows: int, small: bool
) -> None:
    encoding = fit_encoding(snapshot.schema, snapshots.scan(snapshot))
    assert is_small(snapshot, encoding, rows, 100 * encoding.input.blank(1).nbytes) is small


@pytest.mark.parametrize("small", [True, False])
def test_a_table_is_small_while_its_files_can_be_read_whole(
    snapshot: snapshots.Snapshot, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    encoding = fit_encoding(snapshot.schema, snapshots.scan(snapshot))
    stored = sum(Path(each).stat().st_size for each in snapshots.files(snapshot))
    monkeypatch.setattr(table_job, "MOST_BYTES", stored if small else stored - 1)
    assert is_small(snapshot, encoding, 1, 1_000_000) is small
