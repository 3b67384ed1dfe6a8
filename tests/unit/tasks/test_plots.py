from matplotlib.figure import Figure

from millrace.tasks.reports.plots import learning_curves

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
