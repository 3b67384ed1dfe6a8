"""The mixed-precision variant: int8, except for the layers that are most sensitive to int8.

The error of a layer is the error of the model's outputs when only that layer is in int8. Layers are
ordered by this error, as in Wu et al. 2020, "Integer Quantization for Deep Learning Inference",
section 5.3 (partial quantization). The more layers stay in float, the smaller the metric loss. So
the search doubles the number of float layers until the metric loss is within the budget, and then
bisects to find the smallest number of float layers.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.export.onnx.graph_certificate import GraphCandidate
from millrace.export.onnx.graph_variants import (
    MIXED,
    SENSITIVITY,
    STATIC_VARIANT,
    VARIANTS,
    Variant,
)
from millrace.models.common.errors import WorkError

Try = Callable[[Sequence[str]], GraphCandidate]
"""Makes and measures the variant with the given layers in float."""


@dataclass(frozen=True)
class Step:
    """One measured variant of the search.

    Attributes:
        kept: layers in float, the most sensitive first.
        variant: the variant's measurements on the validation split.
        is_within: whether its metric loss is within the budget.
    """

    kept: tuple[str, ...]
    variant: GraphCandidate
    is_within: bool

    def __str__(self) -> str:
        """Return a line for the variant's notes."""
        verdict = "within the limit" if self.is_within else "above the limit"
        kept = ", ".join(self.kept) or "none"
        size = f"{self.variant.size_bytes / 1024:,.0f} KiB"
        p50 = f"{self.variant.speed.p50_ms:.3f} ms" if self.variant.speed else "unmeasured"
        return (
            f"{len(self.kept)} layers in float: loss {_loss(self.variant):.2%}, {verdict}; "
            f"{size}, p50 {p50} ({kept})"
        )


def _loss(variant: GraphCandidate) -> float:
    loss = variant.stage.metric_loss if variant.stage else None
    return math.nan if loss is None else loss


def fewest_in_float(layers: Sequence[str], tried: Try, budget: float) -> tuple[Step, ...]:
    """Search for the fewest layers that must stay in float, and return all measured variants.

    `best` picks the result. At least one layer is in int8 in every variant that is tried.

    Args:
        layers: names of the layers, the most sensitive first.
        tried: makes and measures a variant; called once per number of layers.
        budget: largest relative loss of the metric.
    """
    steps: dict[int, Step] = {}

    def holds(count: int) -> bool:
        if count not in steps:
            kept = tuple(layers[:count])
            variant = tried(kept)
            # a comparison with NaN is false, so a NaN loss is above the budget
            steps[count] = Step(kept, variant, _loss(variant) <= budget)
        return steps[count].is_within

    low, high = 0, 0
    while not holds(high) and high < len(layers) - 1:
        low, high = high + 1, min(max(2 * high, 1), len(layers) - 1)
    while low < high and steps[high].is_within:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return tuple(steps[count] for count in steps)


def best(steps: Sequence[Step]) -> Step | None:
    """Return the step within the budget with the fewest float layers; None if there is none."""
    within = [step for step in steps if step.is_within]
    return min(within, key=lambda step: len(step.kept), default=None)


COSTS = "sensitivity.json"


def mixed_variant(
    folder: Path,
    budget: float,
    convert: Callable[[str, Path, Variant], None],
    measure: Callable[[Path], GraphCandidate],
) -> Variant:
    """Return the static int8 variant with as few layers in float as the budget needs.

    Args:
        folder: folder of the variants; the search is logged there in `onnx-int8-mixed.txt`.
        budget: largest relative loss of the metric.
        convert: runs the conversion program of a variant; called with a name for the commands file,
            the file to write and the variant.
        measure: measures a file on the validation split.

    Raises:
        WorkError: no layer has to stay in float, or the metric loss is above the budget even with
            only one layer in int8.
    """
    draft, costs = folder / f"{MIXED}.try", folder / COSTS
    known: dict[tuple[str, ...], GraphCandidate] = {}

    def tried(kept: Sequence[str]) -> GraphCandidate:
        if tuple(kept) not in known:
            convert(f"{MIXED}: a try", draft, _keeping(kept))
            known[tuple(kept)] = measure(draft)
        return known[tuple(kept)]

    steps = fewest_in_float((), tried, budget)
    notes: list[str] = []
    if not steps[0].is_within:
        convert(f"{MIXED}: what each layer costs", costs, Variant(SENSITIVITY, calibrated=True))
        by_layer: dict[str, float] = json.loads(costs.read_text())
        layers = sorted(by_layer, key=lambda layer: -by_layer[layer])
        notes = [f"{layer} alone in int8: error {by_layer[layer]:.2e}" for layer in layers]
        steps = fewest_in_float(layers, tried, budget)
    draft.unlink(missing_ok=True)
    (folder / f"{MIXED}.txt").write_text("\n".join([*notes, *map(str, steps)]))
    found = best(steps)
    if found is None:
        raise WorkError(
            "even with only one layer in int8, the metric loss is above export.max_metric_loss"
        )
    if not found.kept:
        raise WorkError(
            f"no layer has to stay in float, because the metric loss of {STATIC_VARIANT} is within "
            "export.max_metric_loss"
        )
    return _keeping(found.kept)


def _keeping(layers: Sequence[str]) -> Variant:
    options = ("--keep", *layers) if layers else ()
    return replace(VARIANTS[STATIC_VARIANT], options=options)
