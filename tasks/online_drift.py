"""How far the rows that were asked online are from the training rows of the version that answered.

The rows are those of the request log (`serving/request_table.py`). They are compared as the rows of
a batch job are (`serving/batch/monitoring/drift.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.serving.batch.monitoring.drift import Bins, Drift, drift_of
from millrace.serving.request_table import REQUESTS
from millrace.tasks.batch.drift_reference import bins_of, open_training_snapshot
from millrace.tasks.progress import log

DAYS = 7
MOST_ROWS = 100_000
"""Rows that are compared; of more, a sample."""
SEED = 0


@dataclass(frozen=True)
class OnlineDrift:
    """The drift of the rows that a version was asked.

    Attributes:
        version: the version.
        since: the first of the dates, in UTC.
        rows: number of rows that were compared.
        limit: largest allowed PSI above the PSI that is expected by chance: `batch.max_drift`.
        columns: the drift of each column, the largest first.
    """

    version: int
    since: str
    rows: int
    limit: float
    columns: tuple[Drift, ...]

    @property
    def over(self) -> tuple[Drift, ...]:
        """The columns over the limit."""
        return tuple(each for each in self.columns if each.exceeds(self.limit))


def read_online_drift(
    installation: Installation, model: str, limit: float
) -> tuple[OnlineDrift, ...]:
    """Return the drift of the newest week of logged requests, by version, the oldest first.

    Versions without a training snapshot are left out, and columns that were not logged.

    Args:
        installation: where the registry and the tables are.
        model: the model.
        limit: largest allowed excess of the PSI over the PSI that is expected by chance.
    """
    uri = installation.table(REQUESTS, model)
    if not deltalake.DeltaTable.is_deltatable(uri):
        return ()
    table = deltalake.DeltaTable(uri).to_pyarrow_dataset()
    newest = pc.max(table.to_table(columns=["date"])["date"]).as_py()
    if newest is None:
        return ()
    since = (date.fromisoformat(newest) - timedelta(days=DAYS - 1)).isoformat()
    asked = table.to_table(columns=["model_version", "row"], filter=pc.field("date") >= since)
    versions = sorted(asked["model_version"].unique().to_pylist())
    found = (_of_version(installation, model, each, asked, since, limit) for each in versions)
    return tuple(each for each in found if each is not None)


def _of_version(
    installation: Installation, model: str, version: int, asked: pa.Table, since: str, limit: float
) -> OnlineDrift | None:
    bins = _bins_of_version(installation, model, version)
    rows = asked.filter(pc.equal(asked["model_version"], version))["row"]
    if not bins:
        return None
    if len(rows) > MOST_ROWS:
        chosen = np.random.default_rng(SEED).choice(len(rows), MOST_ROWS, replace=False)
        rows = rows.take(pa.array(np.sort(chosen)))
    drifts = sorted(_drifts(bins, rows), key=lambda each: -each.excess)
    return OnlineDrift(version, since, len(rows), limit, tuple(drifts))


def _bins_of_version(installation: Installation, model: str, version: int) -> Sequence[Bins]:
    try:
        found = registry_of(installation).version(model, version)
        snapshot = open_training_snapshot(found, installation)
    except MillraceError as error:
        log.warning("the drift of version %d is not measured: %s", version, error.what)
        return ()
    return () if snapshot is None else bins_of(snapshot)[0]


def _drifts(bins: Sequence[Bins], rows: pa.ChunkedArray) -> Iterator[Drift]:
    read: list[Mapping[str, Any]] = [json.loads(row) for row in rows.to_pylist()]
    for each in bins:
        cells = [_text(row[each.column]) for row in read if each.column in row]
        if cells:
            yield drift_of(each, each.count(pa.array(cells, pa.string())))


def _text(cell: object) -> str | None:
    """Return a cell as the text that is read as the same value."""
    return cell if cell is None or isinstance(cell, str) else json.dumps(cell)
