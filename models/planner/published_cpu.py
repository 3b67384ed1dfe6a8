"""Measured runs of small models on one CPU machine: where a machine begins before its own runs.

The terms are relative to the machine's measured figures, so the weights carry over to other CPUs as
far as those figures say how fast a machine is. `bench/planner_runs.py` measures them.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import cast

from millrace.models.planner.estimates import QUANTITIES, Name
from millrace.models.planner.fit import Fit, Terms, fit_terms
from millrace.models.planner.published_training import published_fit, read_rows

HELD_OUT = "h-"
"""Beginning of the names of the configurations that no weight is fitted on."""


@dataclass(frozen=True)
class MeasuredRun:
    """A quantity that was measured in a run.

    Attributes:
        quantity: the quantity.
        model: name of the configuration.
        kind: kind of the model.
        terms: the terms of its estimate.
        measured: the measurement.
    """

    quantity: Name
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


def _read(file: str) -> tuple[MeasuredRun, ...]:
    return tuple(
        MeasuredRun(
            cast(Name, row["quantity"]),
            row["model"],
            row["kind"],
            dict.fromkeys(QUANTITIES[cast(Name, row["quantity"])].terms, 0.0)
            | json.loads(row["terms"]),
            float(row["measured"]),
        )
        for row in read_rows(file)
    )


def runs_to_fit(name: Name) -> list[MeasuredRun]:
    """Return the runs that the weights of a quantity are fitted on."""
    runs = (*measured_runs(), *large_runs())
    return [each for each in runs if each.quantity == name and not each.is_held_out]


def fit_runs(name: Name) -> Fit:
    """Return the weights of a quantity, fitted on the runs that are not held out."""
    runs = runs_to_fit(name)
    return fit_terms(
        [each.terms for each in runs],
        [each.measured for each in runs],
        QUANTITIES[name].terms,
        robust=True,
        counted=QUANTITIES[name].counted,
    )


def published_fits() -> dict[Name, Fit]:
    """Return the stored fits of all quantities."""
    return {name: published_fit(name) for name in QUANTITIES}
