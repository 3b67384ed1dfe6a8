"""P4 and F1: the gain of int8, on models that were trained, and on one that it breaks.

Every variant of `export/onnx/graph_variants.py` is made and measured as in a pipeline. Then the
best int8 variant and fp32 take turns in full batches, with one thread each.
"""

import logging
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from bench.digits import (
    BATCH,
    LABELS,
    READ,
    Data,
    Part,
    enlarge_channels,
    split_digits,
    train_network,
)
from bench.measure import (
    Row,
    measure_in_folder,
    measure_in_turn,
    measure_rows,
    time_calls,
)
from millrace.export.onnx.graph_certificate import GraphCandidate, GraphCertificate
from millrace.export.onnx.graph_variants import FP32, GRAPH_VARIANTS
from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.arrays import Array
from millrace.models.config.export_spec import ExportLimits, ExportSpec
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.data.schema import Category
from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Served
from millrace.models.families.objective import Classification
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.onnx_session import OnnxSession
from millrace.tasks.kinds.graph.graph_report import candidates_table

ROUNDS = 9
SECONDS = 0.6


@dataclass(frozen=True)
class Comparison:
    """The best int8 variant that passed, against fp32.

    Attributes:
        ratio: of their rows per second, median of the rounds.
        best: the int8 variant.
        fp32: the fp32 variant.
        variants: all of them.
        samples: rows per second, round by round.
        table: every variant, in Markdown.
    """

    ratio: float
    best: GraphCandidate
    fp32: GraphCandidate
    variants: tuple[GraphCandidate, ...]
    samples: dict[str, Sequence[float]]
    table: str


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    logging.disable(logging.WARNING)
    measures = {
        "P4": partial(measure_in_folder, resnet_on_digits),
        "F1": partial(measure_in_folder, with_outliers),
    }
    yield from measure_rows(measures, wanted)


def resnet_on_digits(folder: Path) -> Row:
    """P4: a ResNet trained on digits, its best int8 variant against fp32."""
    net = ResNet(64, len(LABELS), [1, 8, 8], channels=(64, 128), blocks=2)
    return p4_row("P4", "ResNet on digits", compare_on_digits(net, folder))


def with_outliers(folder: Path) -> Row:
    """F1: the same for a perceptron with outlier channels, which naive int8 breaks."""
    net = Perceptron(64, len(LABELS), hidden=(1024, 1024, 1024))
    found = compare_on_digits(net, folder, change=enlarge_channels)
    naive = next(each for each in found.variants if each.name == "onnx-int8-static")
    lost, loss = loss_of(naive), loss_of(found.best)
    variant = found.best.name.removeprefix("onnx-")
    return Row(
        name="F1",
        what=f"outlier channels, {variant} ÷ fp32 rows/s, loss {loss:.2%}, naive {lost:.2%}",
        value=found.ratio,
        goal="≥ 1.3, loss ≤ 1%, naive > 5%",
        holds=found.ratio >= 1.3 and loss <= 0.01 and lost > 0.05,
        samples=found.samples,
        details=found.table,
    )


def compare_on_digits(
    net: nn.Module, folder: Path, change: Callable[[Served], None] = lambda _: None
) -> Comparison:
    """Train a network on 1,257 digits, change it, and compare its variants on 360 digits."""
    train, validation, test = split_digits(1257, 1437)
    served, _ = train_network(net, Data(train, test), TrainingSpec(epochs=8), warm_up=0.3)
    change(served)
    return compare_variants(
        *(served, LABELS, READ, train[0][:512], validation, test),
        folder=folder,
        batch=BATCH,
        dataset="digits",
    )


def compare_variants(
    served: Served,
    labels: tuple[Category, ...],
    read: ModelInput,
    calibration: Array,
    validation: Part,
    test: Part,
    *,
    folder: Path,
    batch: int,
    dataset: str,
    limits: ExportLimits | None = None,
) -> Comparison:
    """Make every variant of a model, and compare the speed of the best int8 one with fp32.

    Args:
        served: the trained model.
        labels: of its classes.
        read: its input.
        calibration: encoded rows, `[rows, width]`.
        validation: encoded rows and targets, for the search.
        test: encoded rows and targets, for the measurement.
        folder: takes the files.
        batch: rows of a batch.
        dataset: its name.
        limits: of the export; None for the usual ones.
    """
    objective = Classification(labels)

    def evidence(part: Part) -> Evidence:
        return gather_evidence(*(served, objective, read, *part), golden_rows=32, batch_rows=batch)

    exporter = Exporter(
        served=served,
        objective=objective,
        read=read,
        calibration=lambda: (
            read.trimmed(calibration[n : n + batch]) for n in range(0, len(calibration), batch)
        ),
        validation=lambda: evidence(validation),
        folder=folder,
        threads=1,
        spec=ExportSpec(
            candidates=GRAPH_VARIANTS,
            objective="throughput",
            limits=limits or ExportLimits(),
        ),
    )
    measured = evidence(test)
    variants = tuple(exporter.candidates(measured))
    fp32 = next(each for each in variants if each.name == FP32)
    int8 = [each for each in variants if "int8" in each.name and each.passed]
    if not int8:
        raise RuntimeError("; ".join(f"{each.name}: {each.reason}" for each in variants))
    best = max(int8, key=lambda each: each.speed.rows_per_second if each.speed else 0.0)
    full = measured.full()
    a, b = (measure_session(each.path or Path(), full) for each in (best, fp32))
    rounds = measure_in_turn(a, b, ROUNDS)
    certificate = GraphCertificate(
        model="bench",
        candidate=best.name,
        digest=best.digest,
        dataset=dataset,
        dataset_version=0,
        dataset_digest="",
        passed=True,
        test_rows=len(measured.target),
        golden_rows=len(measured.golden),
        metric_name="accuracy",
        max_metric_loss=exporter.spec.max_metric_loss,
    )
    samples = {"int8_rows_per_s": rounds.a, "fp32_rows_per_s": rounds.b}
    table = candidates_table(variants, certificate)
    return Comparison(rounds.ratio, best, fp32, variants, samples, table)


def measure_session(file: Path, batch: Array) -> Callable[[], float]:
    """Return a function that measures the rows per second of a file, in full batches."""
    session = OnnxSession(file)
    return lambda: (
        len(batch) / statistics.median(time_calls(lambda: session.answer(batch), SECONDS))
    )


def loss_of(candidate: GraphCandidate) -> float:
    """Return the relative loss of the metric; NaN if it is not known."""
    loss = candidate.stage.metric_loss if candidate.stage else None
    return float("nan") if loss is None else loss


def p4_row(name: str, what: str, found: Comparison) -> Row:
    """Return the row of a model whose best int8 variant is to be faster, smaller and as good.

    Args:
        name: of the row.
        what: the model and its data, in words.
        found: its variants.
    """
    size, loss = found.best.size_bytes / found.fp32.size_bytes, loss_of(found.best)
    variant = found.best.name.removeprefix("onnx-")
    return Row(
        name=name,
        what=f"{what}, {variant} ÷ fp32 rows/s, {size:.2f} of the size, loss {loss:.2%}",
        value=found.ratio,
        goal="≥ 1.6, loss ≤ 1%, size ≤ 0.35",
        holds=found.ratio >= 1.6 and size <= 0.35 and loss <= 0.01,
        samples=found.samples,
        details=found.table,
    )
