"""Measures a form of the model against PyTorch: difference, metric, size and latency."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from export.candidate import Candidate, gate
from export.certificate import Stage, largest_difference, relative_loss
from models.arrays import Array
from models.digest import digest_of
from models.objective import Objective
from models.onnx_session import OnnxSession
from models.pipeline import ExportSpec

Answer = Callable[[Array], Array]
_CHUNK = 1024


@dataclass(frozen=True)
class Evidence:
    """What every form is measured on, and what PyTorch answered.

    Attributes:
        golden: float32 `[golden rows, raw_width]`.
        test: float32 `[test rows, raw_width]`.
        target: the test split's target, as `Encoding.encode_target` gives it.
        golden_answers: PyTorch's answers to the golden batch.
        test_answers: PyTorch's answers to the test split.
        metric: PyTorch's metric on the test split.
    """

    golden: Array
    test: Array
    target: Array
    golden_answers: Array
    test_answers: Array
    metric: float

    @property
    def stage(self) -> Stage:
        """PyTorch as the first stage of the certificate."""
        return Stage("pytorch", 0.0, 0.0, self.metric, 0.0)


def gather_evidence(
    served: nn.Module,
    objective: Objective,
    test: Array,
    target: Array,
    golden_rows: int,
) -> Evidence:
    """Let PyTorch answer the test split and its first rows, the golden batch."""
    served = served.eval().cpu()

    def answer(rows: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(served(torch.from_numpy(rows)).numpy())

    golden = test[:golden_rows]
    test_answers = in_chunks(answer, test)
    metric = objective.metric_of_answers(test_answers, target)
    return Evidence(golden, test, target, answer(golden), test_answers, metric)


def measure(
    name: str, path: Path, evidence: Evidence, objective: Objective, spec: ExportSpec, threads: int
) -> Candidate:
    """Measure one exported file and hold it against the gates.

    Args:
        name: the candidate's name.
        path: the file.
        evidence: what PyTorch answered.
        objective: gives the metric.
        spec: gives the gates.
        threads: threads that serving will use.
    """
    session = OnnxSession(path, threads)
    answers = in_chunks(session.answer, evidence.test)
    metric = objective.metric_of_answers(answers, evidence.target)
    golden = session.answer(evidence.golden)
    stage = Stage(
        name=name,
        golden_difference=largest_difference(golden, evidence.golden_answers),
        test_difference=largest_difference(answers, evidence.test_answers),
        metric=metric,
        metric_loss=relative_loss(metric, evidence.metric),
    )
    return Candidate(
        name=name,
        path=path,
        digest=digest_of(path),
        size_bytes=path.stat().st_size,
        latency_ms=_latency_ms(session, evidence.golden[:1]),
        stage=stage,
        reason=gate(stage, spec),
    )


def in_chunks(answer: Answer, rows: Array) -> Array:
    """Answer `[rows, …]` in pieces of bounded size."""
    return np.concatenate([answer(piece) for piece in _pieces(rows)])


def _pieces(rows: Array) -> Iterator[Array]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]


def _latency_ms(session: OnnxSession, row: Array) -> float:
    """Return the median time of one row in milliseconds, after a warm-up."""
    seconds = []
    for _ in range(220):
        started = time.perf_counter()
        session.answer(row)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[20:]) * 1000
