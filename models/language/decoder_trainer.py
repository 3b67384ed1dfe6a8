"""Ray Train around the training of a decoder: workers, restarts and the result."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train.torch import TorchTrainer

from millrace.models.common.errors import WorkError
from millrace.models.common.interrupts import interruptible
from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.decoder_loop import EXPORTED, LanguageJob, Write, train
from millrace.models.language.parallel import layers_of, require_splittable, strategy_of
from millrace.models.language.recipe import Recipe
from millrace.models.language.run_events import RunEvent, RunHistory
from millrace.models.training.history import failure_of
from millrace.models.training.loop import autocast_type
from millrace.models.training.progress import TrainEvent, told


@dataclass(frozen=True)
class LanguageResult:
    """What a training run left.

    Attributes:
        checkpoint: folder of the trained decoder, as transformers writes it, with its tokenizer.
        history: the metrics of every report, in order; of steps that were done again only the last.
        recoveries: for each time that workers failed, the steps that were done already: training
            went on from the checkpoint of that step; 0 is from the start.
    """

    checkpoint: Path
    history: tuple[dict[str, Any], ...]
    recoveries: tuple[int, ...]


def fit_language(
    job: LanguageJob, storage: Path, name: str, on_event: Callable[[RunEvent], None]
) -> LanguageResult:
    """Train a decoder with the Ray that is connected.

    Args:
        job: what the workers run.
        storage: folder that all nodes see; checkpoints go to `storage/name`.
        name: name of this run.
        on_event: called in a thread of this process for every report and failure.

    Raises:
        InputError: the decoder cannot be built, or not spread in this way.
        WorkError: the workers failed more often than `max_failures`, or the loss is not a number.
    """
    history, recipe = RunHistory(), job.recipe
    _require_trainable(job)
    if job.trace is not None:
        job.trace.mkdir(parents=True, exist_ok=True)

    def keep(event: TrainEvent) -> None:
        for known in history.add(event):
            on_event(known)

    with told(keep) as callback:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"job": job},
            scaling_config=_scaling(recipe),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=ray.train.FailureConfig(max_failures=recipe.max_failures),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
                callbacks=[callback],  # type: ignore[list-item]
            ),
        )
        try:
            with interruptible():
                result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            causes = getattr(error, "worker_failures", {}).values()
            raise failure_of(error, causes, recipe.max_failures) from error
    if (fault := history.fault()) is not None:
        raise fault
    if result.checkpoint is None:
        raise WorkError("training ended without a checkpoint", hint="see the Ray Train log above")
    return LanguageResult(
        checkpoint=Path(result.checkpoint.path) / EXPORTED,
        history=history.reports,
        recoveries=tuple(history.recoveries),
    )


def train_worker(config: dict[str, Any]) -> None:
    """Train on one worker of Ray Train.

    Args:
        config: `{"job": LanguageJob}`; Ray Train hands a dictionary to its workers.
    """
    job: LanguageJob = config["job"]
    context, device = ray.train.get_context(), ray.train.torch.get_device()
    torch.set_num_threads(
        job.recipe.threads or threads_of(os.cpu_count() or 1, context.get_local_world_size())
    )
    dtype = autocast_type(job.recipe.precision, device)
    strategy = strategy_of(job.recipe.parallel, device, dtype)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        train(job, strategy, None, _report)
        return
    with checkpoint.as_directory() as folder:
        train(job, strategy, Path(folder), _report)


def _report(metrics: dict[str, Any], write: Write | None) -> None:
    """Report from every worker, equally often; each brings its part of a checkpoint."""
    if write is None:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def threads_of(cores: int, workers: int) -> int:
    """Return the torch threads of each of a machine's workers: their share of its cores.

    Ray would give each as many as the CPUs it asks for, which is one.
    """
    return max(1, cores // max(workers, 1))


def _require_trainable(job: LanguageJob) -> None:
    """Build the decoder once here: a misfit is told before any worker is started.

    Raises:
        InputError: as `build_decoder` and `require_splittable` do.
    """
    decoder = build_decoder(job.decoder, job.recipe.seed)
    if job.recipe.parallel == "tp" and job.recipe.num_workers > 1:
        require_splittable(decoder, job.recipe.num_workers)
    if job.recipe.parallel == "fsdp":
        layers_of(decoder)


def _scaling(recipe: Recipe) -> ray.train.ScalingConfig:
    resources: dict[str, float] = dict(ray.cluster_resources())  # type: ignore[no-untyped-call]
    gpus = int(resources.get("GPU", 0)) if torch.cuda.is_available() else 0
    return ray.train.ScalingConfig(
        num_workers=recipe.num_workers, use_gpu=gpus >= recipe.num_workers
    )
