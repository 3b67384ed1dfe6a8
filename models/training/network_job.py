"""The training of a network: one loop for all families, which every Ray Train worker runs."""

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.train.torch
import torch
import torch.distributed
from torch import Tensor

from millrace.models.families.objective import Objective, objective_of
from millrace.models.training.batches import Batch, ShardBatches
from millrace.models.training.checkpoint import TrainState, save_checkpoint
from millrace.models.training.network_learner import NetworkLearner, NetworkRecipe
from millrace.models.training.table_job import TRAIN, VALIDATION, Table, TableJob
from millrace.models.training.train_job import Report, Write
from millrace.models.training.workers import peak_memory_on

VALIDATION_ROWS, VALIDATION_TEXTS = 256, 64
"""Number of rows in a validation batch; of numbers at least as many as in a training batch."""


@dataclass(frozen=True)
class NetworkJob(NetworkRecipe, TableJob):
    """The training of a network; a `TrainJob`.

    Attributes:
        table: the rows to train and validate on.
    """

    table: Table = field(kw_only=True)

    unit = "epoch"
    loss = "train_loss"
    advice = "lower training.learning_rate, or look for extreme values in the features"

    @property
    def num_workers(self) -> int:
        """Number of Ray Train workers."""
        return self.training.workers

    @property
    def max_failures(self) -> int:
        """How often training may restart after a worker failed."""
        return self.training.max_failures

    def run(self, start: Path | None, report: Report) -> None:
        """Train for the remaining epochs, and report each of them."""
        _train(self, start, report)


def _train(job: NetworkJob, start: Path | None, report: Report) -> None:
    context = ray.train.get_context()
    rank, spec = context.get_world_rank(), job.training
    _seed(spec.seed + rank)
    device, objective = ray.train.torch.get_device(), objective_of(job.encoding)
    # cuDNN's attention makes a plan for each shape, and batches of texts have many shapes.
    torch.backends.cuda.enable_cudnn_sdp(False)
    learner = NetworkLearner(job, objective, device)
    state = TrainState() if start is None else learner.restore(start)
    began_at = state.epoch
    world_size, encoding = context.get_world_size(), job.encoding
    shard = job.table.shard(TRAIN, rank, world_size)
    batches = ShardBatches(shard, encoding, spec.batch_rows, spec.seed, rank)
    is_text = encoding.tokenizer is not None
    rows = VALIDATION_TEXTS if is_text else max(VALIDATION_ROWS, spec.batch_rows)
    # Of the validation split no row may be left out, and no rank waits for another.
    validation = ShardBatches(
        job.table.shard(VALIDATION, rank, world_size, even=False), encoding, rows
    )
    for epoch in range(state.epoch, spec.epochs):
        started, waited = time.perf_counter(), batches.waited
        learner.compression.begin_epoch(epoch)
        learned = _learn(learner, _on(device, batches.epoch(epoch)))
        compressed = learner.compression.end_epoch()
        seconds = time.perf_counter() - started
        checked = _check(learner, _on(device, validation.in_order()))
        state = TrainState(epoch + 1)
        metrics: dict[str, Any] = {
            "epoch": state.epoch,
            **_metrics(objective, "train", learned),
            **_metrics(objective, "validation", checked),
            "learning_rate": learner.schedule.get_last_lr()[0],
            "samples_per_second": float(learned[1]) / seconds,
            "epoch_seconds": seconds,
            "data_wait_share": (batches.waited - waited) / seconds,
            "worker_memory_mib": peak_memory_on(device),
            **compressed,
            "began_at": began_at,
        }
        if not math.isfinite(metrics["train_loss"]):
            # Every rank has the same loss, and would have it again after a restart. So the loss is
            # reported and no error is raised: Ray Train would restart training max_failures times.
            report(metrics, None)
            return
        due = state.epoch % spec.checkpoint_every == 0 or state.epoch == spec.epochs
        # Only rank 0 writes the checkpoint, because all ranks have the same weights.
        report(metrics, _writer(learner, state) if due and rank == 0 else None)


def _writer(learner: NetworkLearner, state: TrainState) -> Write:
    def write(folder: Path) -> None:
        save_checkpoint(folder, learner.network, learner.state(), state)

    return write


def _learn(learner: NetworkLearner, batches: Iterator[Batch]) -> Tensor:
    """Train on every batch; return `[loss × rows, rows, …]` summed over all workers.

    The values from `rows` on are those of `Objective.sums`.
    """
    learner.wrapped.train()
    sums = _Sums(learner)
    for features, target in batches:
        sums.add(*learner.step(features, target))
    return sums.over_workers()


@torch.no_grad()
def _check(learner: NetworkLearner, batches: Iterator[Batch]) -> Tensor:
    """Measure every batch; return the same sums as `_learn`."""
    # The network itself, not DDP's wrapper, because ranks have different numbers of batches here.
    learner.network.eval()
    learner.share_buffers()
    sums = _Sums(learner)
    for features, target in batches:
        with learner.autocast(), learner.compression.forward():
            logits = learner.network(features).float()
        sums.add(learner.objective.loss(logits, target), learner.objective.sums(logits, target))
    return sums.over_workers()


class _Sums:
    """Sums of loss and metric, on the device until the end of the epoch."""

    def __init__(self, learner: NetworkLearner) -> None:
        outputs = torch.zeros(1, learner.objective.outputs, device=learner.device)
        target = torch.zeros(1, dtype=torch.long, device=learner.device)
        empty = torch.zeros_like(learner.objective.sums(outputs, target))
        self.total = torch.cat([torch.zeros(1, dtype=empty.dtype, device=empty.device), empty])

    def add(self, loss: Tensor, sums: Tensor) -> None:
        self.total += torch.cat([(loss.double() * sums[0]).reshape(1), sums])

    def over_workers(self) -> Tensor:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.total)
        return self.total


def _metrics(objective: Objective, split: str, sums: Tensor) -> dict[str, float]:
    return {
        f"{split}_loss": float(sums[0] / sums[1].clamp(min=1)),
        f"{split}_{objective.metric}": objective.metric_of(sums[1:]),
    }


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    for features, target in batches:
        yield features.to(device, non_blocking=True), target.to(device, non_blocking=True)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
