"""One number of a plan: its value and unit, its interval, the formula and the source it is from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millrace.models.planner.cost import cost_per_million, energy_per_million
from millrace.models.planner.fit import Estimate
from millrace.models.planner.serving_memory import bytes_of_type

Unit = Literal[
    "bytes",
    "seconds",
    "operations",
    "per second",
    "per day",
    "bytes per second",
    "count",
    "share",
    "dollars",
    "dollars per million",
    "kWh",
]
_SCALES = (
    *(("Y", 1e24), ("Z", 1e21), ("E", 1e18), ("P", 1e15)),
    *(("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)),
)
_ENDINGS: Mapping[str, str] = {"per second": "/s", "per day": "/day"}
_TIMES = (
    *(("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)),
    *(("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
)


ROWS = ("memory", "compute", "speed", "IO", "concurrency", "data types", "cost")
"""Rows of a sheet."""
Cell: TypeAlias = "tuple[Quantity, ...]"
"""What a stage has in a row of the sheet; the first quantity is the main one."""


@dataclass(frozen=True)
class Quantity:
    """A number of a plan.

    Attributes:
        name: what it is, as it is read behind the value: `1.2 GB on each worker`. Empty if the
            unit says it.
        value: its value in the base unit.
        unit: the unit.
        formula: how the value follows from others, with their values.
        source: the paper or the measurement that the formula is from.
        low: lower end of the interval that holds a measurement in 9 of 10 cases; None: no interval.
        high: its upper end.
        of: what is counted, for example rows; empty if the unit says it.
        notes: what limits the number, for example that it is extrapolated.
    """

    name: str
    value: float
    unit: Unit
    formula: str
    source: str = ""
    low: float | None = None
    high: float | None = None
    of: str = ""
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Value, unit, interval and name."""
        return f"{self} {self.name}".strip()

    def __str__(self) -> str:
        """Return value, unit and interval for people."""
        text = format_value(self.value, self.unit, self.of)
        if not self._has_interval:
            return text
        low, high = (format_value(each, self.unit, self.of) for each in self.ends)
        return f"{text} ({low} to {high})"

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; the value twice if it has none."""
        if self.low is None or self.high is None or not self._has_interval:
            return self.value, self.value
        return self.low, self.high

    @property
    def _has_interval(self) -> bool:
        return self.low is not None and self.high is not None and math.isfinite(self.high)


def estimated(
    name: str, estimate: Estimate, unit: Unit, formula: str, source: str, of: str = ""
) -> Quantity:
    """Return the quantity of an estimate."""
    notes = tuple(f"extrapolated: {each}" for each in estimate.extrapolated)
    return Quantity(
        name, estimate.value, unit, formula, source, estimate.low, estimate.high, of, notes
    )


def cost_quantities(
    rate: float, load: float | None, price: float | None, watts: float | None, unit: str
) -> Cell:
    """Return what a million units cost, by usage and by reservation, and their energy.

    What is not known is left out: dollars without a price, energy without the TDP.

    Args:
        rate: units per second that the machines can do.
        load: units per second that are asked for; None: not known.
        price: dollars of all machines for an hour; None: not known.
        watts: TDP of all machines; None: not known.
        unit: rows or tokens.
    """
    energy: Cell = ()
    if watts is not None:
        power = f"{watts:,.0f} W ÷ {format_value(rate, 'per second', unit)}: the TDP, while busy"
        kwh = energy_per_million(watts, rate)
        energy = (Quantity(f"a million {unit}", kwh, "kWh", power),)
    if price is None:
        return energy
    cost = cost_per_million(price, rate, rate if load is None else load)
    found = [
        Quantity(
            f"a million {unit}, usage",
            cost.usage,
            "dollars per million",
            f"${price:g} an hour ÷ {format_value(rate, 'per second', unit)}: busy time is paid",
        )
    ]
    if load is not None:
        done = min(load, rate)
        found.append(
            Quantity(
                f"a million {unit}, reserved",
                cost.reservation,
                "dollars per million",
                f"${price:g} an hour ÷ {format_value(done, 'per second', unit)}: all time is paid",
            )
        )
    return (*found, *energy)


def width_of(data_type: str, name: str = "") -> Quantity:
    """Return the bytes of a number of a data type, which `name` has."""
    return Quantity(
        f"a number, {name or data_type}", bytes_of_type(data_type), "bytes", f"in {data_type}"
    )


def format_value(value: float, unit: Unit, of: str = "") -> str:
    """Return a value with three significant digits and a fitting prefix."""
    if unit in ("bytes", "bytes per second"):
        return f"{_scaled(value)}B{'/s' if unit != 'bytes' else ''}"
    if unit == "seconds":
        return _time(value)
    if unit == "share":
        return f"{100 * value:.3g}%"
    if unit == "kWh":
        return f"{value:.3g} kWh"
    if unit in ("dollars", "dollars per million"):
        return f"${value:,.2f}" if value >= 0.1 else f"${value:.2g}"
    if unit == "operations":
        return f"{_scaled(value)}FLOP"
    is_small = value < 1e6 and value == int(value)
    number = f"{value:,.0f}" if is_small else _scaled(value).replace(" ", "")
    return f"{number} {of}{_ENDINGS.get(unit, '')}".strip()


def _scaled(value: float) -> str:
    """Return three significant digits, a blank and a prefix."""
    for prefix, size in _SCALES:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _time(seconds: float) -> str:
    for unit, size in _TIMES:
        if seconds >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
