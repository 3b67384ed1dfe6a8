"""The pictures of a batch job's drift."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from millrace.serving.batch.monitoring.drift import Bins, Counts, Drift, drift_of

MOST_COLUMNS, WORST, MOST_BARS = 30, 6, 12
FINE, FAR, EXPECTED, SEEN = "C0", "C3", "0.75", "C0"
FAR_OVER = 10
"""A bar is drawn up to so many times the limit."""
NAME, VALUE = 28, 18
"""Characters of a column's name and of a value; longer ones are cut."""


def drift_figure(drifts: Sequence[Drift], limit: float) -> Figure:
    """Draw the PSI of every column, the farthest on top, and the limit as a line.

    The line bends where chance alone gives more PSI: a column is over it where `Drift.exceeds` is
    true, and then its bar is red. One that is far over it is cut; each PSI is written beside it.

    Args:
        drifts: of a job's columns; the 30 farthest are drawn.
        limit: of PSI above what is expected by chance.
    """
    ranked = sorted(drifts, key=lambda drift: -drift.excess)
    shown = ranked[:MOST_COLUMNS]
    figure = Figure(figsize=(8, 1.4 + 0.28 * max(len(shown), 3)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(shown))
    colors = [FAR if drift.exceeds(limit) else FINE for drift in shown]
    axes.barh(places, [drift.psi for drift in shown], height=0.7, color=colors)
    limits = [limit + drift.noise for drift in shown]
    label = f"limit, {limit:g} above what chance gives"
    ends = np.repeat(np.arange(len(shown) + 1) - 0.5, 2)[1:-1]
    line: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2, "label": label}
    axes.plot(np.repeat(limits, 2), ends, **line)
    axes.set_yticks(places, [_cut(drift.column) for drift in shown])
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
    """Draw expected against seen shares of the six columns that are farthest from the training.

    Args:
        columns: bins of each column and the job's rows in them, int `[bins]`; of a category with
            many values those with the most rows are drawn, and the rest as one.
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
    places = np.arange(len(labels))
    axes.bar(places - 0.2, expected, width=0.4, color=EXPECTED, label="training rows")
    axes.bar(places + 0.2, seen, width=0.4, color=SEEN, label="rows of the job")
    axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(alpha=0.3, axis="y")


def _bars(bins: Bins, counts: Counts) -> tuple[list[str], list[float], list[float]]:
    """Return label, expected and seen share of each bar; null only where there is any."""
    seen = counts / max(int(counts.sum()), 1)
    every = list(zip(bins.labels, bins.expected.tolist(), seen.tolist(), strict=True))
    *held, null = every
    nulls = [null] if null[1] or null[2] else []
    if bins.kind != "number":
        *values, other = held
        ranked = sorted(values, key=lambda bar: -max(bar[1:]))
        rest = [other, *ranked[MOST_BARS:]]
        joined = (other[0], sum(bar[1] for bar in rest), sum(bar[2] for bar in rest))
        held = ranked[:MOST_BARS] + ([joined] if joined[1] or joined[2] else [])
    labels, left, right = zip(*held, *nulls, strict=True)
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
    """Return text without its middle: names that begin alike are told apart by their ends."""
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"
