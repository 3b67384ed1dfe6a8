"""The search for the mixed form: what each layer costs, and then as few in float as it takes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.export.candidate import Candidate
from millrace.export.measure import measure
from millrace.export.onnx.mixed_precision import best, fewest_in_float
from millrace.export.variants import FORMS, MIXED, SENSITIVITY, STATIC_FORM, Form
from millrace.models.common.errors import WorkError

if TYPE_CHECKING:
    from millrace.export.onnx.onnx_exporter import Exporter

COSTS = "sensitivity.json"


def mixed_form(exporter: "Exporter") -> Form:
    """Return the static form with as few layers in float as the budget needs.

    Tries are measured on the validation split, and written down in `onnx-int8-mixed.txt`.

    Raises:
        WorkError: none has to stay, or even all but one are not enough.
    """
    evidence, draft = exporter.validation(), exporter.folder / f"{MIXED}.try"
    known: dict[tuple[str, ...], Candidate] = {}

    def tried(kept: Sequence[str]) -> Candidate:
        if tuple(kept) not in known:
            exporter.convert(f"{MIXED}: a try", draft, _keeping(kept))
            limits, threads = exporter.limits, exporter.threads
            known[tuple(kept)] = measure(
                *(MIXED, draft, evidence, exporter.objective, threads, limits),
                tensorrt=exporter.tensorrt,
            )
        return known[tuple(kept)]

    budget = exporter.spec.max_metric_loss
    steps = fewest_in_float((), tried, budget)
    notes: list[str] = []
    if not steps[0].held:
        costs = exporter.folder / COSTS
        exporter.convert(
            f"{MIXED}: what each layer costs", costs, Form(SENSITIVITY, calibrated=True)
        )
        by_layer: dict[str, float] = json.loads(costs.read_text())
        layers = sorted(by_layer, key=lambda layer: -by_layer[layer])
        notes = [f"{layer} alone in int8: error {by_layer[layer]:.2e}" for layer in layers]
        steps = fewest_in_float(layers, tried, budget)
    draft.unlink(missing_ok=True)
    (exporter.folder / f"{MIXED}.txt").write_text("\n".join([*notes, *map(str, steps)]))
    found = best(steps)
    if found is None:
        raise WorkError("no form with a layer in int8 is within the budget")
    if not found.kept:
        raise WorkError(f"{STATIC_FORM} is within the budget: no layer has to stay in float")
    return _keeping(found.kept)


def _keeping(layers: Sequence[str]) -> Form:
    options = ("--keep", *layers) if layers else ()
    return replace(FORMS[STATIC_FORM], options=options)
