"""D1, D2 and D3: the gain of distillation, pruning and quantization-aware training, on the digits.

Half of the rows are for training and half for measuring, so that one answer is about 0.1 %.
"""

import copy
import logging
import statistics
import zlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

from bench.digits import (
    BATCH,
    LABELS,
    Curve,
    Data,
    enlarge_channels,
    export,
    metric_of,
    train_network,
)
from bench.measure import Row, measure_in_folder, measure_in_turn, measure_rows
from bench.variants import ROUNDS, measure_session
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.conversions.int8_static import Ranges, quantize
from millrace.models.config.compression_spec import PruningSpec, QuantizationAwareSpec
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Served
from millrace.models.inference.model_input import FEATURES
from millrace.models.training.compression.distillation import Teacher
from millrace.tasks.reports.markdown import table

SEEDS = (0, 1, 2)
EPOCHS = (20, 40, 100)
"""Epochs of a student alone; with a teacher it has the last of these."""
TEACHER_EPOCHS = 30
"""With 20 the teacher still improves; with 25, 30 and 40 the students gain the same."""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    measures = {
        "D1": partial(measure_in_folder, distillation),
        "D2": partial(measure_in_folder, pruning),
        "D3": partial(measure_in_folder, quantization_aware),
    }
    yield from measure_rows(measures, wanted)


def distillation(folder: Path) -> Row:
    """D1: a perceptron with a ResNet as its teacher, against the same one alone, over three seeds.

    Two of five training labels were drawn at random; the labels for measuring are right. The one
    alone overfits the wrong labels in a long training, so its best number of epochs counts.
    """
    data = Data.halves().with_wrong_labels(share=0.4)
    torch.manual_seed(0)
    large = ResNet(64, len(LABELS), [1, 8, 8], channels=(16, 32), shift=1)
    served, _ = train_network(large, data, TrainingSpec(epochs=TEACHER_EPOCHS))
    graph = export(served, folder / "teacher.onnx")
    teacher = Teacher("teacher", graph.read_bytes(), temperature=1.0, weight=0.9)
    alone = {n: [train_student(data, seed, n)[1] for seed in SEEDS] for n in EPOCHS}
    students = [train_student(data, seed, EPOCHS[-1], teacher) for seed in SEEDS]
    taught = [accuracy for _, accuracy in students]
    best = [max(figures) for figures in zip(*alone.values(), strict=True)]
    small = export(students[0][0], folder / "student.onnx")
    size, known = small.stat().st_size / graph.stat().st_size, metric_of(graph, data)
    lines = [
        (seed, *(f"{figure:.4f}" for figure in figures))
        for seed, *figures in zip(SEEDS, *alone.values(), taught, strict=True)
    ]
    head = ("seed", *(f"alone, {epochs} epochs" for epochs in EPOCHS), "with the teacher")
    return Row(
        name="D1",
        what=f"accuracy that a student of {size:.2f} of the size gains from its teacher "
        f"({known:.4f}) over its best alone, two labels of five drawn at random, mean of "
        f"{len(SEEDS)} seeds",
        value=statistics.mean(taught) - statistics.mean(best),
        goal="> 0 for each seed, size ≤ 0.25",
        holds=size <= 0.25 and all(b > a for a, b in zip(best, taught, strict=True)),
        samples={"alone": best, "taught": taught, "teacher": [known]},
        details=table(head, lines),
    )


def train_student(
    data: Data, seed: int, epochs: int, teacher: Teacher | None = None
) -> tuple[Served, float]:
    """Train a perceptron with one hidden layer, and return it and its accuracy."""
    torch.manual_seed(seed)
    net = Perceptron(64, len(LABELS), hidden=(32,))
    spec = TrainingSpec(epochs=epochs)
    served, curve = train_network(net, data, spec, teacher=teacher, seed=seed)
    return served, curve[-1]["accuracy"]


def pruning(folder: Path) -> Row:
    """D2: a ResNet with half of its weights, or of its channels, pruned, against the dense one."""
    data = Data.halves()
    kinds = {
        "dense": None,
        "magnitude": PruningSpec(kind="magnitude", sparsity=0.5),
        "structured": PruningSpec(kind="structured", sparsity=0.5),
    }
    curves, files = {}, {}
    for name, spec in kinds.items():
        torch.manual_seed(0)
        net = ResNet(64, len(LABELS), [1, 8, 8], channels=(32, 64))
        served, curves[name] = train_network(net, data, TrainingSpec(epochs=20, pruning=spec))
        files[name] = export(served, folder / f"{name}.onnx")
    found = {name: metric_of(file, data) for name, file in files.items()}
    worst = min(found["magnitude"], found["structured"]) - found["dense"]
    lines = [
        (
            name,
            f"{share_of_zeros(file):.2f}",
            f"{file.stat().st_size / 1024:.0f} KiB",
            f"{len(zlib.compress(file.read_bytes())) / 1024:.0f} KiB",
            f"{found[name]:.4f}",
        )
        for name, file in files.items()
    ]
    head = ("", "zeros among the weights", "size", "zlib", "accuracy")
    size = files["structured"].stat().st_size / files["dense"].stat().st_size
    batch = data.test[0][:BATCH]
    structured, dense = (measure_session(files[name], batch) for name in ("structured", "dense"))
    faster = measure_in_turn(structured, dense, ROUNDS).ratio
    return Row(
        name="D2",
        what="accuracy at 50% sparsity − dense, the worse of magnitude and structured "
        f"(which has {size:.2f} of the size and {faster:.2f} of the rows/s)",
        value=worst,
        goal="≥ -0.01",
        holds=worst >= -0.01,
        samples={name: [accuracy] for name, accuracy in found.items()}
        | accuracies_by_epoch(curves),
        details=f"{table(head, lines)}\n\n{curves_table(curves)}",
    )


def quantization_aware(folder: Path) -> Row:
    """D3: a perceptron that naive int8 breaks, trained further with rounding and without.

    It is that of F1: each hidden layer has eight outlier channels, 300 times as large.
    """
    data = Data.halves()
    torch.manual_seed(0)
    dense = Perceptron(64, len(LABELS), hidden=(256,) * 3)
    before, _ = train_network(dense, data, TrainingSpec(epochs=8))
    enlarge_channels(before)
    net = before.network.net
    kinds = {"without": None, "with": QuantizationAwareSpec(start=0.25)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    lines: list[tuple[str, ...]] = []
    curves: dict[str, Curve] = {}
    broken = int8_metric(before, folder, data)
    for seed in SEEDS:
        for name, rounding in kinds.items():
            spec = TrainingSpec(epochs=12, quantization_aware=rounding)
            served, curves[name] = train_network(copy.deepcopy(net), data, spec, seed=seed)
            found[name].append(int8_metric(served, folder, data))
        figures = (*found["without"][-1], *found["with"][-1])
        lines.append((str(seed), *(f"{figure:.4f}" for figure in figures)))
    plain, aware = ([int8 for _, int8 in found[name]] for name in kinds)
    head = ("seed", "fp32 without", "int8 without", "fp32 with", "int8 with")
    return Row(
        name="D3",
        what="accuracy of static int8 that rounding in training gains, on outlier channels "
        f"(before: fp32 {broken[0]:.4f}, int8 {broken[1]:.4f}), mean of {len(SEEDS)} seeds",
        value=statistics.mean(aware) - statistics.mean(plain),
        goal="> 0 for each seed",
        holds=all(b > a for a, b in zip(plain, aware, strict=True)),
        samples={"int8_without": plain, "int8_with": aware, **accuracies_by_epoch(curves)},
        details=f"{table(head, lines)}\n\n{curves_table(curves)}",
    )


def int8_metric(served: Served, folder: Path, data: Data) -> tuple[float, float]:
    """Return the accuracy of the model as fp32 and as static int8."""
    fp32, calibration = export(served, folder / "fp32.onnx"), folder / "calibration.npz"
    batches = (data.train[0][start : start + BATCH] for start in range(0, 512, BATCH))
    batch_file.write(calibration, ({FEATURES: batch} for batch in batches))
    quantize(fp32, folder / "int8.onnx", calibration, Ranges())
    return metric_of(fp32, data), metric_of(folder / "int8.onnx", data)


def share_of_zeros(file: Path) -> float:
    """Return the share of zeros among the weights of a file's layers."""
    weights = [numpy_helper.to_array(each) for each in onnx.load(file).graph.initializer]
    layers = [each for each in weights if each.ndim > 1]
    return sum(int((each == 0).sum()) for each in layers) / sum(each.size for each in layers)


def accuracies_by_epoch(curves: Mapping[str, Curve]) -> dict[str, list[float]]:
    """Return the accuracy after each epoch, as samples of a row."""
    return {
        f"{name}_by_epoch": [entry["accuracy"] for entry in curve] for name, curve in curves.items()
    }


def curves_table(curves: Mapping[str, Curve]) -> str:
    """Return accuracies by epoch, side by side, as a Markdown table."""
    logged = [
        name for name in ("sparsity", "quantized") if any(name in c[0] for c in curves.values())
    ]
    lines = []
    for entries in zip(*curves.values(), strict=True):
        known = {name: value for entry in entries for name, value in entry.items()}
        figures = (*(f"{e['accuracy']:.4f}" for e in entries), *(f"{known[n]:.2f}" for n in logged))
        lines.append((str(int(known["epoch"])), *figures))
    return table(("epoch", *curves, *logged), lines)
