"""The plots of a batch job: the drift of its columns, and its throughput."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure

from millrace.serving.batch.monitoring.drift import Bins, Counts, Drift, drift_of
from millrace.serving.batch.monitoring.throughput import Sample, Unit, commits_of, steady, unit_of

MOST_COLUMNS, WORST, MOST_BARS = 30, 6, 12
FINE, FAR, EXPECTED, SEEN = "C0", "C3", "0.75", "C0"
FAR_OVER = 10
"""A longer bar is cut at this multiple of the limit."""
NAME, VALUE = 28, 18
"""Largest number of characters of a column's name and of a value; longer ones are cut."""
MOST_SPANS = 120
_DATES: Any = dates  # matplotlib.dates has no type annotations
NAMES: dict[Unit, str] = {
    "rows": "rows/s",
    "tokens": "tokens/s",
    "tokens_in": "input tokens/s",
    "tokens_out": "output tokens/s",
}


def drift_figure(drifts: Sequence[Drift], limit: float) -> Figure:
    """Draw the PSI of every column, the largest on top, and the limit as a line.

    The line includes the PSI that a column has by chance alone. A bar crosses the line, and is red,
    if `Drift.exceeds` is true. A bar far over the line is cut, so each PSI is written beside its
    bar.

    Args:
        drifts: the drift of each column; the 30 largest are drawn.
        limit: largest allowed PSI above the PSI that is expected by chance.
    """
    ranked = sorted(drifts, key=lambda drift: -drift.excess)
    shown = ranked[:MOST_COLUMNS]
    figure = Figure(figsize=(8, 1.4 + 0.28 * max(len(shown), 3)), layout="constrained")
    axes = figure.subplots()
    positions = np.arange(len(shown))
    colors = [FAR if drift.exceeds(limit) else FINE for drift in shown]
    axes.barh(positions, [drift.psi for drift in shown], height=0.7, color=colors)
    limits = [limit + drift.noise for drift in shown]
    label = f"limit: {limit:g} above the PSI expected by chance"
    ends = np.repeat(np.arange(len(shown) + 1) - 0.5, 2)[1:-1]
    line: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2, "label": label}
    axes.plot(np.repeat(limits, 2), ends, **line)
    axes.set_yticks(positions, [_cut(drift.column) for drift in shown])
    axes.set(xlabel="PSI against the training rows")
    axes.set_title(_title(ranked, limit), fontsize=11)
    axes.set_xlim(0, _width(shown, limits))
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    for place, drift in enumerate(shown):
        beside = axes.get_yaxis_transform()
        axes.text(1.01, place, f"{drift.psi:.2f}", transform=beside, va="center", fontsize=9)
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", frameon=False)
    return figure


def shares_figure(columns: Sequence[tuple[Bins, Counts]]) -> Figure:
    """Draw each bin's share of the training rows and of the job's rows, for six columns.

    Args:
        columns: the bins of each column, and the job's rows in each bin, int `[bins]`. The six
            columns that drift most are drawn. For a category with many values, each value with a
            large share has its own bar, and all other values share one bar.
    """
    found = [(drift_of(bins, counts), bins, counts) for bins, counts in columns]
    worst = sorted(found, key=lambda each: -each[0].excess)[:WORST]
    wide = min(max(len(worst), 1), 3)
    high = -(-max(len(worst), 1) // wide)
    figure = Figure(figsize=(4.2 * wide, 3.3 * high + 0.4), layout="constrained")
    every = figure.subplots(high, wide, squeeze=False).ravel()
    for axes, (drift, bins, counts) in zip(every, worst, strict=False):
        _draw_shares(axes, bins, counts)
        axes.set_title(f"{_cut(drift.column)}, PSI {drift.psi:.2f}", fontsize=11)
    for axes in every[len(worst) :]:
        axes.set_axis_off()
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_shares(axes: Any, bins: Bins, counts: Counts) -> None:
    labels, expected, seen = _bars(bins, counts)
    positions = np.arange(len(labels))
    axes.bar(positions - 0.2, expected, width=0.4, color=EXPECTED, label="training rows")
    axes.bar(positions + 0.2, seen, width=0.4, color=SEEN, label="rows of the job")
    axes.set_xticks(positions, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(alpha=0.3, axis="y")


def _bars(bins: Bins, counts: Counts) -> tuple[list[str], list[float], list[float]]:
    """Return the labels of the bars, the shares of the training rows, and the shares of the job.

    There is a bar for null only if there are nulls.
    """
    seen = counts / max(int(counts.sum()), 1)
    every = list(zip(bins.labels, bins.expected.tolist(), seen.tolist(), strict=True))
    *bars, null = every
    nulls = [null] if null[1] or null[2] else []
    if bins.kind != "number":
        *values, other = bars
        ranked = sorted(values, key=lambda bar: -max(bar[1:]))
        rest = [other, *ranked[MOST_BARS:]]
        joined = (other[0], sum(bar[1] for bar in rest), sum(bar[2] for bar in rest))
        bars = ranked[:MOST_BARS] + ([joined] if joined[1] or joined[2] else [])
    labels, left, right = zip(*bars, *nulls, strict=True)
    return [_cut(label, VALUE) for label in labels], list(left), list(right)


def _width(shown: Sequence[Drift], limits: Sequence[float]) -> float:
    longest = max((drift.psi for drift in shown), default=0.0)
    line = max(limits, default=1.0)
    return max(min(longest, FAR_OVER * line), line, 1e-9) * 1.1


def _title(ranked: Sequence[Drift], limit: float) -> str:
    far = sum(drift.exceeds(limit) for drift in ranked)
    rows = max((drift.rows for drift in ranked), default=0)
    title = f"{far} of {len(ranked)} columns over the limit, {rows:,} rows"
    return title if len(ranked) <= MOST_COLUMNS else f"{title}; the {MOST_COLUMNS} farthest"


def _cut(text: str, most: int = NAME) -> str:
    """Return text without its middle: names that begin alike often differ at their ends."""
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


def throughput_figure(samples: Sequence[Sample]) -> Figure:
    """Draw throughput over time: of input and output tokens; of rows if there are no tokens.

    Args:
        samples: the job's samples, the earliest first.
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
    """Draw the throughput per day of the last runs: from end to end, and steady.

    Args:
        runs: three values of each run: its start, its throughput per day from end to end, and its
            steady throughput per day (None if unknown).
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
    few = "" if len(rates) > 1 else ", the mean: too few blocks for a curve"
    axes.set_title(f"{NAMES[unit]}{few}", fontsize=11)
    axes.set_xlim(0, max(ends[-1] / scale, 1e-9))
    _finish(axes, float(rates.max()) or 1.0)


def _rates(samples: Sequence[Sample], unit: Unit) -> tuple[Any, Any]:
    """Return the edges of time spans, `[spans + 1]` seconds, and the rate in each, `[spans]`.

    A span covers several commits, because rates between single commits vary too much.
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
