"""How a model did on the labels that came back, by date and version, as a Delta table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import deltalake
import pyarrow as pa

from millrace.models.common.installation import Installation
from millrace.models.registry.gates import LiveFigures
from millrace.tasks.labelled_predictions import BATCH

FEEDBACK = "feedback"
"""Folder of the tables with what the labels of each model said."""


@dataclass(frozen=True)
class LiveDay:
    """How a version did on the labelled rows of one date.

    Attributes:
        date: the date of the partition; of an online answer, in UTC.
        version: the version that answered.
        source: `batch`, or `online` for the answers in the request log.
        labels: number of rows with a label.
        metric: what `value` is: accuracy or rmse.
        value: the metric.
        low: lower end of its 95% interval; None for the rmse of one row, and of earlier releases.
        high: its upper end.
    """

    date: str
    version: int
    labels: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    source: str = BATCH


def history_with(installation: Installation, model: str, days: Sequence[LiveDay]) -> list[LiveDay]:
    """Return the days with those of earlier calls, the oldest first."""
    uri, fresh = installation.table(FEEDBACK, model), {_place(asdict(each)) for each in days}
    stored: list[LiveDay] = []
    if deltalake.DeltaTable.is_deltatable(uri):
        for row in deltalake.DeltaTable(uri).to_pyarrow_table().to_pylist():
            row.pop("measured_at")
            stored.append(LiveDay(**row))
    kept = [each for each in stored if _place(asdict(each)) not in fresh]
    return sorted([*kept, *days], key=lambda each: (each.date, each.version))


def live_figures(installation: Installation, model: str, version: int) -> LiveFigures | None:
    """Return how a version's own predictions did on all labels so far; None without labels."""
    days = [each for each in history_with(installation, model, ()) if each.version == version]
    labels = sum(each.labels for each in days)
    if not labels:
        return None
    is_error, shares = days[0].metric == "rmse", [each.labels / labels for each in days]
    values = [each.value**2 if is_error else each.value for each in days]
    mean = sum(share * value for share, value in zip(shares, values, strict=True))
    return LiveFigures(days[0].metric, mean**0.5 if is_error else mean, labels)


def store_days(installation: Installation, model: str, days: Sequence[LiveDay]) -> None:
    """Replace the figures of these dates and versions in the model's table of feedback."""
    if not days:
        return
    uri, now = installation.table(FEEDBACK, model), datetime.now(UTC).isoformat()
    rows: list[dict[str, Any]] = [{**asdict(each), "measured_at": now} for each in days]
    fresh = {_place(row) for row in rows}
    if deltalake.DeltaTable.is_deltatable(uri):
        earlier = deltalake.DeltaTable(uri).to_pyarrow_table().to_pylist()
        rows += [row for row in earlier if _place(row) not in fresh]
    rows.sort(key=lambda row: (row["date"], row["version"]))
    rows = [{"source": BATCH, **row} for row in rows]
    table = pa.Table.from_pylist(rows, SCHEMA)
    deltalake.write_deltalake(uri, table, mode="overwrite", schema_mode="overwrite")


def _place(row: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return what a day's figures are identified by; those of an earlier release are of a batch."""
    return row["date"], row["version"], row.get("source", BATCH)


SCHEMA = pa.schema(
    [
        *(("date", pa.string()), ("version", pa.int64()), ("labels", pa.int64())),
        *(("metric", pa.string()), ("value", pa.float64())),
        *(("low", pa.float64()), ("high", pa.float64()), ("source", pa.string())),
        ("measured_at", pa.string()),
    ]
)
