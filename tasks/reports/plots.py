"""The pictures of a run, for MLflow; matplotlib is imported by what draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace.models.common.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME_LENGTH = 32
"""Characters of a class that are written."""


def learning_curves(
    history: Sequence[dict[str, float]], metric: str, unit: str = "epoch"
) -> "Figure":
    """Draw loss and metric by epoch or round, each for the train and the validation split.

    A vertical line marks where pruning or rounding (quantization-aware training) began.

    Args:
        history: the metrics of every epoch or round; `sparsity` and `quantized` may be missing.
        metric: the name of the task metric.
        unit: the unit of the x-axis, `epoch` or `round`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    epochs = [entry[unit] for entry in history]
    for axes, name in zip(figure.subplots(1, 2), ("loss", metric), strict=True):
        for split, style in (("train", "--"), ("validation", "-")):
            values = [entry[f"{split}_{name}"] for entry in history]
            axes.plot(epochs, values, style, label=split, linewidth=1.8)
        for number, (what, epoch) in enumerate(_beginnings(history).items()):
            axes.axvline(epoch, color=f"C{2 + number}", linestyle=":", label=f"{what} begins")
        axes.set_xlabel(unit)
        axes.set_title(name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _beginnings(history: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the first epoch with pruning and the first epoch with rounding, where they exist."""
    names = {"sparsity": "pruning", "quantized": "rounding"}
    epochs = {
        what: [entry["epoch"] for entry in history if entry.get(name, 0.0) > 0]
        for name, what in names.items()
    }
    return {what: found[0] for what, found in epochs.items() if found}


def confusion_matrix(
    predicted: Array, target: Array, labels: Sequence[str | int | bool]
) -> "Figure":
    """Draw the confusion matrix of the test split.

    Args:
        predicted: the predicted classes, int `[rows]`, as positions in `labels`.
        target: the true classes, int `[rows]`, as positions in `labels`.
        labels: the classes; with more than 20, a color bar stands for labels and counts.
    """
    size = len(labels)
    counts = np.zeros((size, size), dtype=int)
    np.add.at(counts, (target, predicted), 1)
    height = 0.9 * min(4 + 0.35 * size, 14)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(height if size <= 20 else height / 0.9, height), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title=f"test split, {len(target):,} rows")
    if size <= 20:
        names: dict[str, Any] = {
            "labels": [_shortened(str(label)) for label in labels],
            "parse_math": False,  # or a $ would begin a formula
        }
        axes.set_xticks(range(size), **names, rotation=45, ha="right")
        axes.set_yticks(range(size), **names)
        for row, column in zip(*np.nonzero(counts), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            count = axes.text(column, row, counts[row, column], color=color)
            count.set(ha="center", va="center", in_layout=False)  # inside the axes
    else:
        figure.colorbar(image, label="share of the class")
    return figure


def _shortened(name: str) -> str:
    """Return a name without its middle if it is so long that the axes would have no room."""
    return name if len(name) <= NAME_LENGTH else f"{name[:15]}…{name[16 - NAME_LENGTH :]}"


def predicted_against_true(predicted: Array, target: Array) -> "Figure":
    """Draw predicted against true values of a regression on the test split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.scatter(target, predicted, s=10, alpha=0.5)
    low, high = float(min(target.min(), predicted.min())), float(max(target.max(), predicted.max()))
    axes.plot([low, high], [low, high], color="grey", linewidth=1)
    axes.set(xlabel="true", ylabel="predicted", title=f"test split, {len(target):,} rows")
    axes.grid(alpha=0.3)
    return figure


@dataclass(frozen=True)
class VariantPoint:
    """A variant of a model as a point.

    Attributes:
        name: the name of the variant.
        cost_ms: milliseconds per row: the median for single rows, or the mean in full batches.
        metric: the metric on the test split.
        size_bytes: the size of its file.
        in_front: whether it is on the Pareto front.
        refused: whether it missed a gate.
        chosen: whether it was registered.
    """

    name: str
    cost_ms: float
    metric: float
    size_bytes: int
    in_front: bool
    refused: bool
    chosen: bool = False


def pareto_picture(variants: Sequence[VariantPoint], metric: str, cost: str) -> "Figure":
    """Draw metric against time; areas show file sizes, and points on the Pareto front are filled.

    Args:
        variants: every variant that was measured.
        metric: the name of the metric.
        cost: the name of the time on the x-axis.
    """
    from matplotlib.figure import Figure

    # A fixed layout saves a third of the time: all names of variants are known.
    figure = Figure(figsize=(9, 5))
    axes = figure.add_axes((0.12, 0.11, 0.61, 0.82))
    largest = max(variant.size_bytes for variant in variants)
    for number, variant in enumerate(variants):
        color = f"C{number % 10}"
        style: dict[str, Any] = {
            "marker": "X" if variant.refused else "o",
            "facecolor": color if variant.in_front else "none",
            "edgecolor": color,
            "linewidth": 1.8,
            "alpha": 0.75,
        }
        area = 60 + 500 * variant.size_bytes / largest
        axes.scatter(variant.cost_ms, variant.metric, s=area, **style)
        size = f"{variant.size_bytes / 1024:,.0f} KiB"
        label = f"{variant.name.removeprefix('onnx-')}\n{size}{', chosen' * variant.chosen}"
        axes.scatter(
            [], [], s=60, label=label, **style
        )  # all markers in the legend have the same size
    axes.set(xlabel=f"{cost}, ms", ylabel=metric, title="filled: Pareto front; ✕: refused")
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    place, points = (0.74, 0.95), min(9.0, 108 / len(variants))  # 12 variants fit with 9
    figure.legend(loc="upper left", bbox_to_anchor=place, frameon=False, fontsize=points)
    return figure
