"""The ledger of the planner: each estimate beside its measurement, a table in the home.

From it the estimates of a machine are fitted again, and the accuracy is shown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from millrace.models.planner.estimates import QUANTITIES, Name
from millrace.models.planner.fit import Fit, fit_terms

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_ROWS = 3
"""Measurements of a machine from which its estimates are fitted again."""


@dataclass(frozen=True)
class Measurement:
    """An estimate beside its measurement.

    Attributes:
        quantity: the quantity, a key of `QUANTITIES`.
        model: name of the model.
        kind: kind of the model.
        machine: what the machine is, so that others are told apart.
        run_id: MLflow run or batch job that measured it.
        estimate: the estimate, in the quantity's unit.
        low: lower end of its interval; 0 if it has none.
        high: upper end of its interval; infinite if it has none.
        measured: the measurement.
        terms: the terms of the estimate.
        time: when it was measured.
    """

    quantity: Name
    model: str
    kind: str
    machine: str
    run_id: str
    estimate: float
    low: float
    high: float
    measured: float
    terms: Mapping[str, float]
    time: datetime

    @property
    def error(self) -> float:
        """Estimated ÷ measured − 1."""
        return self.estimate / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low <= self.measured <= self.high


def append_measurements(uri: str, measurements: Sequence[Measurement]) -> None:
    """Append measurements to the ledger, in one commit."""
    from deltalake import write_deltalake

    if measurements:
        write_deltalake(uri, _to_arrow(measurements), mode="append")


def read_measurements(uri: str) -> list[Measurement]:
    """Return all measurements, the oldest first; none if there is no ledger yet."""
    from deltalake import DeltaTable

    if "://" not in uri and not (Path(uri) / "_delta_log").is_dir():
        return []
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
    found = [
        Measurement(
            **{
                **row,
                "terms": json.loads(row["terms"]),
                "time": row["time"].replace(tzinfo=UTC),
            }
        )
        for row in rows
        if row["quantity"] in QUANTITIES
    ]
    return sorted(found, key=lambda each: each.time)


def _to_arrow(measurements: Sequence[Measurement]) -> "pa.Table":
    import pyarrow as pa

    texts = ("quantity", "model", "kind", "machine", "run_id", "terms")
    numbers = ("estimate", "low", "high", "measured")
    schema = pa.schema(
        [(name, pa.string()) for name in texts]
        + [(name, pa.float64()) for name in numbers]
        + [("time", pa.timestamp("us", "UTC"))]
    )
    rows = [{**asdict(each), "terms": json.dumps(dict(each.terms))} for each in measurements]
    return pa.Table.from_pylist(rows, schema)


def fits_of(measurements: Sequence[Measurement], machine: str) -> dict[Name, Fit]:
    """Return the fits of a machine's own measurements, by quantity.

    A quantity with fewer than `LEAST_ROWS` measurements of this machine has none.
    """
    fits: dict[Name, Fit] = {}
    for name, quantity in QUANTITIES.items():
        own = [each for each in measurements if each.quantity == name and each.machine == machine]
        if len(own) < LEAST_ROWS:
            continue
        fits[name] = fit_terms(
            [each.terms for each in own],
            [each.measured for each in own],
            quantity.terms,
            groups=[each.model for each in own],
            robust=True,
        )
    return fits


@dataclass(frozen=True)
class Accuracy:
    """How well a quantity was estimated on a machine.

    Attributes:
        quantity: the quantity.
        machine: the machine.
        count: number of measurements.
        median_error: median of |estimated ÷ measured − 1|.
        held: share of the measurements that their interval held; None if none had an interval.
    """

    quantity: Name
    machine: str
    count: int
    median_error: float
    held: float | None


def accuracy_of(measurements: Sequence[Measurement]) -> list[Accuracy]:
    """Return the accuracy by quantity and machine."""
    from statistics import median

    groups: dict[tuple[str, str], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault((each.quantity, each.machine), []).append(each)
    found = []
    for (quantity, machine), own in groups.items():
        bounded = [each.held for each in own if each.high < float("inf")]
        found.append(
            Accuracy(
                cast(Name, quantity),
                machine,
                len(own),
                median(abs(each.error) for each in own),
                sum(bounded) / len(bounded) if bounded else None,
            )
        )
    return found
