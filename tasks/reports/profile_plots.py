"""The picture of a serving profile: what each configuration takes, and how fast it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ProfilePoint:
    """One configuration.

    Attributes:
        name: the configuration in words.
        capacity: requests per second within the bound.
        p99_ms: p99 latency at the goal's rate, as expected.
        is_measured: whether `capacity` is of real requests; else the event model expects it.
        is_chosen: whether it was chosen.
        is_current: whether the pipeline file has it.
    """

    name: str
    capacity: float
    p99_ms: float
    is_measured: bool = False
    is_chosen: bool = False
    is_current: bool = False


def profile_figure(points: Sequence[ProfilePoint], rate: float, bound_ms: float) -> "Figure":
    """Draw throughput within the bound against p99 at the goal's rate.

    Args:
        points: the configurations.
        rate: the goal's rate, in requests per second.
        bound_ms: the goal's bound.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    plain = [each for each in points if not each.is_measured]
    real = [each for each in points if each.is_measured]
    axes.scatter(
        [each.capacity for each in plain],
        [each.p99_ms for each in plain],
        *(18, "tab:gray"),
        alpha=0.6,
        label="expected",
    )
    axes.scatter(
        [each.capacity for each in real],
        [each.p99_ms for each in real],
        *(45, "tab:blue"),
        label="with real requests",
    )
    for each in points:
        if each.is_chosen or each.is_current:
            place = (each.capacity, each.p99_ms)
            color = "tab:green" if each.is_chosen else "tab:orange"
            words = [("chosen", each.is_chosen), ("pipeline file", each.is_current)]
            said = " and ".join(word for word, is_so in words if is_so)
            axes.scatter([each.capacity], [each.p99_ms], 130, color, marker="*", zorder=3)
            axes.annotate(
                f"{said}: {each.name}",
                place,
                xytext=(0, 9),
                textcoords="offset points",
                ha="right" if each.is_chosen else "left",
                fontsize=8,
            )
    axes.axhline(bound_ms, color="tab:red", linewidth=1, label=f"bound, {bound_ms:g} ms")
    axes.axvline(rate, color="tab:red", linewidth=1, linestyle=":", label=f"goal, {rate:g}/s")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests/s within the bound")
    axes.set_ylabel(f"p99 at {rate:g} requests/s, ms")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure
