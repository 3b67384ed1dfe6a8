"""The mixed variant: what int8 costs most stays in float, as few layers as the budget needs.

Layers are ordered by what int8 does to the answers when it is applied to one alone, as in Wu et al.
2020, "Integer Quantization for Deep Learning Inference", section 5.3 (partial quantization). The
more of them stay in float the less is lost, so the fewest are found by doubling and then halving.
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
"""Makes and measures the variant with these layers in float."""


@dataclass(frozen=True)
class Step:
    """One try of the search.

    Attributes:
        kept: layers in float, the most sensitive first.
        variant: as it was measured on the validation split.
        held: whether its loss is within the budget.
    """

    kept: tuple[str, ...]
    variant: GraphCandidate
    held: bool

    def __str__(self) -> str:
        """Return it in words."""
        verdict = "holds" if self.held else "too much"
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
    """Return the tries of a search for the fewest layers that must stay in float.

    The answer is the one with the fewest layers among those that held; none did if all layers must.

    Args:
        layers: the most sensitive first.
        tried: makes and measures a variant; called once for each number of layers.
        budget: largest relative loss of the metric.
    """
    steps: dict[int, Step] = {}

    def holds(count: int) -> bool:
        if count not in steps:
            kept = tuple(layers[:count])
            variant = tried(kept)
            # NaN fails every comparison, and so it does not hold
            steps[count] = Step(kept, variant, _loss(variant) <= budget)
        return steps[count].held

    low, high = 0, 0
    while not holds(high) and high < len(layers) - 1:
        low, high = high + 1, min(max(2 * high, 1), len(layers) - 1)
    while low < high and steps[high].held:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return tuple(steps[count] for count in steps)


def best(steps: Sequence[Step]) -> Step | None:
    """Return the step that held with the fewest layers in float, or None."""
    held = [step for step in steps if step.held]
    return min(held, key=lambda step: len(step.kept), default=None)


COSTS = "sensitivity.json"


def mixed_variant(
    folder: Path,
    budget: float,
    convert: Callable[[str, Path, Variant], None],
    measure: Callable[[Path], GraphCandidate],
) -> Variant:
    """Return the static variant with as few layers in float as the budget needs.

    Args:
        folder: of the variants; what was tried is written to `onnx-int8-mixed.txt` there.
        budget: largest relative loss of the metric.
        convert: runs the program of a variant, by a name, into a file.
        measure: measures a file on the validation split.

    Raises:
        WorkError: none has to stay, or even all but one are not enough.
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
    if not steps[0].held:
        convert(f"{MIXED}: what each layer costs", costs, Variant(SENSITIVITY, calibrated=True))
        by_layer: dict[str, float] = json.loads(costs.read_text())
        layers = sorted(by_layer, key=lambda layer: -by_layer[layer])
        notes = [f"{layer} alone in int8: error {by_layer[layer]:.2e}" for layer in layers]
        steps = fewest_in_float(layers, tried, budget)
    draft.unlink(missing_ok=True)
    (folder / f"{MIXED}.txt").write_text("\n".join([*notes, *map(str, steps)]))
    found = best(steps)
    if found is None:
        raise WorkError("no variant with a layer in int8 is within the budget")
    if not found.kept:
        raise WorkError(f"{STATIC_VARIANT} is within the budget: no layer has to stay in float")
    return _keeping(found.kept)


def _keeping(layers: Sequence[str]) -> Variant:
    options = ("--keep", *layers) if layers else ()
    return replace(VARIANTS[STATIC_VARIANT], options=options)
