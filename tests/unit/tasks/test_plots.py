import numpy as np
from matplotlib.figure import Figure

from millrace.models.common.pictures import png_of
from millrace.tasks.reports.plots import (
    VariantPoint,
    confusion_matrix,
    learning_curves,
    pareto_picture,
)

NAMES = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")


def history(**logged: list[float]) -> list[dict[str, float]]:
    told = [{name: values[epoch] for name, values in logged.items()} for epoch in range(3)]
    return [{"epoch": epoch + 1, **dict.fromkeys(NAMES, 0.5), **told[epoch]} for epoch in range(3)]


def beginnings(figure: Figure) -> list[dict[str, float]]:
    """Where lines that tell of a beginning are, by axes."""
    found = [{line.get_label(): line.get_xdata()[0] for line in a.lines} for a in figure.axes]
    return [{k: v for k, v in each.items() if k.endswith("begins")} for each in found]


def test_the_curves_tell_where_pruning_and_rounding_began() -> None:
    logged = history(sparsity=[0.0, 0.2, 0.5], quantized=[0.0, 0.0, 1.0])
    told = {"pruning begins": 2, "rounding begins": 3}
    assert beginnings(learning_curves(logged, "accuracy")) == [told, told]


def test_a_training_without_either_has_no_such_line() -> None:
    assert beginnings(learning_curves(history(), "accuracy")) == [{}, {}]


def test_class_names_are_written_as_they_are_and_long_ones_without_their_middle() -> None:
    names = ["USER_$HOME_$X", "$5 to $10", "low $\\foo{$", "a" * 40 + "z" * 40]
    classes = np.arange(4)
    figure = confusion_matrix(classes, classes, names)
    assert png_of(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    written = [label.get_text() for label in axes.get_xticklabels()]
    assert written == [*names[:3], "a" * 15 + "…" + "z" * 16]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())


def test_a_legend_of_many_variants_is_within_the_picture() -> None:
    variants = [
        VariantPoint(f"onnx-int8-static-percentile{n}", n + 0.5, 0.9, 10**9, True, False, n == 3)
        for n in range(16)
    ]
    figure = pareto_picture(variants, "accuracy", "p50 of one row")
    png_of(figure)
    (legend,) = figure.legends
    inside = figure.bbox.count_contains(legend.get_window_extent().corners())
    assert inside == 4
