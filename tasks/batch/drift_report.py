"""How far the rows of a batch job are from the training rows of its model, logged to MLflow."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from millrace.models.common.pictures import png_of
from millrace.models.registry.tracking import TrackedRun
from millrace.serving.batch.input.row_lineage import read_seen
from millrace.serving.batch.monitoring.batch_plots import drift_figure, shares_figure
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.drift import Bins, Drift, drift_of
from millrace.tasks.alerts import DRIFT, Event
from millrace.tasks.progress import log

WORST = 6
UNNAMEABLE = re.compile(r"[^\w\-. /:]")
"""Characters that MLflow does not allow in the name of a metric."""


Emit = Callable[[Event], None]


def report_drift(
    run: TrackedRun, report: BatchReport, bins: tuple[Bins, ...], limit: float, emit: Emit
) -> list[Drift]:
    """Log every column's drift, warn of columns over the limit, and return these columns' drifts.

    Args:
        run: the open run.
        report: the job's report.
        bins: the bins of the columns.
        limit: largest allowed excess of the PSI over the PSI that is expected by chance.
        emit: called with an event if a column is over the limit.
    """
    seen = read_seen(report.table, report.job)
    pairs = [(b, np.array(seen[b.column])) for b in bins if sum(seen.get(b.column, ()))]
    drifts = [drift_of(*pair) for pair in pairs]
    if not drifts:
        return []
    names = {drift.column: UNNAMEABLE.sub("_", drift.column) for drift in drifts}
    run.log_metrics({f"drift.{names[drift.column]}": drift.psi for drift in drifts})
    ranked = sorted(zip(drifts, pairs, strict=True), key=lambda each: -each[0].excess)
    run.log_report(
        {"drift.json": json.dumps([asdict(drift) for drift in drifts], indent=1)},
        {
            "plots/drift.png": png_of(drift_figure(drifts, limit)),
            "plots/drift_shares.png": png_of(shares_figure([pair for _, pair in ranked[:WORST]])),
        },
    )
    over = [drift for drift, _ in ranked if drift.exceeds(limit)]
    if over:
        emit(_warned(report, over, limit))
    return over


def _warned(report: BatchReport, over: list[Drift], limit: float) -> Event:
    columns = ", ".join(f"{drift.column} (PSI {drift.psi:.2f})" for drift in over[:WORST])
    log.warning(
        "columns whose drift from the training data is over batch.max_drift (%g): %s",
        limit,
        columns,
    )
    details = {
        "date": report.date,
        "model_version": report.model_version,
        "limit": limit,
        "columns": {drift.column: drift.psi for drift in over},
    }
    return Event(DRIFT, report.model, f"drift of {columns} on {report.date}", details)
