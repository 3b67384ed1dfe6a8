"""Measures a variant: difference from PyTorch, metric with its interval, speed and memory."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from millrace.export.onnx.answer_split import answers_file, read_answers
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.graph_certificate import (
    GraphCandidate,
    GraphSpeed,
    GraphStage,
    largest_difference,
    relative_loss,
)
from millrace.export.onnx.metric_interval import interval
from millrace.export.tensorrt.engine import SUFFIX
from millrace.models.common.arrays import Array
from millrace.models.common.digest import digest_of
from millrace.models.common.hardware import this_fingerprint
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.families.objective import Objective
from millrace.models.inference.answers import ClassAnswers
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.row_batches import answer_rows, golden_requests, split_rows

PROBE, WHAT = "millrace.export.onnx.graph_probe", "its measurement"


def worst_class(objective: Objective, answers: Array, target: Array) -> tuple[str, float | None]:
    """Return the class with the lowest metric on its own rows, and that metric.

    In regression, which has no classes, return an empty name and None.
    """
    if not isinstance(objective, ClassAnswers):
        return "", None
    rows, right = objective.count_by_class(answers, target)
    present = np.flatnonzero(rows)
    shares = right[present] / rows[present]
    worst = int(shares.argmin())
    return str(objective.labels[present[worst]]), float(shares[worst])


@dataclass(frozen=True)
class Evidence:
    """The rows that every variant is measured on, and the trained model's outputs for them.

    Attributes:
        read: the model's input.
        golden: the golden batch, `[golden rows, width]`; texts are padded to the width.
        test: rows of the test split, `[test rows, width]`; texts are padded to the width.
        target: the test split's target, from `Encoding.encode_target`.
        golden_answers: the trained model's outputs for the golden batch.
        test_answers: the trained model's outputs for the test split.
        metric: the trained model's metric on the test split.
        batch_rows: number of rows of a full batch in serving.
        trained_as: name of the trained model's stage, such as `pytorch`.
    """

    read: ModelInput
    golden: Array
    test: Array
    target: Array
    golden_answers: Array
    test_answers: Array
    metric: float
    batch_rows: int
    trained_as: str = "pytorch"

    @property
    def stage(self) -> GraphStage:
        """The first stage of the certificate: the trained model."""
        return GraphStage(self.trained_as, 0.0, 0.0, self.metric, 0.0)

    def golden_batches(self) -> Iterator[tuple[Array, Array]]:
        """Yield the golden batch cut into requests, each with the trained model's outputs.

        The requests have the sizes that a release will send: full batches, small batches and single
        rows. Texts are padded to the longest text of their request. Texts are also yielded once
        more padded to the full width, and once more grouped by length, as serving batches them.
        """
        parts = golden_requests(len(self.golden), self.batch_rows)
        if self.read.padding is not None:
            yield self.golden, self.golden_answers
            parts += split_rows(self.golden, self.read)
        yield from ((self.read.trimmed(self.golden[p]), self.golden_answers[p]) for p in parts)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Numbers of rows of the requests that the golden batch is cut into, ascending."""
        return tuple(sorted({len(rows) for rows, _ in self.golden_batches()}))

    def full(self) -> Array:
        """Return the first full batch of the test split; texts are padded to its longest."""
        return self.read.trimmed(self.test[: self.batch_rows])


def gather_evidence(
    served: nn.Module,
    objective: Objective,
    read: ModelInput,
    test: Array,
    target: Array,
    *,
    golden_rows: int,
    batch_rows: int = 64,
    trained_as: str = "pytorch",
) -> Evidence:
    """Run the trained model on the test split, whose first rows are the golden batch.

    Args:
        served: trained module from `[rows, width]` to float32 `[rows, outputs]`.
        objective: training objective, which has the metric.
        read: the module's input.
        test: encoded rows of the test split, `[rows, width]`.
        target: the test split's target.
        golden_rows: number of rows of the golden batch.
        batch_rows: number of rows of a full batch in serving.
        trained_as: name of the trained model's stage.
    """
    served = served.eval().cpu()

    def answer(rows: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(served(torch.from_numpy(rows)).numpy())

    golden = test[:golden_rows]
    test_answers = answer_rows(answer, test, read)
    metric = objective.metric_of_answers(test_answers, target)
    golden_answers = answer_rows(answer, golden, read)
    known = (read, golden, test, target, golden_answers, test_answers, metric)
    return Evidence(*known, batch_rows, trained_as)


def measure(
    name: str,
    path: Path,
    evidence: Evidence,
    objective: Objective,
    threads: int,
    limits: Limits,
    *,
    tensorrt: Mapping[str, str] | None = None,
    gpu: bool = False,
) -> GraphCandidate:
    """Measure one exported file in a subprocess.

    Args:
        name: the candidate's name.
        path: the exported file.
        evidence: rows to measure on, with the trained model's outputs.
        objective: training objective, which has the metric.
        threads: threads that serving will use.
        limits: time and memory limits of the subprocess.
        tensorrt: options of onnxruntime's TensorRT provider; None: do not use TensorRT.
        gpu: whether to measure on a GPU, if there is one, as serving will run.

    Raises:
        WorkError: the file cannot be loaded or run, or the measurement exceeded the limits.
    """
    tied = tensorrt is not None or path.suffix == SUFFIX
    words = ["--threads", str(threads), "--batch-rows", str(evidence.batch_rows)]
    words += ["--gpu"] if gpu else []
    words += [] if tensorrt is None else ["--tensorrt", json.dumps(dict(tensorrt))]
    speed, serving_rows, golden = _run_probe(path, evidence, words, limits)
    answers = read_answers(path)
    metric = objective.metric_of_answers(answers, evidence.target)
    differences = [
        largest_difference(part, wanted)
        for part, (_, wanted) in zip(golden, evidence.golden_batches(), strict=True)
    ]
    low, high = interval(objective, answers, evidence.target)
    worst, worst_metric = worst_class(objective, answers, evidence.target)
    stage = GraphStage(
        name=name,
        golden_difference=max(differences),
        test_difference=largest_difference(answers, evidence.test_answers),
        metric=metric,
        metric_loss=relative_loss(metric, evidence.metric),
        metric_low=low,
        metric_high=high,
        worst_class=worst,
        worst_metric=worst_metric,
        ties=str(this_fingerprint() or "") if tied else "",
        serving_rows=serving_rows,
    )
    return GraphCandidate(
        name=name,
        path=path,
        digest=digest_of(path),
        size_bytes=path.stat().st_size,
        speed=speed,
        stage=stage,
    )


def measure_speed(
    path: Path, read: ModelInput, rows: Array, threads: int, limits: Limits, *, gpu: bool = False
) -> GraphSpeed:
    """Measure only the speed of a file, in a subprocess.

    Args:
        path: the ONNX file.
        read: the model's input.
        rows: a full batch.
        threads: threads that serving uses.
        limits: time and memory limits of the subprocess.
        gpu: whether to measure on a GPU, if there is one, as serving runs.

    Raises:
        WorkError: the file cannot be loaded or run, or the measurement exceeded the limits.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "asked.npz"
        requests = (read.trimmed(each) for each in (rows, rows[:1]))
        batch_file.write(asked, ({read.name: each} for each in requests))
        words: list[str | Path] = [path, asked, "--threads", str(threads)]
        words += ["--gpu"] if gpu else []
        output = run_in_subprocess(PROBE, words, limits, what=WHAT, retry_killed=False)
    return GraphSpeed(**json.loads(output)["speed"])


def _run_probe(
    path: Path, evidence: Evidence, options: Sequence[str], limits: Limits
) -> tuple[GraphSpeed, int, list[Array]]:
    """Write the answers to the test split; return what else the probe measured.

    Returns:
        The speed, the number of test rows in batches of serving's size, and the outputs for each
        golden request.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        files = [Path(name) / file for file in ("asked.npz", "answered.npz", "test.npy", "all.npy")]
        asked, answered, test, test_answered = files
        requests = [evidence.full(), *(rows for rows, _ in evidence.golden_batches())]
        batch_file.write(asked, ({evidence.read.name: rows} for rows in requests))
        np.save(test, evidence.test)
        if evidence.read.padding is not None:
            options = [*options, "--padding", str(evidence.read.padding)]
        words: list[str | Path] = [path, *files, *options]
        output = json.loads(run_in_subprocess(PROBE, words, limits, what=WHAT, retry_killed=False))
        answers = [batch["answers"] for batch in batch_file.read(answered)]
        test_answered.replace(answers_file(path))
    return GraphSpeed(**output["speed"]), output["serving_rows"], answers
