"""How many workers train, and whether each of them has a GPU."""

import logging

import ray
import ray.train
import torch

from millrace.models.common.counted import counted
from millrace.models.common.hardware import peak_memory_mib
from millrace.models.config.training_spec import TrainingSpec

log = logging.getLogger("millrace")


def gpus_of_ray() -> int:
    """Return the number of GPUs of the connected Ray; 0 if torch was built without GPUs.

    It is 0, too, without a connection, which a check of a pipeline does not need. This process may
    be on a node without a GPU.
    """
    if not ray.is_initialized() or not (torch.version.cuda or torch.version.hip):
        return 0
    resources: dict[str, float] = dict(ray.cluster_resources())  # type: ignore[no-untyped-call]
    return int(resources.get("GPU", 0))


def choose_workers(training: TrainingSpec) -> TrainingSpec:
    """Set `num_workers`, if it is not set, to one worker for each GPU of the connected Ray.

    Workers train on GPUs only if there is one for each. A warning is logged if there is not.
    """
    gpus = gpus_of_ray()
    if training.num_workers is None:
        return training.model_copy(update={"num_workers": gpus or training.workers})
    if 0 < gpus < training.num_workers:
        log.warning(
            "training on CPUs: %s for %s; training.num_workers: %s would use %s",
            *(counted(gpus, "GPU"), counted(training.num_workers, "worker"), gpus),
            "it" if gpus == 1 else "them",
        )
    return training


def scaling_config(workers: int) -> ray.train.ScalingConfig:
    """Return the scaling of Ray Train: a GPU for each worker, if there are as many."""
    return ray.train.ScalingConfig(num_workers=workers, use_gpu=gpus_of_ray() >= workers)


def peak_memory_on(device: torch.device) -> float:
    """Return the peak memory of tensors on a GPU, or of this process on a CPU, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory_mib()
