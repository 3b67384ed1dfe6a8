import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest, snapshots
from millrace.models.training.snapshot_shard import SnapshotShard

ROWS = 2030
SHARES = SplitSpec()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> snapshots.Snapshot:
    """A snapshot of 2 files with several row groups each."""
    folder = tmp_path_factory.mktemp("rows")
    lines = (f"{number},{number / 2},{'ab'[number % 2]}\n" for number in range(ROWS))
    (folder / "r.csv").write_text("id,x,y\n" + "".join(lines))
    values = {"name": "t", "dataset": {"source": "r.csv", "target": "y", "key": ["id"]}}
    installation = Installation(folder / "home", "", str(folder / "home" / "tables"))
    made = ingest.ingest(Pipeline.model_validate(values).with_folder(folder), installation)
    rows = DeltaTable(made.uri).to_pyarrow_table()
    uri = str(folder / "cut")
    groups = WriterProperties(max_row_group_size=128)
    for part in (rows.slice(0, 900), rows.slice(900)):
        write_deltalake(uri, part, mode="append", writer_properties=groups)
    cut = snapshots.Snapshot(
        *("t", uri, 1, made.digest, ROWS, made.schema, made.statistics, made.source)
    )
    counts = [len(file.row_groups) for file in snapshots.row_files(cut)]
    assert len(counts) == 2
    assert min(counts) > 4
    return cut


def taken_rows(
    shard: SnapshotShard, *, batch_rows: int = 8, seed: int | None = None
) -> list[float]:
    return pa.concat_tables(shard.read(batch_rows, seed))["x"].to_pylist()


def of_split(snapshot: snapshots.Snapshot, split: Split) -> list[float]:
    found = snapshots.scan(snapshot, split, SHARES, columns=["x"])
    return [row for batch in found for row in batch["x"].to_pylist()]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_worker_reads_every_row_of_the_split(
    snapshot: snapshots.Snapshot, split: Split
) -> None:
    shard = SnapshotShard(snapshot, SHARES, split)
    assert taken_rows(shard) == of_split(snapshot, split)
    assert shard.rows == len(of_split(snapshot, split))


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_workers_get_different_rows_and_equally_many(
    snapshot: snapshots.Snapshot, world_size: int
) -> None:
    shards = [SnapshotShard(snapshot, SHARES, "train", n, world_size) for n in range(world_size)]
    every = of_split(snapshot, "train")
    assert {shard.rows for shard in shards} == {len(every) // world_size}
    taken = [row for shard in shards for row in taken_rows(shard)]
    assert len(set(taken)) == len(taken) == len(every) // world_size * world_size
    assert set(taken) <= set(every)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_no_row_is_left_out_where_workers_need_not_be_even(
    snapshot: snapshots.Snapshot, world_size: int
) -> None:
    shards = (
        SnapshotShard(snapshot, SHARES, "validation", n, world_size, even=False)
        for n in range(world_size)
    )
    assert [row for each in shards for row in taken_rows(each)] == of_split(snapshot, "validation")


def test_more_workers_than_rows_leave_the_rows_to_the_last(snapshot: snapshots.Snapshot) -> None:
    shares = SplitSpec(train=0.899, test=0.1, validation=0.001)
    few = snapshots.count_rows(snapshot, "validation", shares)
    shards = [
        SnapshotShard(snapshot, shares, "validation", rank, few + 1, even=False)
        for rank in range(few + 1)
    ]
    assert [shard.rows for shard in shards] == [0] * few + [few]
    assert list(shards[0].read(8)) == []


@pytest.mark.parametrize("rows", [50, 1000])
def test_a_table_has_the_rows_that_were_asked_for(snapshot: snapshots.Snapshot, rows: int) -> None:
    sizes = [len(table) for table in SnapshotShard(snapshot, SHARES, "train").read(rows)]
    assert sizes[:-1] == [rows] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= rows


def test_it_reads_the_features_and_the_target(snapshot: snapshots.Snapshot) -> None:
    table = next(SnapshotShard(snapshot, SHARES, "train").read(5))
    assert table.column_names == ["x", "y"]


def test_row_groups_come_in_the_order_of_the_seed(snapshot: snapshots.Snapshot) -> None:
    shard = SnapshotShard(snapshot, SHARES, "train")
    once, again, other = (taken_rows(shard, seed=seed) for seed in (1, 1, 2))
    assert once == again != other
    assert sorted(once) == sorted(other) == sorted(of_split(snapshot, "train"))


def test_a_window_has_rows_of_distant_row_groups(snapshot: snapshots.Snapshot) -> None:
    shard = SnapshotShard(snapshot, SHARES, "train")
    first = next(shard.read(500, seed=3))["x"].to_numpy()
    assert np.ptp(first) > ROWS / 2 / 2


def test_another_process_can_read_it(snapshot: snapshots.Snapshot, tmp_path: Path) -> None:
    """Ray Train pickles it, before and after its files were looked at."""
    shard = SnapshotShard(snapshot, SHARES, "train")
    assert taken_rows(pickle.loads(pickle.dumps(shard))) == taken_rows(shard)
