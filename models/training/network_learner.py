"""A network in training, with its optimizer, schedule, precision and compression."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from millrace.models.common.arrays import Array
from millrace.models.config.training_spec import ModelSpec, TrainingSpec
from millrace.models.families.family import build_network
from millrace.models.families.network import Network
from millrace.models.families.objective import Objective
from millrace.models.inference.features import Encoding
from millrace.models.training.checkpoint import TrainState, load_progress, load_weights
from millrace.models.training.compression.compression import Compression
from millrace.models.training.compression.distillation import Teacher, Tutor

WARM_UP = 0.1 + 1e-9
"""Share of the steps with a rising learning rate.

With 0.1 and ten steps, the phase has length 0, by which torch 2.13 divides.
"""


@dataclass(frozen=True)
class NetworkRecipe:
    """The network to train, and the training settings.

    Attributes:
        model: family and params of the model.
        training: training settings.
        encoding: encoding of rows to tensors.
        folder: folder with the user's Python modules.
        train_rows: number of rows in the train split, over all workers.
        find_unused_parameters: whether a step may leave parameters without a gradient. It must be
            the same for all ranks, because their collectives must match.
        teacher: teacher for distillation; None to learn from the targets only.
    """

    model: ModelSpec
    training: TrainingSpec
    encoding: Encoding
    folder: Path
    train_rows: int
    find_unused_parameters: bool = False
    teacher: Teacher | None = None


class NetworkLearner:
    """Network, optimizer, schedule and precision in one object that trains, saves and restores."""

    def __init__(self, recipe: NetworkRecipe, objective: Objective, device: torch.device) -> None:
        spec, world_size = recipe.training, ray.train.get_context().get_world_size()
        self.device, self.objective = device, objective
        network = build_network(recipe.model, recipe.folder, recipe.encoding, objective)
        self.network = network.to(device)
        self.wrapped: nn.Module = ray.train.torch.prepare_model(
            self.network,
            parallel_strategy_kwargs={
                "find_unused_parameters": recipe.find_unused_parameters,
                "forward_sync_buffers": has_changing_buffers(self.network),
            },
        )
        self.optimizer = AdamW(
            parameter_groups(self.network, spec.weight_decay),
            lr=spec.peak_rate,
            # one kernel for all of a step; it knows no complex parameters
            fused=all(each.is_floating_point() for each in self.network.parameters()) or None,
        )
        self.max_grad_norm = spec.max_grad_norm
        steps = -(-recipe.train_rows // (spec.batch_rows * world_size))
        # Warm-up, then cosine to zero: Smith & Topin 2018, "Super-Convergence".
        self.schedule = OneCycleLR(
            self.optimizer,
            max_lr=spec.peak_rate,
            total_steps=steps * spec.epochs + 1,
            pct_start=WARM_UP,
        )
        self.dtype = autocast_type(spec.precision, device)
        # fp16 gradients underflow without scaling; bf16 and fp32 have the range.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.tutor = Tutor(recipe.teacher, objective) if recipe.teacher else None
        self.compression = Compression(spec, self.network, steps)

    def autocast(self) -> Any:
        """Return the autocast context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def step(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Train on one batch; return its mean loss and the sums for the metric, both detached."""
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
        """Broadcast rank 0's running statistics, which checkpoints contain, to all workers."""
        if torch.distributed.is_initialized():
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs beside the weights."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "compression": self.compression.state_dict(),
        }

    def restore(self, folder: Path) -> TrainState:
        """Load a checkpoint, and return the position of its run."""
        load_weights(folder, self.network)
        states, state = load_progress(folder)
        self.optimizer.load_state_dict(states["optimizer"])
        self.schedule.load_state_dict(states["schedule"])
        self.scaler.load_state_dict(states["scaler"])
        self.compression.load_state_dict(states["compression"])
        return state


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay; biases and norms without it."""
    parameters = [each for each in network.parameters() if each.requires_grad]
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": weight_decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]


def has_changing_buffers(network: Network) -> bool:
    """Return whether a step may change a buffer of the network, for example a running mean.

    DDP broadcasts the buffers before each step, which takes a fifth of a small network's epoch. The
    mean and the scale of the columns are the same on all workers, and stay so.
    """
    return any(True for _ in network.net.buffers())


def autocast_type(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the autocast type; None for full precision."""
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bf16 else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def leaves_parameters_unused(network: Network, example: Array) -> bool:
    """Return whether some parameter gets no gradient from a forward and backward pass.

    DDP's `find_unused_parameters=True` for every network would be safe too. But DDP then walks the
    autograd graph in every step, which takes a tenth of a small network's epoch. The pass runs on a
    copy of the network, and the random state is restored, so the test changes nothing. If the pass
    fails, the answer is True.

    Args:
        network: a network on the CPU.
        example: two rows of input.
    """
    try:
        trial = copy.deepcopy(network)
        trial.train()
        with torch.random.fork_rng(devices=[]):
            trial(torch.from_numpy(example)).sum().backward()
    except Exception:  # a user's module may raise anything; training itself will report the error
        return True
    parameters = [each for each in trial.parameters() if each.requires_grad]
    return any(each.grad is None for each in parameters)
