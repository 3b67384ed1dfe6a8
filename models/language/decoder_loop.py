"""The training of a decoder: a loop that is independent of Ray, and the job that runs it on Ray."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from millrace.models.common.arrays import Array, spread
from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.corpus.sequences import Sequences
from millrace.models.language.decoder_sizes import flops_of_token
from millrace.models.language.learner import Learner
from millrace.models.language.micro_batches import MicroBatch, micro_batch
from millrace.models.language.optimizers import moments_of, rate_at
from millrace.models.language.parallel import (
    Strategy,
    layers_of,
    require_splittable,
    strategy_of,
    workers,
)
from millrace.models.language.recipe import DecoderSpec, Recipe
from millrace.models.language.sequence_order import Course, Position, Step, share_of
from millrace.models.language.token_meter import Meter, perplexity
from millrace.models.planner.worker_memory import Load, memory_of
from millrace.models.training.network_learner import autocast_type
from millrace.models.training.train_job import Report, TrainJob, Write
from millrace.models.training.workers import peak_memory_on

EXPORTED = "model"
"""Folder in the last checkpoint with the trained decoder in the format of transformers."""
_MIB = 1024**2
VALIDATION_TOKENS = 65_536
"""Number of validation tokens, in evenly spread sequences, that a checkpoint is measured on."""


@dataclass(frozen=True)
class LanguageJob(TrainJob):
    """A `TrainJob` that trains a decoder.

    Attributes:
        decoder: spec of the decoder.
        recipe: training settings.
        train: sequences to train on.
        validation: held-out sequences for the validation perplexity.
        tokenizer: folder of the tokenizer's files, saved with the decoder; None for no tokenizer.
        trace: folder where every worker logs which sequences it trained on, one line of JSON per
            step; None for no log.
    """

    decoder: DecoderSpec
    recipe: Recipe
    train: Sequences
    validation: Sequences
    tokenizer: Path | None = None
    trace: Path | None = None

    unit = "step"
    loss = "loss"
    advice = (
        "lower training.learning_rate, raise training.warmup_ratio, or set training.max_grad_norm"
    )

    @property
    def num_workers(self) -> int:
        """Number of Ray Train workers."""
        return self.recipe.num_workers

    @property
    def max_failures(self) -> int:
        """How often training may restart after a worker failed."""
        return self.recipe.max_failures

    def require_trainable(self) -> None:
        """Build the decoder once, and check that it can be sharded or split over the workers.

        Raises:
            InputError: the decoder cannot be built, sharded or split.
        """
        decoder = build_decoder(self.decoder, self.recipe.seed)
        if self.recipe.parallel == "tp" and self.recipe.num_workers > 1:
            require_splittable(decoder, self.recipe.num_workers)
        if self.recipe.parallel == "fsdp":
            layers_of(decoder)

    def run(self, start: Path | None, report: Report) -> None:
        """Train on one worker of Ray Train."""
        import ray.train
        import ray.train.torch

        device = ray.train.torch.get_device()
        workers = ray.train.get_context().get_local_world_size()
        torch.set_num_threads(self.recipe.threads or threads_of(os.cpu_count() or 1, workers))
        dtype = autocast_type(self.recipe.precision, device)
        train(self, strategy_of(self.recipe.parallel, device, dtype), start, report)


def threads_of(cores: int, workers: int) -> int:
    """Return the number of torch threads of each worker: its share of the machine's cores.

    Ray's default is one thread per CPU that a worker requests, and a worker requests one CPU.
    """
    return max(1, cores // max(workers, 1))


def train(job: LanguageJob, strategy: Strategy, start: Path | None, report: Report) -> None:
    """Train from the beginning or from a checkpoint.

    Args:
        job: the training job.
        strategy: this worker's parallel strategy.
        start: folder of a checkpoint to resume from; None to start from the beginning.
        report: called every `log_steps` and with every checkpoint, by all workers at the same step.
    """
    base = peak_memory_on(strategy.device)
    learner = Learner(job.decoder, job.recipe, strategy)
    flops = flops_of_token(learner.cost, job.decoder.context)
    meter = Meter(strategy, flops, base, _estimated(job, learner))
    position = Position() if start is None else learner.load(start)
    recipe, began_at = job.recipe, position.step
    course = course_of(job, strategy.world_size)
    for step in course.remaining(position):
        meter.start()
        batches = _batches(job, strategy, step.positions)
        rate = rate_at(step.progress, recipe.learning_rate, recipe.warmup_ratio)
        stepped = learner.step(batches, rate)
        meter.add(stepped, sum(each.tokens for each in batches))
        _note(job, strategy, step)
        saves = _saves(recipe, step)
        if not saves and step.after.step % recipe.log_steps:
            continue
        metrics = _where(step, len(job.train)) | meter.collect() | {"learning_rate": rate}
        metrics["began_at"] = began_at
        if not math.isfinite(metrics["loss"]):
            # The loss is the same on every worker, and a restart would give the same loss again. So
            # the loss is reported and no error is raised: after an error Ray Train would restart
            # training max_failures times.
            report(metrics, None)
            return
        if not saves:
            report(metrics, None)
            continue
        metrics.update(_validated(learner, job, strategy))
        report(metrics, _writer(learner, job, step))


def course_of(job: LanguageJob, world_size: int) -> Course:
    """Return the steps of a run.

    Args:
        job: the training job.
        world_size: number of workers that train on different sequences (1 with `tp`).
    """
    recipe = job.recipe
    return Course(
        sequences=len(job.train),
        global_batch=recipe.batch_size * recipe.gradient_accumulation_steps * world_size,
        epochs=recipe.epochs,
        max_steps=recipe.max_steps,
        seed=recipe.seed,
    )


def _estimated(job: LanguageJob, learner: Learner) -> float:
    """Return the memory of a worker as estimated by `memory_of`, in bytes."""
    recipe = job.recipe
    load = Load(
        batch_size=recipe.batch_size,
        context=job.decoder.context,
        parallel=recipe.parallel,
        workers=workers(),
        half=learner.strategy.dtype is not None,
        checkpointing=recipe.gradient_checkpointing,
        moments=moments_of(learner.optimizers),
    )
    return memory_of(learner.shape, load).total


def _batches(job: LanguageJob, strategy: Strategy, positions: Array) -> list[MicroBatch]:
    """Return this worker's micro-batches of a step."""
    recipe = job.recipe
    mine = share_of(
        *(positions, recipe.batch_size, recipe.gradient_accumulation_steps),
        *(strategy.rank, strategy.world_size),
    )
    padding = job.decoder.pad_token_id or 0
    return [micro_batch([job.train.sequence(int(p)) for p in each], padding) for each in mine]


def _validation(job: LanguageJob, strategy: Strategy) -> Iterator[MicroBatch]:
    """Yield this worker's batches of validation sequences; every worker has equally many."""
    size, world_size = job.recipe.batch_size, strategy.world_size
    most = max(1, VALIDATION_TOKENS // job.decoder.context)
    positions = spread(len(job.validation), most)
    number = -(-len(positions) // (size * world_size))
    padding = job.decoder.pad_token_id or 0
    for each in share_of(positions, size, number, strategy.rank, world_size):
        yield micro_batch([job.validation.sequence(int(p)) for p in each], padding)


def _validated(learner: Learner, job: LanguageJob, strategy: Strategy) -> dict[str, float]:
    if not len(job.validation):
        return {}
    loss, answers = learner.measure(_validation(job, strategy))
    mean = loss / max(answers, 1.0)
    return {"validation_loss": mean, "perplexity": perplexity(mean)}


def _saves(recipe: Recipe, step: Step) -> bool:
    due = recipe.checkpoint_steps and step.after.step % recipe.checkpoint_steps == 0
    return bool(due) or step.ends_epoch or step.ends_run


def _writer(learner: Learner, job: LanguageJob, step: Step) -> Write:
    def write(folder: Path) -> None:
        learner.save(folder, step.after)
        if step.ends_run:
            learner.export(folder / EXPORTED, job.tokenizer, writes=_rank() == 0)

    return write


def _where(step: Step, sequences: int) -> dict[str, float]:
    after = step.after
    return {"step": after.step, "epoch": after.epoch + after.sequences / sequences}


def _note(job: LanguageJob, strategy: Strategy, step: Step) -> None:
    """Log which sequences this worker trained on in a step, if `job.trace` is a folder."""
    if job.trace is None:
        return
    recipe = job.recipe
    mine = share_of(
        *(step.positions, recipe.batch_size, recipe.gradient_accumulation_steps),
        *(strategy.rank, strategy.world_size),
    )
    line = {**asdict(step.after), "positions": [int(p) for each in mine for p in each]}
    job.trace.mkdir(parents=True, exist_ok=True)
    with (job.trace / f"rank-{_rank()}.jsonl").open("a") as opened:
        opened.write(json.dumps(line) + "\n")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
