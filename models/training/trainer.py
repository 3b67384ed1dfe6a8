"""Ray Train around the training loop: workers, shards, restarts and the result."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.data
import ray.train
import torch
from ray.data.expressions import col
from ray.train.torch import TorchTrainer

from millrace.models.common.arrays import Array
from millrace.models.common.errors import WorkError
from millrace.models.common.interrupts import interruptible
from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.data import snapshots
from millrace.models.data.schema import BUCKET
from millrace.models.data.split import split_bounds
from millrace.models.families.network import Network
from millrace.models.training.batches import CACHE_BYTES
from millrace.models.training.history import History, failure_of
from millrace.models.training.loop import TRAIN, VALIDATION, Table, TrainJob, train_loop
from millrace.models.training.progress import TrainEvent, told
from millrace.models.training.shards import is_small

_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class TrainResult:
    """What a training run left.

    Attributes:
        checkpoint: folder of the last checkpoint.
        history: the metrics of every epoch, in order, an epoch that was done again only once.
        recoveries: for each time that workers failed, the epochs that were done already: training
            went on from the checkpoint of that epoch; 0 is from the start.
    """

    checkpoint: Path
    history: tuple[dict[str, float], ...]
    recoveries: tuple[int, ...]


def fit(
    job: TrainJob,
    snapshot: snapshots.Snapshot,
    shares: SplitSpec,
    storage: Path,
    name: str,
    on_event: Callable[[TrainEvent], None],
) -> TrainResult:
    """Train on a snapshot with the Ray that is connected.

    Args:
        job: what the workers run.
        snapshot: where the rows come from.
        shares: shares of the splits.
        storage: folder that all nodes see; checkpoints go to `storage/name`.
        name: name of this run.
        on_event: called in a thread of this process for every epoch and failure.

    Raises:
        WorkError: the workers failed more often than `training.max_failures`.
    """
    history = History()
    workers = job.training.num_workers
    datasets: dict[str, Any] = {}
    if is_small(snapshot, job.encoding, -(-job.train_rows // workers), CACHE_BYTES):
        job = replace(job, table=Table(snapshot, shares))
    else:
        datasets = {
            TRAIN: _rows(snapshot, TRAIN, shares, workers),
            VALIDATION: _rows(snapshot, VALIDATION, shares, 1),
        }

    def keep(event: TrainEvent) -> None:
        for known in history.add(event):
            on_event(known)

    with told(keep) as callback:
        trainer = TorchTrainer(
            train_loop,
            train_loop_config={"job": job},
            scaling_config=_scaling(job.training),
            datasets=datasets,
            dataset_config=_data_config(),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=ray.train.FailureConfig(max_failures=job.training.max_failures),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
                callbacks=[callback],  # type: ignore[list-item]
            ),
        )
        try:
            with interruptible():
                result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            causes = getattr(error, "worker_failures", {}).values()
            raise failure_of(error, causes, job.training.max_failures) from error
    if (fault := history.fault()) is not None:
        raise fault
    if result.checkpoint is None:
        raise WorkError("training ended without a checkpoint", hint="see the Ray Train log above")
    return TrainResult(
        checkpoint=Path(result.checkpoint.path),
        history=history.epochs,
        recoveries=tuple(history.recoveries),
    )


def _rows(
    snapshot: snapshots.Snapshot, split: Split, shares: SplitSpec, workers: int
) -> ray.data.Dataset:
    low, high = split_bounds(shares)[split]
    # Left to itself Ray Data makes hundreds of blocks, each read by a process that takes longer
    # to start than a small table takes to read.
    blocks = max(workers, snapshot.rows // _BLOCK_ROWS)
    rows = ray.data.read_parquet(snapshots.files(snapshot), override_num_blocks=blocks)
    rows = rows.filter(expr=(col(BUCKET) >= low) & (col(BUCKET) < high))
    return rows.select_columns([*snapshot.schema.features, snapshot.schema.target])


def _data_config() -> ray.train.DataConfig:
    options = ray.data.ExecutionOptions()
    options.preserve_order = True  # the same rows to the same rank in every run with this seed
    return ray.train.DataConfig(datasets_to_split=[TRAIN], execution_options=options)


def _scaling(spec: TrainingSpec) -> ray.train.ScalingConfig:
    gpus = int(_resources().get("GPU", 0)) if torch.cuda.is_available() else 0
    return ray.train.ScalingConfig(num_workers=spec.num_workers, use_gpu=gpus >= spec.num_workers)


def _resources() -> dict[str, float]:
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def leaves_parameters_unused(network: Network, example: Array) -> bool:
    """Return whether some parameter gets no gradient from a forward and backward pass.

    Telling DDP always (`find_unused_parameters=True`) would be safe too, but it then walks the
    graph in every step: a tenth of the time of a small network's epoch. A copy of the network is
    tried, and the random state is put back, so that trying changes nothing. Of one that cannot be
    tried it is taken to be so.

    Args:
        network: on the CPU.
        example: two rows as it takes them.
    """
    try:
        trial = copy.deepcopy(network)
        trial.train()
        with torch.random.fork_rng(devices=[]):
            trial(torch.from_numpy(example)).sum().backward()
    except Exception:  # whatever a module of the user's raises: training itself will tell
        return True
    parameters = [each for each in trial.parameters() if each.requires_grad]
    return any(each.grad is None for each in parameters)
