"""The picture of the trees, for MLflow; matplotlib is imported by what draws it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 20


def importance_picture(importance: dict[str, float]) -> "Figure":
    """Draw the most important columns, the largest at the top."""
    from matplotlib.figure import Figure

    shown = list(importance.items())[:MOST_COLUMNS][::-1]
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.barh([name[:40] for name, _ in shown], [share for _, share in shown], color="C0")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("share of the total gain")
    left = len(importance) - len(shown)
    axes.set_title("feature importance" + (f", {left} more columns below" if left > 0 else ""))
    axes.grid(axis="x", alpha=0.3)
    return figure
