"""The metrics of training between two reports: loss, speed, gradient norm and memory."""

import math
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from millrace.models.language.decoder_sizes import mfu
from millrace.models.language.learner import Stepped
from millrace.models.language.parallel import Strategy, workers
from millrace.models.training.workers import peak_memory_on


@dataclass
class Meter:
    """Sums over the steps since the last report.

    Attributes:
        strategy: parallel strategy, which sums over the workers.
        flops: floating-point operations per token.
        base: peak memory before the decoder was built, in MiB.
        estimated: memory of a worker as estimated by `memory_of`, in bytes.
    """

    strategy: Strategy
    flops: float
    base: float
    estimated: float
    _loss: list[Tensor] = field(default_factory=list)
    _answers: list[Tensor] = field(default_factory=list)
    _tokens: int = 0
    _seconds: float = 0.0
    _norm: float = 0.0
    _started: float = 0.0

    def start(self) -> None:
        """Start the clock of a step."""
        self._started = time.perf_counter()

    def add(self, stepped: Stepped, tokens: int) -> None:
        """Add a step to the sums, and stop its clock.

        Args:
            stepped: results of the step.
            tokens: number of this worker's tokens in the step.
        """
        self._loss.append(stepped.loss)
        self._answers.append(stepped.answers)
        self._tokens += tokens
        # The norm is a float, so the device has finished the step and the time is complete.
        self._norm = stepped.norm
        self._seconds += time.perf_counter() - self._started

    def collect(self) -> dict[str, float]:
        """Return the metrics and reset the sums; all workers call this.

        `loss` is the mean over the predicted tokens that count, and `tokens_per_second` is over all
        workers. `mfu` is returned only if the device's peak is known. `peak_memory_mib` is the
        largest peak of all workers, minus the memory before the decoder was built. On a CPU the
        memory of the process is measured.
        """
        device = self.strategy.device
        loss = torch.stack([each.double() for each in self._loss]).sum()
        mine = torch.stack([loss, torch.tensor(float(self._tokens), device=device).double()])
        total, tokens = self.strategy.summed(mine).tolist()
        answers = float(torch.stack(self._answers).sum())
        speed = tokens / max(self._seconds, 1e-9)
        peak = _most(peak_memory_on(device), device)
        metrics = {
            "loss": total / max(answers, 1.0),
            "tokens": tokens,
            "tokens_per_second": speed,
            "grad_norm": self._norm,
            "peak_memory_mib": peak - self.base,
            "worker_memory_mib": peak,
            "estimated_memory_mib": self.estimated / 2**20,
        }
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        used = mfu(self.flops, speed, name, workers())
        self._loss, self._answers, self._tokens, self._seconds = [], [], 0, 0.0
        return metrics if used is None else {**metrics, "mfu": used}


def perplexity(loss: float) -> float:
    """Return e to the mean loss; infinite if the result overflows a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _most(value: float, device: torch.device) -> float:
    if not dist.is_initialized():
        return value
    most = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)
