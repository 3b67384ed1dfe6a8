"""The training loop: the same for every family, run by every Ray Train worker."""

import math
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.train.torch
import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.training_spec import ModelSpec, TrainingSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.families.family import build_network
from millrace.models.families.objective import Objective, objective_of
from millrace.models.inference.features import Encoding
from millrace.models.training.batches import Batch, Shard, ShardBatches
from millrace.models.training.checkpoint import (
    TrainState,
    load_progress,
    load_weights,
    save_checkpoint,
)
from millrace.models.training.compression.compression import Compression
from millrace.models.training.compression.distillation import Teacher, Tutor
from millrace.models.training.shards import SnapshotShard

TRAIN: Split = "train"
VALIDATION: Split = "validation"
TEXT_ROWS = 64
"""Texts that are validated at a time."""


@dataclass(frozen=True)
class Table:
    """A small table, which every worker reads for itself.

    Attributes:
        snapshot: where the rows come from; a place that every worker can read.
        shares: shares of the splits.
    """

    snapshot: Snapshot
    shares: SplitSpec


@dataclass(frozen=True)
class TrainJob:
    """All that a worker needs to know.

    Attributes:
        model: family and params.
        training: how to train.
        encoding: rows to tensors.
        folder: where the user's modules are.
        train_rows: rows of the train split, over all workers.
        find_unused_parameters: whether a step may leave parameters without a gradient; the same
            for all ranks, or their collectives would not match.
        teacher: whom to learn from; None for the true answers alone.
        table: where to read the rows; None where they are streamed by Ray Data.
    """

    model: ModelSpec
    training: TrainingSpec
    encoding: Encoding
    folder: Path
    train_rows: int
    find_unused_parameters: bool = False
    teacher: Teacher | None = None
    table: Table | None = None


class _Learner:
    """Network, optimizer, schedule and precision, as one thing to step, save and load."""

    def __init__(self, job: TrainJob, objective: Objective, device: torch.device) -> None:
        spec, world_size = job.training, ray.train.get_context().get_world_size()
        self.device, self.objective = device, objective
        network = build_network(job.model, job.folder, job.encoding, objective)
        self.network = network.to(device)
        self.wrapped: nn.Module = ray.train.torch.prepare_model(
            self.network,
            parallel_strategy_kwargs={"find_unused_parameters": job.find_unused_parameters},
        )
        self.optimizer = AdamW(
            parameter_groups(self.network, spec.weight_decay), lr=spec.learning_rate
        )
        self.max_grad_norm = spec.max_grad_norm
        steps = -(-job.train_rows // (spec.batch_size * world_size))
        # Warm-up over a tenth and cosine to zero: Smith & Topin 2018, "Super-Convergence".
        self.schedule = OneCycleLR(
            self.optimizer,
            max_lr=spec.learning_rate,
            total_steps=steps * spec.epochs + 1,
            pct_start=0.1,
        )
        self.dtype = autocast_type(spec.precision, device)
        # fp16 gradients underflow without scaling; bf16 and fp32 have the range.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.tutor = Tutor(job.teacher, objective) if job.teacher else None
        self.compression = Compression(spec, self.network, steps)

    def autocast(self) -> Any:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def step(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from one batch; return its mean loss and the metric's sums, both detached."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast(), self.compression.forward():
            logits = self.wrapped(features)
        loss = self.objective.loss(logits.float(), target)
        if self.tutor is not None:
            loss = self.tutor.blended(loss, features, logits.float())
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.compression.after_step()
        if self.schedule.last_epoch < self.schedule.total_steps - 1:
            self.schedule.step()
        return loss.detach(), self.objective.sums(logits.detach().float(), target)

    def share_buffers(self) -> None:
        """Give every worker the running statistics of rank 0, which are the ones that are kept."""
        if torch.distributed.is_initialized():
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "compression": self.compression.state_dict(),
        }

    def restore(self, folder: Path) -> TrainState:
        load_weights(folder, self.network)
        states, state = load_progress(folder)
        self.optimizer.load_state_dict(states["optimizer"])
        self.schedule.load_state_dict(states["schedule"])
        self.scaler.load_state_dict(states["scaler"])
        self.compression.load_state_dict(states["compression"])
        return state


def train_loop(config: dict[str, Any]) -> None:
    """Train for the epochs that are left, reporting every epoch.

    Args:
        config: `{"job": TrainJob}`; Ray Train hands a dictionary to its workers.
    """
    job: TrainJob = config["job"]
    context = ray.train.get_context()
    rank, spec = context.get_world_rank(), job.training
    _seed(spec.seed + rank)
    device, objective = ray.train.torch.get_device(), objective_of(job.encoding)
    learner = _Learner(job, objective, device)
    state = TrainState()
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = learner.restore(Path(folder))
    shard = _shard(job, TRAIN, rank, context.get_world_size())
    batches = ShardBatches(shard, job.encoding, spec.batch_size, spec.seed, rank)
    validation = _rows_of_rank(job, rank, context.get_world_size())
    for epoch in range(state.epoch, spec.epochs):
        started = time.perf_counter()
        learner.compression.begin_epoch(epoch)
        learned = _learn(learner, _on(device, batches.epoch(epoch)))
        compressed = learner.compression.end_epoch()
        seconds = time.perf_counter() - started
        checked = _check(learner, _on(device, iter(validation)))
        state = TrainState(epoch + 1)
        metrics: dict[str, Any] = {
            "epoch": state.epoch,
            **_metrics(objective, "train", learned),
            **_metrics(objective, "validation", checked),
            "learning_rate": learner.schedule.get_last_lr()[0],
            "samples_per_second": float(learned[1]) / seconds,
            "epoch_seconds": seconds,
            **compressed,
        }
        if not math.isfinite(metrics["train_loss"]):
            # The same on every rank, and the same again from any checkpoint: told, not raised, so
            # that Ray Train does not try it max_failures times.
            ray.train.report(metrics)
            return
        _report(metrics, learner, state, spec, rank)


def _learn(learner: _Learner, batches: Iterator[Batch]) -> Tensor:
    """Learn from every batch; return `[loss × rows, rows, …]` summed over all workers."""
    learner.wrapped.train()
    sums = _Sums(learner)
    for features, target in batches:
        sums.add(*learner.step(features, target))
    return sums.over_workers()


@torch.no_grad()
def _check(learner: _Learner, batches: Iterator[Batch]) -> Tensor:
    """Measure every batch; return the same sums as `_learn`."""
    # The network itself, not DDP's wrapper: ranks hold different numbers of batches here.
    learner.network.eval()
    learner.share_buffers()
    sums = _Sums(learner)
    for features, target in batches:
        with learner.autocast(), learner.compression.forward():
            logits = learner.network(features).float()
        sums.add(learner.objective.loss(logits, target), learner.objective.sums(logits, target))
    return sums.over_workers()


class _Sums:
    """Loss and metric sums, kept on the device until the end of the epoch."""

    def __init__(self, learner: _Learner) -> None:
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


def _report(
    metrics: dict[str, Any], learner: _Learner, state: TrainState, spec: TrainingSpec, rank: int
) -> None:
    """Report from every rank, equally often; the checkpoint comes from rank 0."""
    due = state.epoch % spec.checkpoint_every == 0 or state.epoch == spec.epochs
    if rank != 0 or not due:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), learner.network, learner.state(), state)
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters to decay, and those that do better without: biases and norms."""
    parameters = [each for each in network.parameters() if each.requires_grad]
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": weight_decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]


def _shard(job: TrainJob, split: Split, rank: int = 0, world_size: int = 1) -> Shard:
    """Return one worker's part of the rows; Ray Data has split them already where it streams."""
    if job.table is None:
        shard: Shard = ray.train.get_dataset_shard(split)
        return shard
    return SnapshotShard(job.table.snapshot, job.table.shares, split, rank, world_size)


def _rows_of_rank(job: TrainJob, rank: int, world_size: int) -> list[Batch]:
    """Return every `world_size`-th batch of the validation split, so that no row is left out."""
    encoding, shard = job.encoding, _shard(job, VALIDATION)
    trimmed, rows = encoding.input.trimmed, 256 if encoding.tokenizer is None else TEXT_ROWS
    return [
        (torch.from_numpy(trimmed(encoding.encode(t))), torch.from_numpy(encoding.encode_target(t)))
        for number, t in enumerate(shard.iter_batches(batch_size=rows, batch_format="pyarrow"))
        if number % world_size == rank
    ]


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    for features, target in batches:
        yield features.to(device, non_blocking=True), target.to(device, non_blocking=True)


def autocast_type(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the autocast type, None for full precision."""
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bf16 else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
