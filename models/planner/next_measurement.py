"""Which run would teach most about a machine: where the estimates lean on what was measured least.

An estimate is a sum of weighted terms. With the terms' shares of it as x, and those of the earlier
measurements as the rows of X, the variance of the estimate is proportional to x'(X'X + I)^-1 x, the
criterion of sequential D-optimal design (Wynn 1970, "The Sequential Generation of D-Optimum
Experimental Designs"). The published weights count as one measurement of each term, the I. What a
run teaches about a quantity is this variance times the width of the quantity's interval, as the
logarithm of its ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.estimates import QUANTITIES, Fits, Name
from millrace.models.planner.fit import Fit, Terms
from millrace.models.planner.measurements import Measurement, known_terms
from millrace.models.planner.run_terms import batch_terms, online_terms, training_terms
from millrace.models.planner.work import Work


@dataclass(frozen=True)
class NextMeasurement:
    """The run that would teach most.

    Attributes:
        file: its pipeline file.
        quantity: the quantity that it would teach most about.
        low: lower end of this quantity's interval, relative to the estimate.
        high: its upper end.
        measured: measurements of this quantity on this machine so far.
    """

    file: str
    quantity: Name
    low: float
    high: float
    measured: int

    @property
    def command(self) -> str:
        """The commands that measure it."""
        run = f"millrace run {self.file}"
        return f"{run} && millrace score {self.file}" if self.quantity == "batch_job" else run

    def __str__(self) -> str:
        """Return a sentence."""
        return (
            f"the next measurement that would teach most: {self.command} "
            f"({QUANTITIES[self.quantity].words}: measured {self.measured} times on this machine, "
            f"interval {self.low - 1:+.0%} to {self.high - 1:+.0%})"
        )


def choose_measurement(
    works: Mapping[str, Work], machines: Machines, fits: Fits, measurements: Sequence[Measurement]
) -> NextMeasurement | None:
    """Return which of some pipelines to run next; None if no estimate of them has an interval.

    That is the one that teaches most over all quantities; of equals the first.

    Args:
        works: what the pipelines ask for, by file.
        machines: this machine.
        fits: what was fitted on its measurements.
        measurements: its measurements.
    """
    taught = {
        file: {
            name: _gain(fits[name], terms, [m for m in measurements if m.quantity == name])
            for name, terms in terms_of(work, machines).items()
            if name in fits and math.isfinite(fits[name].high) and fits[name].low > 0
        }
        for file, work in works.items()
    }
    known = {file: gains for file, gains in taught.items() if gains}
    if not known:
        return None
    file = max(known, key=lambda each: sum(known[each].values()))
    quantity = max(known[file], key=lambda name: known[file][name])
    count = sum(each.quantity == quantity for each in measurements)
    fit = fits[quantity]
    return NextMeasurement(file, quantity, fit.low, fit.high, count)


def terms_of(work: Work, machines: Machines) -> Mapping[Name, Terms]:
    """Return the terms of all that a run and a batch job of a pipeline would measure."""
    variant, units = work.online.variants[0], work.batch_units
    found = {**training_terms(work, machines), **online_terms(work, variant, machines)}
    if units is not None:
        found |= batch_terms(work, variant, machines, units, units)
    return found


def _gain(fit: Fit, terms: Terms, measured: Sequence[Measurement]) -> float:
    """Return what a measurement with these terms teaches, at most the width of the interval."""
    import numpy as np

    rows = np.array([shares_of(fit, known_terms(each, fit)) for each in measured])
    information = np.eye(len(fit.weights))
    if len(rows):
        information += rows.T @ rows
    shares = np.array(shares_of(fit, terms))
    variance = float(shares @ np.linalg.solve(information, shares))
    return math.log(fit.high / fit.low) * variance


def shares_of(fit: Fit, terms: Terms) -> list[float]:
    """Return the share of each term in an estimate; all 0 if the estimate is 0."""
    parts = [weight * terms[name] for name, weight in fit.weights.items()]
    whole = sum(parts)
    return [part / whole if whole else 0.0 for part in parts]
