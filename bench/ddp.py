"""Training without Ray, as a user would write it: DistributedDataParallel in two processes.

Network, optimizer, schedule, rows, batch size, validation and checkpoint are those of Millrace's
training loop. Each process has one thread.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from millrace.models.data.snapshots import Snapshot, scan
from millrace.models.families.family import build_network
from millrace.models.families.objective import Objective, objective_of
from millrace.models.training.checkpoint import TrainState, save_checkpoint
from millrace.models.training.network_job import NetworkJob

SPLITS = ("train", "validation")

Rows = tuple[Tensor, Tensor]
"""Features and targets."""


@dataclass(frozen=True)
class PlainJob:
    """The job of the processes.

    Attributes:
        job: the job of Ray Train's workers.
        snapshot: the rows.
        folder: takes the checkpoint, which each epoch replaces.
    """

    job: NetworkJob
    snapshot: Snapshot
    folder: Path


@contextmanager
def run_training(plain: PlainJob) -> Iterator[None]:
    """Train for all epochs while the block runs, and wait for the end of both."""
    workers = plain.job.training.workers
    with tempfile.TemporaryDirectory() as folder:
        arguments = (workers, f"file://{folder}/meeting", plain)
        processes = spawn(  # type: ignore[no-untyped-call]
            _worker, args=arguments, nprocs=workers, join=False
        )
        try:
            yield
            while not processes.join():
                pass
        finally:
            for process in processes.processes:
                process.kill()


def _worker(rank: int, workers: int, meeting: str, plain: PlainJob) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=workers)
    try:
        _train_epochs(rank, workers, plain)
    finally:
        torch.distributed.destroy_process_group()


def _train_epochs(rank: int, workers: int, plain: PlainJob) -> None:
    job, spec = plain.job, plain.job.training
    torch.manual_seed(spec.seed + rank)
    objective = objective_of(job.encoding)
    network = build_network(job.model, job.folder, job.encoding, objective)
    ddp = DistributedDataParallel(network)
    optimizer = AdamW(ddp.parameters(), lr=spec.peak_rate, weight_decay=spec.weight_decay)
    steps = -(-job.train_rows // (spec.batch_rows * workers))
    schedule = OneCycleLR(
        optimizer, spec.peak_rate, total_steps=steps * spec.epochs + 1, pct_start=0.1
    )
    train_rows, validation_rows = (_load_share(plain, split, rank) for split in SPLITS)
    for epoch in range(spec.epochs):
        ddp.train()  # type: ignore[no-untyped-call]
        sums = torch.zeros(3, dtype=torch.float64)
        for features, target in _shuffle(train_rows, spec.batch_rows, epoch):
            optimizer.zero_grad(set_to_none=True)
            logits = ddp(features)
            loss = objective.loss(logits, target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if schedule.last_epoch < schedule.total_steps - 1:
                schedule.step()
            sums += _sums(objective, loss.detach(), logits.detach(), target)
        torch.distributed.all_reduce(sums)
        _validate(network, objective, validation_rows)
        if rank == 0:
            states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            save_checkpoint(plain.folder, network, states, TrainState(epoch + 1))
        torch.distributed.barrier()


@torch.no_grad()
def _validate(network: torch.nn.Module, objective: Objective, rows: Rows) -> None:
    network.eval()
    for buffer in network.buffers():
        torch.distributed.broadcast(buffer, src=0)
    sums = torch.zeros(3, dtype=torch.float64)
    for features, target in zip(*(torch.split(part, 256) for part in rows), strict=True):
        logits = network(features)
        sums += _sums(objective, objective.loss(logits, target), logits, target)
    torch.distributed.all_reduce(sums)


def _sums(objective: Objective, loss: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    sums = objective.sums(logits, target)
    return torch.cat([(loss.double() * sums[0]).reshape(1), sums])


def _shuffle(rows: Rows, batch_size: int, epoch: int) -> Iterator[Rows]:
    order = torch.randperm(len(rows[1]), generator=torch.Generator().manual_seed(epoch))
    for batch in torch.split(order, batch_size):
        yield rows[0][batch], rows[1][batch]


def _load_share(plain: PlainJob, split: str, rank: int) -> Rows:
    """Return this process's equal share of a split, as tensors in memory."""
    encoding, schema = plain.job.encoding, plain.snapshot.schema
    columns = (*schema.features, schema.target)
    batches = list(scan(plain.snapshot, split, columns=columns))  # type: ignore[arg-type]
    features = np.concatenate([encoding.encode(batch) for batch in batches])
    target = np.concatenate([encoding.encode_target(batch) for batch in batches])
    workers = plain.job.training.workers
    share = slice(rank * (len(target) // workers), (rank + 1) * (len(target) // workers))
    return torch.from_numpy(features[share]), torch.from_numpy(target[share])
