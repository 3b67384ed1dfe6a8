"""Measured runs on two CPU machines and on one GPU: where a machine begins before its own runs.

The terms are relative to the machine's figures, so the weights carry over to other CPUs and GPUs as
far as those figures say how fast a machine is. `bench/planner_runs.py`, `bench/planner_gpu.py` and
`bench/planner_gpu_graphs.py` measure them.
"""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, cast

from millrace.models.planner.estimates import ONLY_MEASURED, QUANTITIES, UNFITTED, Name
from millrace.models.planner.fit import Bounds, Fit, Terms, fit_terms
from millrace.models.planner.published_training import published_fit, read_rows

HELD_OUT = "h-"
"""Beginning of the names of the configurations that no weight is fitted on."""
_SERVED: Bounds = dict.fromkeys(("operations", "weights"), (1.0, math.inf))
ON_GPU: Final[dict[Name, Bounds]] = {
    "training_step": dict.fromkeys(("operations", "memory"), (1.0, math.inf)),
    "training_memory": QUANTITIES["training_memory"].bounds,
    "online_call": _SERVED,
    "online_unit": _SERVED,
}
"""What is fitted on a GPU, with bounds of the weights: no program is faster than the data sheet."""


@dataclass(frozen=True)
class MeasuredRun:
    """A quantity that was measured in a run.

    Attributes:
        quantity: the quantity.
        machine: the machine that it ran on.
        model: name of the configuration.
        kind: kind of the model.
        terms: the terms of its estimate.
        measured: the measurement.
    """

    quantity: Name
    machine: str
    model: str
    kind: str
    terms: Terms
    measured: float

    @property
    def is_held_out(self) -> bool:
        """Whether it is only for tests."""
        return self.model.startswith(HELD_OUT)


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """Return the measured runs, those that are held out included."""
    return _read("cpu_runs.csv")


@cache
def large_runs() -> tuple[MeasuredRun, ...]:
    """Return the memory of large trainings, those that are held out included."""
    return _read("large_runs.csv")


@cache
def gpu_runs() -> tuple[MeasuredRun, ...]:
    """Return the measured trainings and graphs on a GPU, those that are held out included."""
    return _read("gpu_runs.csv")


def _read(file: str) -> tuple[MeasuredRun, ...]:
    return tuple(
        MeasuredRun(
            cast(Name, row["quantity"]),
            row["machine"],
            row["model"],
            row["kind"],
            dict.fromkeys(QUANTITIES[cast(Name, row["quantity"])].terms, 0.0)
            | json.loads(row["terms"]),
            float(row["measured"]),
        )
        for row in read_rows(file)
    )


def runs_to_fit(name: Name, *, on_gpu: bool = False, without: str = "") -> list[MeasuredRun]:
    """Return the runs that the weights of a quantity are fitted on.

    Args:
        name: the quantity.
        on_gpu: whether those on a GPU are meant.
        without: a machine whose runs are left out.
    """
    runs = gpu_runs() if on_gpu else (*measured_runs(), *large_runs())
    fitted = [each for each in runs if each.quantity == name and not each.is_held_out]
    return [each for each in fitted if each.machine != without]


def counted_terms(name: Name, *, on_gpu: bool) -> tuple[str, ...]:
    """Return the terms of a quantity whose weight is at least 1."""
    bounds = ON_GPU[name] if on_gpu else QUANTITIES[name].bounds
    known = QUANTITIES[name].terms
    return tuple(term for term, (least, _) in bounds.items() if least >= 1 and term in known)


def fit_runs(name: Name, *, on_gpu: bool = False, without: str = "") -> Fit:
    """Return the weights of a quantity, fitted on the runs that are not held out.

    A term that no run has, such as what one GPU sends to others, keeps the weight of `UNFITTED`.
    The arguments are those of `runs_to_fit`.
    """
    runs = runs_to_fit(name, on_gpu=on_gpu, without=without)
    fit = fit_terms(
        [each.terms for each in runs],
        [each.measured for each in runs],
        QUANTITIES[name].terms,
        # The same configuration on two machines is held out as one.
        groups=[each.model for each in runs],
        described=[each.terms for each in runs],
        robust=True,
        bounds=ON_GPU[name] if on_gpu else QUANTITIES[name].bounds,
    )
    seen = {term for each in runs for term, value in each.terms.items() if value}
    unseen = {term: UNFITTED[name].weights[term] for term in fit.weights if term not in seen}
    return replace(fit, weights={**fit.weights, **unseen})


def published_fits(*, on_gpu: bool = False) -> dict[Name, Fit]:
    """Return the stored fits: of all quantities on a CPU, of `ON_GPU` on a GPU."""
    if on_gpu:
        return {name: published_fit(f"gpu_{name}") for name in ON_GPU}
    return {name: published_fit(name) for name in QUANTITIES}


def host_fits() -> dict[Name, Fit]:
    """Return, for what is not fitted on a GPU, its figures and what Python takes on its host.

    What a call or a job takes to begin is fitted on CPUs, and nearly the same beside a GPU.
    """
    found: dict[Name, Fit] = {}
    for name in QUANTITIES.keys() - ON_GPU.keys():
        unfitted, fitted = UNFITTED[name], published_fit(name).weights
        begins = {term: fitted[term] for term in ONLY_MEASURED if term in fitted}
        found[name] = replace(unfitted, weights={**unfitted.weights, **begins})
    return found
