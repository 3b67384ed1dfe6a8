"""The pictures of feedback: the live metric by day, and the calibration."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from millrace.serving.batch.monitoring.batch_plots import drift_figure
from millrace.tasks.feedback import Feedback
from millrace.tasks.feedback_history import LiveDay
from millrace.tasks.labelled_predictions import BATCH, ONLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def feedback_pictures(found: Feedback) -> dict[str, "Figure"]:
    """Return the pictures, by the names of their files; of what is known."""
    figures = {}
    if found.history:
        figures["live.png"] = live_figure(found)
    if found.reliability:
        figures["calibration.png"] = calibration_figure(found)
    for each in found.drift:
        figures[f"drift-version-{each.version}.png"] = drift_figure(each.columns, each.limit)
    return figures


def live_figure(found: Feedback) -> "Figure":
    """Draw the metric of each day by version, with its 95% interval and what was certified."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for number, version in enumerate(sorted({day.version for day in found.history})):
        own = [each for each in found.history if each.version == version]
        for source in sorted({each.source for each in own}):
            days = [each for each in own if each.source == source]
            _draw_days(axes, days, f"C{number}", f"version {version}, {source}")
        if version in found.certified:
            label = f"version {version}, certified"
            axes.axhline(found.certified[version], color=f"C{number}", linestyle=":", label=label)
    axes.set_ylabel(found.history[0].metric)
    axes.set_title(f"{found.model}: as the labels say")
    locator = AutoDateLocator(maxticks=12)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _draw_days(axes: "Axes", days: Sequence[LiveDay], color: str, label: str) -> None:
    from matplotlib.dates import date2num

    at = date2num([date.fromisoformat(day.date) for day in days])  # type: ignore[no-untyped-call]
    values = [day.value for day in days]
    below = [day.value - (day.value if day.low is None else day.low) for day in days]
    above = [(day.value if day.high is None else day.high) - day.value for day in days]
    style = {BATCH: {"marker": "o"}, ONLINE: {"marker": "s", "linestyle": "--"}}
    kind: Any = style[days[0].source]
    axes.errorbar(at, values, yerr=(below, above), color=color, capsize=3, label=label, **kind)


def calibration_figure(found: Feedback) -> "Figure":
    """Draw how often the predictions of each probability were right, and how many there are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot((0, 1), (0, 1), color="grey", linestyle=":", label="as it should be")
    scores = [each.score for each in found.reliability]
    right = [each.right for each in found.reliability]
    most = max(each.rows for each in found.reliability)
    sizes = [20 + 180 * each.rows / most for each in found.reliability]
    axes.scatter(scores, right, s=sizes, label=f"up to {most:,} rows")
    axes.set_xlabel("probability of the predicted class")
    axes.set_ylabel("share that was right")
    error = "" if found.calibration is None else f", calibration error {found.calibration:.3f}"
    axes.set_title(f"{found.model}{error}")
    axes.legend(frameon=False)
    return figure
