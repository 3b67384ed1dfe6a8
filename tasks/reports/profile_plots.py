"""The picture of a serving profile: what each configuration takes, and how fast it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.models.common.counted import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 10.0
"""How many times the bound the picture shows at most; what is far beyond it would hide the rest."""


@dataclass(frozen=True)
class ProfilePoint:
    """One configuration.

    Attributes:
        name: the configuration in words.
        capacity: requests per second within the goal.
        at_goal: p99 at the goal's rate in milliseconds, as expected, by bound.
        is_measured: whether `capacity` is of real requests; else the event model expects it.
        is_chosen: whether it was chosen.
        is_current: whether the pipeline file has it.
    """

    name: str
    capacity: float
    at_goal: Mapping[str, float]
    is_measured: bool = False
    is_chosen: bool = False
    is_current: bool = False


def profile_figure(
    points: Sequence[ProfilePoint], rate: float, bounds: Mapping[str, float]
) -> "Figure":
    """Draw throughput within the goal against p99 at the goal's rate, for each bound.

    Args:
        points: the configurations.
        rate: the goal's rate, in requests per second.
        bounds: the goal's bounds in milliseconds.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 4 * len(bounds)), layout="constrained")
    panels = figure.subplots(len(bounds), sharex=True, squeeze=False)[:, 0]
    for axes, (key, bound) in zip(panels, bounds.items(), strict=True):
        _draw_bound(axes, points, key, bound)
        axes.axvline(
            rate, color="tab:red", linewidth=1, linestyle=":", label=f"goal, {short(rate)}/s"
        )
        axes.set_ylabel(f"{_in_words(key)} at {short(rate)} requests/s, ms")
        axes.legend(fontsize=8)
    panels[-1].set_xlabel("requests/s within the goal")
    return figure


def _in_words(key: str) -> str:
    return key.removesuffix("_ms").replace("_", " ")


def _draw_bound(axes: Any, points: Sequence[ProfilePoint], key: str, bound: float) -> None:
    for is_measured, size, color, alpha, label in (
        (False, 18, "tab:gray", 0.6, "expected"),
        (True, 45, "tab:blue", 1.0, "with real requests"),
    ):
        chosen = [each for each in points if each.is_measured == is_measured]
        places = [each.capacity for each in chosen], [each.at_goal[key] for each in chosen]
        axes.scatter(*places, size, color, alpha=alpha, label=label)
    for each in points:
        if each.is_chosen or each.is_current:
            _mark(axes, each, each.at_goal[key])
    axes.axhline(bound, color="tab:red", linewidth=1, label=f"bound, {bound:g} ms")
    highest = max([bound, *(each.at_goal[key] for each in points)])
    axes.set_ylim(0, 1.1 * min(highest, HEIGHT * bound))
    axes.grid(alpha=0.3)


def _mark(axes: Any, point: ProfilePoint, height: float) -> None:
    """Draw a star at the chosen configuration, and at the one of the pipeline file."""
    color = "tab:green" if point.is_chosen else "tab:orange"
    words = [("chosen", point.is_chosen), ("pipeline file", point.is_current)]
    said = " and ".join(word for word, is_so in words if is_so)
    label = f"{said}: {point.name}"
    axes.scatter([point.capacity], [height], 130, color, marker="*", zorder=3, label=label)
