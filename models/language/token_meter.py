"""What training is measured by, between two reports."""

import math
import resource
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from millrace.models.language.flops import mfu
from millrace.models.language.learner import Stepped
from millrace.models.language.parallel import Strategy, workers

_KIB = 1024


@dataclass
class Meter:
    """Sums over the steps since the last report.

    Attributes:
        strategy: over whom to sum.
        flops: operations for each token.
        base: memory that was taken before the decoder was built, in bytes.
        estimated: memory that it should take by the formula, in bytes.
    """

    strategy: Strategy
    flops: float
    base: int
    estimated: float
    _loss: list[Tensor] = field(default_factory=list)
    _answers: list[Tensor] = field(default_factory=list)
    _tokens: int = 0
    _seconds: float = 0.0
    _norm: float = 0.0
    _started: float = 0.0

    def start(self) -> None:
        """Begin to count a step's time."""
        self._started = time.perf_counter()

    def add(self, stepped: Stepped, tokens: int) -> None:
        """Count a step.

        Args:
            stepped: what it gave.
            tokens: of this worker.
        """
        self._loss.append(stepped.loss)
        self._answers.append(stepped.answers)
        self._tokens += tokens
        self._norm = stepped.norm  # its float waits for the device, so the time is the step's
        self._seconds += time.perf_counter() - self._started

    def collect(self) -> dict[str, float]:
        """Return the metrics and begin anew; all workers call it.

        `loss` is the mean over the answers, `tokens_per_second` over all workers, `mfu` only of a
        device with a stated peak. `peak_memory_mib` is that of the worker with most, without what
        it had before; on a CPU it is the process's.
        """
        device = self.strategy.device
        loss = torch.stack([each.double() for each in self._loss]).sum()
        mine = torch.stack([loss, torch.tensor(float(self._tokens), device=device).double()])
        total, tokens = self.strategy.summed(mine).tolist()
        answers = float(torch.stack(self._answers).sum())
        speed = tokens / max(self._seconds, 1e-9)
        metrics = {
            "loss": total / max(answers, 1.0),
            "tokens": tokens,
            "tokens_per_second": speed,
            "grad_norm": self._norm,
            "peak_memory_mib": _most(peak_memory(device) - self.base, device) / _KIB**2,
            "estimated_memory_mib": self.estimated / _KIB**2,
        }
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        used = mfu(self.flops, speed, name, workers())
        self._loss, self._answers, self._tokens, self._seconds = [], [], 0, 0.0
        return metrics if used is None else {**metrics, "mfu": used}


def peak_memory(device: torch.device) -> int:
    """Return the most that tensors took on a GPU, or this process on the machine, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def perplexity(loss: float) -> float:
    """Return e to the mean loss; infinite where that is more than a float holds."""
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
