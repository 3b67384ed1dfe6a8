"""The ledger of the planner: each estimate beside its measurement, a table in the home.

From it the estimates of a machine are fitted again, and the accuracy is shown.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

from millrace.models.planner.estimates import QUANTITIES, Name
from millrace.models.planner.fit import Fit
from millrace.models.planner.published_runs import published_fits

if TYPE_CHECKING:
    import pyarrow as pa

NORMAL_QUANTILE = 1.645
"""Standard deviations to either end of an interval that holds nine of ten values."""


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


def fits_of(
    measurements: Sequence[Measurement], machine: str, *, on_gpu: bool = False
) -> dict[Name, Fit]:
    """Return the fits of a machine, by quantity.

    The published weights, times one factor for each quantity that the machine has measured. Few
    measurements can tell how fast a machine is, and not how each part of the work is.

    Args:
        measurements: the ledger.
        machine: the machine, as the ledger names it.
        on_gpu: whether it is a GPU.
    """
    fits = published_fits(on_gpu=on_gpu)
    for name, fit in fits.items():
        ratios = [
            each.measured / estimate
            for each in measurements
            if (each.quantity, each.machine) == (name, machine)
            and (estimate := fit.estimate(known_terms(each, fit)).value) > 0
        ]
        if ratios:
            fits[name] = scaled_fit(fit, ratios)
    return fits


def known_terms(measurement: Measurement, fit: Fit) -> dict[str, float]:
    """Return the terms of a measurement; a term that its release did not have is 0."""
    return {name: measurement.terms.get(name, 0.0) for name in fit.weights}


def scaled_fit(fit: Fit, ratios: Sequence[float]) -> Fit:
    """Return a fit whose weights are moved towards a machine's own measurements.

    By the mean logarithm of measured ÷ estimated, less one standard error, which is known from the
    fit's interval. So chance alone moves little, and a machine of another speed moves it at once.

    Args:
        fit: the published fit.
        ratios: measured ÷ estimated of the machine's own measurements.
    """
    spread = math.log(fit.high / fit.low) / (2 * NORMAL_QUANTILE)
    middle = median(map(math.log, ratios))
    moved = max(0.0, abs(middle) - spread / math.sqrt(len(ratios)))
    factor = math.exp(math.copysign(moved, middle))
    weights = {name: weight * factor for name, weight in fit.weights.items()}
    return replace(fit, weights=weights, rows=fit.rows + len(ratios))


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
