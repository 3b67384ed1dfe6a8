"""D1, D2 and D3: what distillation, pruning and quantization-aware training give, on the digits.

Half of the rows to learn from and half to measure on, so that one answer is a tenth of a percent.
"""

import copy
import logging
import statistics
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

from bench.catalog import attempt
from bench.compared import ROUNDS, SECONDS
from bench.forms import BATCH, LABELS, Data, enlarge
from bench.lessons import Curve, exported, halves, metric_of, trained, with_wrong_labels
from bench.rounds import in_turn, ratio, timed
from bench.row import Row
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.conversions.int8_static import Ranges, quantize
from millrace.models.config.compression_spec import PruningSpec, QuantizationAwareSpec
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Served
from millrace.models.inference.model_input import FEATURES
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.training.compression.distillation import Teacher
from millrace.tasks.reports.markdown import table

SEEDS = (0, 1, 2)
EPOCHS = (20, 40, 100)
"""Of a student; with a teacher it takes the last."""
TEACHER_EPOCHS = 30
"""With 20 it still learns; from 25, 30 and 40 the students gain alike."""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure what is wanted, each in a folder of its own."""
    measures: dict[str, Callable[[Path], Row]] = {
        "D1": distillation,
        "D2": pruning,
        "D3": quantization_aware,
    }
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for name, measure_row in measures.items():
        if name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                yield attempt(name, partial(measure_row, Path(folder)))


def distillation(folder: Path) -> Row:
    """D1: a perceptron that learns from a ResNet, against the same one alone, over three seeds.

    Two labels of five that both learn from were drawn at random; those measured on are right. The
    one alone overfits them when it learns for long, so the best of its numbers of epochs counts.
    """
    data = with_wrong_labels(halves(), share=0.4)
    torch.manual_seed(0)
    large = ResNet(64, len(LABELS), [1, 8, 8], channels=(16, 32), shift=1)
    graph = exported(
        trained(large, data, TrainingSpec(epochs=TEACHER_EPOCHS))[0], folder / "teacher.onnx"
    )
    teacher = Teacher("teacher", graph.read_bytes(), temperature=1.0, weight=0.9)
    alone = {epochs: [student(data, seed, epochs)[1] for seed in SEEDS] for epochs in EPOCHS}
    students = [student(data, seed, EPOCHS[-1], teacher) for seed in SEEDS]
    taught = [accuracy for _, accuracy in students]
    best = [max(figures) for figures in zip(*alone.values(), strict=True)]
    small = exported(students[0][0], folder / "student.onnx")
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


def student(
    data: Data, seed: int, epochs: int, teacher: Teacher | None = None
) -> tuple[Served, float]:
    """Train a perceptron of one hidden layer, and return it and its accuracy."""
    torch.manual_seed(seed)
    net = Perceptron(64, len(LABELS), hidden=(32,))
    served, curve = trained(net, data, TrainingSpec(epochs=epochs), teacher=teacher, seed=seed)
    return served, curve[-1]["accuracy"]


def pruning(folder: Path) -> Row:
    """D2: a ResNet that is pruned by half, its weights or its channels, against the dense one."""
    data = halves()
    kinds = {
        "dense": None,
        "magnitude": PruningSpec(kind="magnitude", sparsity=0.5),
        "structured": PruningSpec(kind="structured", sparsity=0.5),
    }
    curves, files = {}, {}
    for name, spec in kinds.items():
        torch.manual_seed(0)
        net = ResNet(64, len(LABELS), [1, 8, 8], channels=(32, 64))
        served, curves[name] = trained(net, data, TrainingSpec(epochs=20, pruning=spec))
        files[name] = exported(served, folder / f"{name}.onnx")
    found = {name: metric_of(file, data) for name, file in files.items()}
    worst = min(found["magnitude"], found["structured"]) - found["dense"]
    lines = [
        (
            name,
            f"{zeros_in(file):.2f}",
            f"{file.stat().st_size / 1024:.0f} KiB",
            f"{len(zlib.compress(file.read_bytes())) / 1024:.0f} KiB",
            f"{found[name]:.4f}",
        )
        for name, file in files.items()
    ]
    head = ("", "zeros among the weights", "size", "zlib", "accuracy")
    size = files["structured"].stat().st_size / files["dense"].stat().st_size
    structured, dense = (speed_of(files[name], data) for name in ("structured", "dense"))
    faster = ratio(*in_turn(structured, dense, ROUNDS))
    return Row(
        name="D2",
        what="accuracy at 50% sparsity − dense, the worse of magnitude and structured "
        f"(which has {size:.2f} of the size and {faster:.2f} of the rows/s)",
        value=worst,
        goal="≥ -0.01",
        holds=worst >= -0.01,
        samples={name: [accuracy] for name, accuracy in found.items()}
        | {f"{name}_by_epoch": accuracies(c) for name, c in curves.items()},
        details=f"{table(head, lines)}\n\n{curves_table(curves)}",
    )


def quantization_aware(folder: Path) -> Row:
    """D3: a perceptron that naive int8 breaks, trained on with rounding and without.

    It is the one of F1: eight outlier channels of 300 times the others in each hidden layer.
    """
    data = halves()
    torch.manual_seed(0)
    before, _ = trained(
        Perceptron(64, len(LABELS), hidden=(256,) * 3), data, TrainingSpec(epochs=8)
    )
    enlarge(before)
    net = before.network.net
    kinds = {"without": None, "with": QuantizationAwareSpec(start=0.25)}
    plain: list[tuple[float, float]] = []
    aware: list[tuple[float, float]] = []
    lines: list[tuple[str, ...]] = []
    curves: dict[str, Curve] = {}
    broken = int8_metric(before, folder, data)
    for seed in SEEDS:
        for (name, rounding), found in zip(kinds.items(), (plain, aware), strict=True):
            spec = TrainingSpec(epochs=12, quantization_aware=rounding)
            served, curves[name] = trained(copy.deepcopy(net), data, spec, seed=seed)
            found.append(int8_metric(served, folder, data))
        (fp32, int8), (aware_fp32, aware_int8) = plain[-1], aware[-1]
        figures = (fp32, int8, aware_fp32, aware_int8)
        lines.append((str(seed), *(f"{figure:.4f}" for figure in figures)))
    gain = statistics.mean(int8 for _, int8 in aware) - statistics.mean(int8 for _, int8 in plain)
    head = ("seed", "fp32 without", "int8 without", "fp32 with", "int8 with")
    return Row(
        name="D3",
        what="accuracy of static int8 that rounding in training gains, on outlier channels "
        f"(before: fp32 {broken[0]:.4f}, int8 {broken[1]:.4f}), mean of {len(SEEDS)} seeds",
        value=gain,
        goal="> 0 for each seed",
        holds=all(b[1] > a[1] for a, b in zip(plain, aware, strict=True)),
        samples={
            "int8_without": [int8 for _, int8 in plain],
            "int8_with": [int8 for _, int8 in aware],
            **{f"{name}_by_epoch": accuracies(curve) for name, curve in curves.items()},
        },
        details=f"{table(head, lines)}\n\n{curves_table(curves)}",
    )


def int8_metric(served: Served, folder: Path, data: Data) -> tuple[float, float]:
    """Return the accuracy of the model's fp32 form and of its static int8 form."""
    fp32, calibration = exported(served, folder / "fp32.onnx"), folder / "calibration.npz"
    pieces = (data.train[0][start : start + BATCH] for start in range(0, 512, BATCH))
    batch_file.write(calibration, ({FEATURES: piece} for piece in pieces))
    quantize(fp32, folder / "int8.onnx", calibration, Ranges())
    return metric_of(fp32, data), metric_of(folder / "int8.onnx", data)


def speed_of(file: Path, data: Data) -> Callable[[], float]:
    """Return what measures the rows per second of a file, in full batches."""
    session, batch = OnnxSession(file), data.test[0][:BATCH]
    return lambda: BATCH / statistics.median(timed(lambda: session.answer(batch), SECONDS))


def zeros_in(file: Path) -> float:
    """Return the share of zeros among the weights of a file's layers."""
    weights = [numpy_helper.to_array(each) for each in onnx.load(file).graph.initializer]
    layers = [each for each in weights if each.ndim > 1]
    return sum(int((each == 0).sum()) for each in layers) / sum(each.size for each in layers)


def accuracies(curve: Curve) -> list[float]:
    """Return the accuracy after each epoch."""
    return [entry["accuracy"] for entry in curve]


def curves_table(curves: Mapping[str, Curve]) -> str:
    """Return accuracies by epoch, side by side, as a Markdown table."""
    logged = [
        name for name in ("sparsity", "quantized") if any(name in c[0] for c in curves.values())
    ]
    lines = []
    for entries in zip(*curves.values(), strict=True):
        known = {name: value for entry in entries for name, value in entry.items()}
        told = (f"{known[name]:.2f}" for name in logged)
        lines.append((str(int(known["epoch"])), *(f"{e['accuracy']:.4f}" for e in entries), *told))
    return table(("epoch", *curves, *logged), lines)
