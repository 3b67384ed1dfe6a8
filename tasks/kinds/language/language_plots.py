"""The pictures of a language model's run, for MLflow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE_LINES = (("grey", ":"), ("black", ":"), ("C2", "--"))


@dataclass(frozen=True)
class PerplexityPoint:
    """A variant of a language model as a point.

    Attributes:
        name: the name of the variant.
        perplexity: the perplexity on the test split.
        size_mib: the size of its files.
        tokens_per_second: the tokens per second, by the number of concurrent streams.
        refused: whether it missed a gate.
        chosen: whether it was registered.
    """

    name: str
    perplexity: float
    size_mib: float
    tokens_per_second: "dict[int, float]"
    refused: bool
    chosen: bool


def loss_curve(history: Sequence[dict[str, Any]], baselines: Mapping[str, float]) -> "Figure":
    """Draw the perplexity of training batches and validation split against tokens trained on.

    Args:
        history: the metrics of every report.
        baselines: perplexities to compare with, by name; three at most.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    seen, tokens = 0.0, []
    for entry in history:
        seen += float(entry["tokens"])
        tokens.append(seen)
    axes.plot(tokens, [math.exp(min(e["loss"], 50)) for e in history], "--", label="training")
    held_out = [
        (at, e["perplexity"]) for at, e in zip(tokens, history, strict=True) if "perplexity" in e
    ]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", label="validation")
    for (name, value), (color, style) in zip(baselines.items(), REFERENCE_LINES, strict=False):
        axes.axhline(value, color=color, linestyle=style, label=name)
    axes.set(xlabel="tokens", ylabel="perplexity", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    return figure


def perplexity_picture(variants: Sequence[PerplexityPoint]) -> "Figure":
    """Draw perplexity against size, and tokens/s against the number of streams."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, variant in enumerate(variants):
        color, marker = f"C{number % 10}", "X" if variant.refused else "o"
        label = f"{variant.name.removeprefix('openvino-')}{' ← chosen' * variant.chosen}"
        left.scatter(
            variant.size_mib, variant.perplexity, s=90, color=color, marker=marker, label=label
        )
        streams = sorted(variant.tokens_per_second)
        rates = [variant.tokens_per_second[count] for count in streams]
        right.plot(streams, rates, marker=marker, color=color, label=label)
    left.set(xlabel="size, MiB", ylabel="perplexity", title="✕: refused")
    right.set(xlabel="streams", ylabel="tokens/s, all streams together", xscale="log")
    right.set_xticks(streams, [str(count) for count in streams])
    for axes in (left, right):
        axes.margins(0.15)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure
