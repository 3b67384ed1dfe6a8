"""The pictures of a language model's run, for MLflow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from millrace.models.language.corpus.ngram import Baselines


@dataclass(frozen=True)
class VariantPoint:
    """A variant of a language model as a point.

    Attributes:
        name: of the variant.
        perplexity: on the test split.
        size_mib: of its files.
        tokens_per_second: by the number of streams.
        refused: whether it missed a gate.
        chosen: whether it is the one that was registered.
    """

    name: str
    perplexity: float
    size_mib: float
    tokens_per_second: "dict[int, float]"
    refused: bool
    chosen: bool


def loss_curve(history: Sequence[dict[str, Any]], baselines: "Baselines") -> Figure:
    """Draw perplexity by tokens: of the batches that were learnt from, and of held-out text.

    Args:
        history: metrics of every report.
        baselines: what is to be beaten; on the test split.
    """
    import math

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
    axes.axhline(baselines.unigram, color="grey", linestyle=":", label="unigram")
    axes.axhline(baselines.trigram, color="black", linestyle=":", label="trigram")
    if baselines.base is not None:
        axes.axhline(baselines.base, color="C2", linestyle="--", label="base, before training")
    axes.set(xlabel="tokens", ylabel="perplexity", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    return figure


def variants_picture(variants: Sequence[VariantPoint]) -> Figure:
    """Draw perplexity against size, and tokens/s against the number of streams."""
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
