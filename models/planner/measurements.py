"""The ledger of the planner: each estimate beside its measurement, a table in the home.

From it the estimates of a machine are fitted again, and the accuracy is shown.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from millrace.models.planner.estimates import QUANTITIES, Name
from millrace.models.planner.fit import Fit, Terms
from millrace.models.planner.published_runs import counted_terms, host_fits, published_fits

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("millrace")
TEXTS = ("quantity", "model", "kind", "machine", "run_id", "terms")
NUMBERS = ("estimate", "low", "high", "measured")
NORMAL_QUANTILE = 1.645
"""Standard deviations to either end of an interval that holds nine of ten values."""
MACHINE_SPREAD: Mapping[str, float] = {"seconds": 0.3, "bytes": 0.1}
"""Standard deviation of the logarithm by which machines differ from the published ones, by unit:
two of three take at most 1.35 times as long, or as short. Memory is counted: it hardly differs."""
DISTURBED = "disturbed"
"""Name beside the terms of a measurement whose machine was measured while other programs ran."""
MOST_FACTOR = 5.0
"""Largest factor, and its inverse the smallest, by which a measurement that counts differs from its
estimate: beyond it something else than the machine is different."""


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
    """Return all measurements, the oldest first; none if there is no ledger yet.

    A plan does not fail because of its ledger: rows that are damaged are left out, and a table that
    cannot be read is a warning.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    is_local = "://" not in uri
    if is_local and not (Path(uri) / "_delta_log").is_dir():
        return []
    try:
        rows = DeltaTable(uri).to_pyarrow_table(columns=[*TEXTS, *NUMBERS, "time"]).to_pylist()
    except Exception as error:  # a damaged table may fail in any way
        if is_local or not isinstance(error, TableNotFoundError):
            fault = (str(error) or type(error).__name__).splitlines()[0]
            log.warning("no measurements count: the ledger %s cannot be read: %s", uri, fault)
        return []
    found = [each for each in map(_measurement_of, rows) if each is not None]
    return sorted(found, key=lambda each: each.time)


def _measurement_of(row: Mapping[str, Any]) -> Measurement | None:
    """Return the measurement in a row of the ledger; None for a damaged or foreign row."""
    are_texts = all(isinstance(row[name], str) for name in TEXTS)
    are_numbers = all(isinstance(row[name], float) and row[name] >= 0 for name in NUMBERS)
    if not are_texts or not are_numbers or row["quantity"] not in QUANTITIES:
        return None
    is_positive = all(0 < row[name] < math.inf for name in ("estimate", "measured"))
    terms = _terms_in(row["terms"])
    if not is_positive or terms is None or not isinstance(row["time"], datetime):
        return None
    return Measurement(**{**row, "terms": terms, "time": row["time"].replace(tzinfo=UTC)})


def _terms_in(text: str) -> dict[str, float] | None:
    """Return the terms in a JSON object; None if they are not finite numbers."""
    try:
        terms = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    is_known = isinstance(terms, dict) and all(
        isinstance(each, float) and math.isfinite(each) for each in terms.values()
    )
    return terms if is_known else None


def _to_arrow(measurements: Sequence[Measurement]) -> "pa.Table":
    import pyarrow as pa

    schema = pa.schema(
        [(name, pa.string()) for name in TEXTS]
        + [(name, pa.float64()) for name in NUMBERS]
        + [("time", pa.timestamp("us", "UTC"))]
    )
    rows = [{**asdict(each), "terms": json.dumps(dict(each.terms))} for each in measurements]
    return pa.Table.from_pylist(rows, schema)


def fits_of(
    measurements: Sequence[Measurement], machine: str, *, on_gpu: bool = False
) -> dict[Name, Fit]:
    """Return the fits of a machine, by quantity.

    The published weights, times one factor for each quantity that the machine has measured. Few
    measurements can tell how fast a machine is, and not how each part of the work is. Measurements
    of a release that lacked a term do not count, because their estimates would be too small, nor
    those whose terms are by figures that other programs disturbed.

    Args:
        measurements: the ledger.
        machine: the machine, as the ledger names it.
        on_gpu: whether it is a GPU.
    """
    fits = published_fits(on_gpu=on_gpu)
    for name, fit in fits.items():
        own = [
            (each.measured / estimate, terms)
            for each in measurements
            if (each.quantity, each.machine) == (name, machine)
            and DISTURBED not in each.terms
            and _has_all_terms(each, fit)
            and (estimate := fit.estimate(terms := known_terms(each, fit)).value) > 0
            and 1 / MOST_FACTOR <= each.measured / estimate <= MOST_FACTOR
        ]
        if own:
            ratios, rows = zip(*own, strict=True)
            spread = MACHINE_SPREAD[QUANTITIES[name].unit]
            scaled = scaled_fit(fit, ratios, counted_terms(name, on_gpu=on_gpu), spread)
            fits[name] = replace(scaled, region=_widened(fit.region, rows))
    return {**host_fits(), **fits} if on_gpu else fits


def _widened(
    region: Mapping[str, tuple[float, float]], rows: Sequence[Terms]
) -> dict[str, tuple[float, float]]:
    """Return a fitted region with the values of further measurements."""
    return {
        name: (min(low, *(row[name] for row in rows)), max(high, *(row[name] for row in rows)))
        for name, (low, high) in region.items()
    }


def _has_all_terms(measurement: Measurement, fit: Fit) -> bool:
    """Return whether a measurement has each term that has a weight."""
    return all(name in measurement.terms for name, weight in fit.weights.items() if weight)


def known_terms(measurement: Measurement, fit: Fit) -> dict[str, float]:
    """Return the terms of a measurement; a term that its release did not have is 0."""
    return {name: measurement.terms.get(name, 0.0) for name in fit.weights}


def scaled_fit(fit: Fit, ratios: Sequence[float], counted: Sequence[str], spread: float) -> Fit:
    """Return a fit whose weights are moved towards a machine's own measurements.

    By the median logarithm of measured ÷ estimated, of two the smaller one, times the share of it
    that is the machine's and not chance: the posterior mean of a normal prior of `spread`, where
    the fit's interval says how much a single run varies.

    Args:
        fit: the published fit.
        ratios: measured ÷ estimated of the machine's own measurements.
        counted: the terms whose weight is at least 1.
        spread: standard deviation of the logarithm by which machines differ.
    """
    chance = math.log(fit.high / fit.low) / (2 * NORMAL_QUANTILE)
    share = spread**2 / (spread**2 + chance**2 / len(ratios))
    logs = sorted(map(math.log, ratios))
    middle = min(logs[(len(logs) - 1) // 2], logs[len(logs) // 2], key=abs)
    factor = math.exp(share * middle)
    weights = {
        name: max(weight * factor, float(name in counted)) for name, weight in fit.weights.items()
    }
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
