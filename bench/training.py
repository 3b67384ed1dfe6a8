"""P5: the cost of Ray Train beside a hand-written loop with `torch.distributed`.

Both train the same network on the same snapshot, two workers with one thread each. Both are started
once and take turns of some epochs. The time of an epoch is measured in the workers, from its
beginning to the beginning of the next one: learning, validation, checkpoint, report. The first
epoch of a turn is thrown away, since the other side may still work in the background then.
"""

import os
import statistics
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.home import own_home, write_rows
from bench.measure import Rounds, Row, measure_rows
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec, TrainingSpec

if TYPE_CHECKING:
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.training.network_job import NetworkJob

TURNS = 13  # the first one is thrown away: each side reads its rows in it
EPOCHS = 3  # of a turn
WORKERS = 2
ROWS = 24_000

Stamps = Sequence[tuple[float, float]]


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure P5 in a home of its own."""
    with own_home() as installation:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the plain processes; Ray sets its workers'
        yield from measure_rows({"P5": partial(steady_epoch_time, installation)}, wanted)


def steady_epoch_time(installation: Installation, turns: int = TURNS) -> Row:
    """P5: steady epochs of Ray Train against those of plain DistributedDataParallel."""
    from bench import ddp
    from millrace.models.data import ingest
    from millrace.models.ray.cluster import connect_to_ray
    from millrace.models.training.trainer import fit

    home = installation.home
    line = write_pipeline(home, epochs=turns * EPOCHS + 1)
    snapshot = ingest.ingest(line, installation)
    stamps, plain_folder = home / "stamps", home / "plain"
    stamps.mkdir()
    plain_folder.mkdir()
    on_ray = _job(line, snapshot, _turns(stamps, turns, leads=True))
    plainly = _job(line, snapshot, _turns(stamps, turns, leads=False))
    with (
        connect_to_ray(installation.ray_address, WORKERS),
        ddp.run_training(ddp.PlainJob(plainly, snapshot, plain_folder)),
    ):
        result = fit(on_ray, home / "ray", "bench", lambda _: None)
    a, b = (turn_times(_read_stamps(stamps, side), turns)[1:] for side in ("ray", "plain"))
    ratio = Rounds(a, b).ratio
    learning = [epoch["epoch_seconds"] for epoch in result.history]
    return Row(
        name="P5",
        what=f"Ray Train ÷ plain DDP, an epoch of {statistics.median(b):.1f} s with validation, "
        "checkpoint and report",
        value=ratio,
        goal="≤ 1.025",
        holds=ratio <= 1.025,
        samples={
            "ray_epoch_s": a,
            "plain_epoch_s": b,
            "ray_learning_only_s": [statistics.mean(t) for t in _later_epochs(learning, turns)[1:]],
        },
    )


def turn_times(processes: Sequence[Stamps], turns: int, epochs: int = EPOCHS) -> list[float]:
    """Return for each turn the seconds of an epoch: the mean of all but the turn's first.

    Args:
        processes: for each process of a side, when it reached the beginning of each epoch, and
            when it went on; one beginning more than there are epochs in all turns.
        turns: number of turns.
        epochs: epochs of a turn.
    """
    whole = [
        max(
            after[0] - before[1]
            for before, after in (stamps[number : number + 2] for stamps in processes)
        )
        for number in range(turns * epochs)
    ]
    return [statistics.mean(times) for times in _later_epochs(whole, turns, epochs)]


def _later_epochs(
    times: Sequence[float], turns: int, epochs: int = EPOCHS
) -> list[Sequence[float]]:
    """Return the times of each turn without its first epoch."""
    return [times[turn * epochs + 1 : (turn + 1) * epochs] for turn in range(turns)]


def write_pipeline(home: Path, epochs: int) -> Pipeline:
    """Write the rows, and return the pipeline that trains on them."""
    write_rows(home / "rows.parquet", ROWS)
    return Pipeline(
        name="bench",
        dataset=DatasetSpec(source="rows.parquet", target="y", columns={"y": {"type": "category"}}),
        model=ModelSpec(family="stamped:StampedPerceptron", params={"width": 512, "layers": 3}),
        training=TrainingSpec(epochs=epochs, batch_size=128, num_workers=WORKERS, precision="fp32"),
    ).with_folder(home)


def _turns(folder: Path, turns: int, *, leads: bool) -> dict[str, object]:
    """Return the fields of `stamped.Turns` for Ray's side, which leads, or the plain side."""
    side, other = ("ray", "plain") if leads else ("plain", "ray")
    return {
        "folder": str(folder),
        "side": side,
        "other": other,
        "leads": leads,
        "workers": WORKERS,
        "epochs": EPOCHS,
        "turns": turns,
    }


def _job(line: Pipeline, snapshot: "Snapshot", turns: dict[str, object]) -> "NetworkJob":
    from millrace.models.data import snapshots
    from millrace.models.inference.features import fit_encoding
    from millrace.models.training.network_job import NetworkJob
    from millrace.models.training.table_job import Table

    shares = line.dataset.split
    encoding = fit_encoding(snapshot.schema, snapshots.scan(snapshot, "train", shares))
    return NetworkJob(
        model=line.model.model_copy(update={"params": {**line.model.params, "turns": turns}}),
        training=line.training,
        encoding=encoding,
        folder=Path(__file__).parent,
        train_rows=snapshots.count_rows(snapshot, "train", shares),
        table=Table(snapshot, shares),
    )


def _read_stamps(folder: Path, side: str) -> list[Stamps]:
    return [
        [(float(a), float(b)) for a, b in (line.split() for line in file.read_text().splitlines())]
        for file in folder.glob(f"{side}.*.stamps")
    ]
