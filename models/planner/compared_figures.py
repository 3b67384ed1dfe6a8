"""The numbers of a job that a user reads: what its plan said, beside what was measured.

Most follow from a fitted quantity and need no fit of their own: a rate from the time of a unit, a
cost from a time and the price of an hour. So their errors are those of the quantity.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.models.planner.cost import MILLION, SECONDS_OF_AN_HOUR
from millrace.models.planner.estimates import QUANTITIES
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.quantity import Quantity, Unit, format_value
from millrace.models.planner.training_flops import SECONDS_OF_A_DAY
from millrace.models.planner.work import Work

HEAD = ("quantity", "estimate", "measured", "error")


@dataclass(frozen=True)
class ComparedFigure:
    """A number of a plan beside its measurement.

    Attributes:
        name: its key in `plan.json`.
        words: what it is.
        unit: its unit.
        measured: the measurement, or what follows from it.
        estimate: the estimate; None: it is only measured.
        low: lower end of the estimate's interval; 0 if it has none.
        high: its upper end; infinite if it has none.
        of: what is counted, for example rows; empty if the unit says it.
    """

    name: str
    words: str
    unit: Unit
    measured: float
    estimate: float | None = None
    low: float = 0.0
    high: float = math.inf
    of: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row of the table."""
        measured = format_value(self.measured, self.unit, self.of)
        if self.estimate is None:
            return (self.words, "", measured, "")
        bounds = (self.low, self.high)
        estimate = Quantity("", self.estimate, self.unit, "", "", *bounds, of=self.of)
        return (self.words, str(estimate), measured, f"{self.estimate / self.measured - 1:+.1%}")

    def as_json(self) -> dict[str, object]:
        """Return what `plan.json` has of it; no bound is null."""
        high = None if math.isinf(self.high) else self.high
        values = {"estimate": self.estimate, "low": self.low, "high": high}
        return {**values, "measured": self.measured, "unit": self.unit}


def fitted_figures(measured: Iterable[Measurement]) -> list[ComparedFigure]:
    """Return the fitted quantities of a job."""
    return [
        _linear(
            each, each.quantity, QUANTITIES[each.quantity].words, QUANTITIES[each.quantity].unit
        )
        for each in measured
    ]


def derived_figures(
    measured: Sequence[Measurement], work: Work, dollars_per_hour: float | None
) -> list[ComparedFigure]:
    """Return what follows from the measurements of a run: rates, whole times and costs.

    The rates of the service are those of one instance.

    Args:
        measured: the measurements of a run or of a certificate.
        work: what the run asked for.
        dollars_per_hour: price of the machine; None: not known.
    """
    found = []
    for each in measured:
        if each.quantity == "training_step":
            found += _of_training(each, work, dollars_per_hour)
        elif each.quantity == "online_unit":
            found += _of_units(each, "online", 1.0, work.unit, dollars_per_hour)
    return found


def batch_figures(
    job: Measurement, units: float, unit: str, dollars_per_hour: float | None
) -> list[ComparedFigure]:
    """Return what follows from the time of a batch job: its rates and the cost of a million.

    Args:
        job: the measurement of the job.
        units: rows, or tokens read and generated.
        unit: rows or tokens.
        dollars_per_hour: price of the machine; None: not known.
    """
    return _of_units(job, "batch", units, unit, dollars_per_hour)


def _of_training(step: Measurement, work: Work, dollars: float | None) -> list[ComparedFigure]:
    training = work.training
    units, unit = training.step_units * training.workers, work.unit
    found = [_inverse(step, "training_rate", f"{unit} in training", "per second", units, unit)]
    if training.steps is None:
        return found
    words = f"{training.steps:,} training steps"
    found.append(_linear(step, "training_time", f"time of {words}", "seconds", training.steps))
    if dollars is not None:
        cost = training.steps * dollars / SECONDS_OF_AN_HOUR
        found.append(_linear(step, "training_cost", f"cost of {words}", "dollars", cost))
    return found


def _of_units(
    time: Measurement, stage: str, units: float, unit: str, dollars: float | None
) -> list[ComparedFigure]:
    """Return the rates of a stage, and the cost of a million units while it is busy."""
    where = {"online": "at full load", "batch": "in batch"}[stage]
    daily = units * SECONDS_OF_A_DAY
    found = [
        _inverse(time, f"{stage}_rate", f"{unit} {where}", "per second", units, unit),
        _inverse(time, f"{stage}_per_day", f"{unit} {where}", "per day", daily, unit),
    ]
    if dollars is not None:
        cost = MILLION / units * dollars / SECONDS_OF_AN_HOUR
        words = f"a million {unit} {where}"
        name = f"{stage}_cost_per_million"
        found.append(_linear(time, name, words, "dollars per million", cost))
    return found


def _linear(
    each: Measurement, name: str, words: str, unit: Unit, factor: float = 1.0
) -> ComparedFigure:
    """Return a figure that is a multiple of a quantity."""
    return ComparedFigure(
        name,
        words,
        unit,
        measured=factor * each.measured,
        estimate=factor * each.estimate,
        low=factor * each.low,
        high=factor * each.high,
    )


def _inverse(
    each: Measurement, name: str, words: str, unit: Unit, units: float, of: str
) -> ComparedFigure:
    """Return a rate: units divided by a time. The ends of the interval change places."""
    return ComparedFigure(
        name,
        words,
        unit,
        measured=units / each.measured,
        estimate=units / each.estimate,
        low=units / each.high,
        high=units / each.low if each.low else math.inf,
        of=of,
    )
