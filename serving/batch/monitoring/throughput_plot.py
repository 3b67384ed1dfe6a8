"""The pictures of a batch job's throughput."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure

from millrace.serving.batch.monitoring.throughput import Sample, Unit, commits_of, steady, unit_of

MOST_SPANS = 120
_DATES: Any = dates  # without types
NAMES: dict[Unit, str] = {
    "rows": "rows/s",
    "tokens": "tokens/s",
    "tokens_in": "input tokens/s",
    "tokens_out": "output tokens/s",
}


def throughput_figure(samples: Sequence[Sample]) -> Figure:
    """Draw throughput over time: of input and output tokens apart, or of rows.

    Args:
        samples: of a job, the earliest first.
    """
    units: tuple[Unit, ...] = ("rows",)
    if unit_of(samples) == "tokens":
        units = ("tokens_in", "tokens_out")
    figure = Figure(figsize=(9, 1.2 + 2.4 * len(units)), layout="constrained")
    every = figure.subplots(len(units), 1, sharex=True, squeeze=False).ravel()
    scale, name = _time_scale(samples[-1].seconds if samples else 0.0)
    for number, (axes, unit) in enumerate(zip(every, units, strict=True)):
        _draw_rate(axes, samples, unit, scale, f"C{number}")
    every[-1].set_xlabel(f"{name} since the start")
    return figure


def runs_figure(
    runs: Sequence[tuple[datetime, float, float | None]], unit: Unit = "tokens"
) -> Figure:
    """Draw what the last runs did per day, from end to end and without start-up and tail.

    Args:
        runs: when each began, per day from end to end, and per day when steady where it is known.
        unit: what was counted.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes: Any = figure.subplots()
    ordered = sorted(runs, key=lambda run: run[0])
    known = [(at, rate) for at, _, rate in ordered if rate is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "o--", color="C1", label="steady", linewidth=1.4)
    if ordered:
        ends = [(at, rate) for at, rate, _ in ordered]
        axes.plot(*zip(*ends, strict=True), "o-", color="C0", label="from end to end")
    locator = _DATES.AutoDateLocator(maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
    if len(ordered) == 1:  # a date alone gives the axis no scale
        axes.set_xlim(ordered[0][0] - timedelta(days=1), ordered[0][0] + timedelta(days=1))
    count = "last run" if len(ordered) == 1 else f"last {len(ordered)} runs"
    axes.set(title=f"{NAMES[unit].replace('/s', ' per day')}, {count}")
    _finish(axes, max((rate for run in ordered for rate in run[1:] if rate), default=1.0))
    return figure


def _draw_rate(axes: Any, samples: Sequence[Sample], unit: Unit, scale: float, color: str) -> None:
    ends, rates = _rates(samples, unit)
    axes.stairs(rates, ends / scale, fill=True, color=color, alpha=0.35)
    axes.stairs(rates, ends / scale, color=color, linewidth=1.4, baseline=None)
    rate = steady(samples, unit)
    if rate is not None:
        label = f"steady, {_short(rate)}/s"
        axes.axhline(rate, color="black", linestyle="--", linewidth=1.2, label=label)
    axes.set_title(NAMES[unit], fontsize=11)
    axes.set_xlim(0, max(ends[-1] / scale, 1e-9))
    _finish(axes, float(rates.max()) or 1.0)


def _rates(samples: Sequence[Sample], unit: Unit) -> tuple[Any, Any]:
    """Return ends of spans, `[spans + 1]` seconds, and the rate per second in each, `[spans]`.

    A span holds some commits at least: rates between single ones jump, and mean little.
    """
    commits = commits_of(samples, unit)
    end = max(samples[-1].seconds if samples else 0.0, commits[-1][0], 1e-9)
    seconds, counts = zip(*commits, (end, commits[-1][1]), strict=True)
    spans = int(np.clip(len(commits) // 3, 1, MOST_SPANS))
    ends = np.linspace(0, end, spans + 1)
    return ends, np.diff(np.interp(ends, seconds, counts)) / np.diff(ends)


def _time_scale(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3_600 else (3_600.0, "hours")


def _finish(axes: Any, highest: float) -> None:
    axes.set_ylim(0, highest * 1.25)  # the legend is above the lines
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, loc="upper right", ncols=2)


def _short(value: float) -> str:
    """Return a number with thousands, millions and billions as k, M and B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
