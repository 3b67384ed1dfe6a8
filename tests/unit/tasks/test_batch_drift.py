import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.data.column_statistics import statistics_of
from millrace.models.data.folder import Folder
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.serving.batch.input.row_lineage import LINEAGE
from millrace.serving.batch.monitoring.drift import Bins
from millrace.tasks.batch.drift_reference import PREDICTION, bins_of
from millrace.tasks.batch.drift_report import Event, report_drift
from tests.unit.tasks.test_batch_run import REPORT

SCHEMA = TableSchema(
    (
        Column("id", "int"),
        Column("age (years)", "float", nullable=True),
        Column("note", "text"),
        Column("kind", "category", categories=("a", "b")),
        Column("t", "category", categories=("no", "yes")),
    ),
    ("id",),
    "t",
    ("age (years)", "note", "kind"),
)


def rows(age: float, kinds: str, count: int = 2000) -> pa.RecordBatch:
    chance = np.random.default_rng(0)
    columns = {
        "id": list(range(count)),
        "age (years)": chance.normal(age, size=count),
        "note": ["text"] * count,
        "kind": [kinds[n % len(kinds)] for n in range(count)],
        "t": ["no", "yes"] * (count // 2),
    }
    return pa.record_batch(columns)


@pytest.fixture
def snapshot() -> Snapshot:
    learnt = rows(40, "aab")
    known = statistics_of(learnt, SCHEMA)
    return Snapshot("m", "uri", 2, "digest", learnt.num_rows, SCHEMA, known, {})


class Run:
    """Keeps what MLflow would be told."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.files: dict[str, Any] = {}

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.metrics |= metrics

    def log_report(self, texts: dict[str, str], figures: dict[str, Any]) -> None:
        self.files |= texts | figures


def told(
    folder: Path, snapshot: Snapshot, seen: pa.RecordBatch
) -> tuple[Run, list[str], list[Event]]:
    """Tell the drift of a job that saw rows: what was logged, what is over 0.25, and the events."""
    features, target = bins_of(snapshot)
    every = (*features, *target)
    counts = {bins.column: counted(bins, seen).tolist() for bins in every}
    Folder(f"{folder}/{LINEAGE}").write_json("f-1.json", {"seen": counts})
    report = REPORT.__class__(**{**vars(REPORT), "table": str(folder)})
    run, events = Run(), list[Event]()
    over = report_drift(run, report, every, 0.25, events.append)  # type: ignore[arg-type]
    return run, [drift.column for drift in over], events


def counted(bins: Bins, seen: pa.RecordBatch) -> Any:
    return bins.count(seen["t" if bins.column == PREDICTION else bins.column])


def test_rows_like_those_of_training_do_not_drift(tmp_path: Path, snapshot: Snapshot) -> None:
    run, over, events = told(tmp_path, snapshot, rows(40, "aab"))
    assert (over, events) == ([], [])
    assert run.metrics.keys() == {"drift.age _years_", "drift.kind", "drift.prediction"}
    assert run.files.keys() == {"drift.json", "plots/drift.png", "plots/drift_shares.png"}


def test_a_column_that_moved_is_told_with_an_event(tmp_path: Path, snapshot: Snapshot) -> None:
    run, over, events = told(tmp_path, snapshot, rows(42, "aab"))
    assert over == ["age (years)"]
    assert run.metrics["drift.age _years_"] > 0.25 > run.metrics["drift.kind"]
    (event,) = events
    assert (event.model, event.event) == ("m", "millrace.batch.drift")
    assert list(event.details["columns"]) == ["age (years)"]
    assert event.text.startswith("drift of age (years) (PSI ")
    table = {each["column"]: each for each in json.loads(run.files["drift.json"])}
    assert 0 < table["age (years)"]["jensen_shannon"] <= 1
