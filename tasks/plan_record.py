"""Writes the plan of a run, a certificate or a batch job beside what was measured.

To the planner's ledger, to the MLflow run and to the report of the run.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread
from typing import Any

from millrace.export.candidate import AnyCandidate
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.planner.compared_figures import (
    HEAD,
    ComparedFigure,
    batch_figures,
    derived_figures,
    fitted_figures,
)
from millrace.models.planner.measurements import (
    Measurement,
    append_measurements,
)
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import CANDIDATE_TAG, ModelVersion, Package
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import Exported, KindReport, Trained, steps_of
from millrace.tasks.plan import data_facts, facts_of_snapshot, ledger_of
from millrace.tasks.plan_measured import (
    RunPlan,
    measured_batch,
    measured_in,
    measured_speed,
    tail_of,
    units_of,
)
from millrace.tasks.plan_run import asked_of, plan_of, warn_of_fault
from millrace.tasks.reports.markdown import table

FILE, LIVE_FILE = "plan/plan.json", "plan/plan-live.json"
"""Artifacts of a run: its estimates and measurements, and those of `millrace certify`."""


def record_run(
    planned: "Future[RunPlan | None]",
    kind: ModelKind,
    installation: Installation,
    trained: Trained[Any],
    exported: Exported,
    report: KindReport,
    run: TrackedRun,
) -> KindReport:
    """Append a run's measurements to the ledger; return its report with them beside the plan.

    They are a file of the run and a section of its page, which is also a Prefect artifact. The
    ledger is written in a thread. A run does not fail because it cannot be written: then a warning
    is logged.
    """
    plan = planned.result()
    if plan is None:
        return report
    chosen: AnyCandidate = exported.chosen
    measured = measured_in(plan, kind, trained, chosen.name, chosen.speed, run.run_id)
    Thread(target=_append, args=(installation, measured), name="append-measurements").start()
    derived = [
        *tail_of(chosen.speed),
        *derived_figures(measured, plan.work, plan.price_per_hour),
    ]
    rows = [each.cells() for each in (*fitted_figures(measured), *derived)]
    return replace(
        report,
        texts={**report.texts, FILE: _as_json(measured, derived)},
        sections=[*report.sections, ("Plan", table(HEAD, rows))],
    )


def _as_json(measured: Sequence[Measurement], derived: Sequence[ComparedFigure]) -> str:
    """Return `plan.json`: the quantities with their terms, and what follows from them."""
    fitted = {
        each.name: {**each.as_json(), "terms": dict(own.terms)}
        for each, own in zip(fitted_figures(measured), measured, strict=True)
    }
    whole = {
        "machine": str(this_machine()),
        "quantities": fitted,
        "derived": {each.name: each.as_json() for each in derived},
    }
    return json.dumps(whole, indent=2)


def _append(installation: Installation, measured: Sequence[Measurement]) -> None:
    """Append to the ledger, beside the registration; the process ends only when it is done."""
    try:
        append_measurements(ledger_of(installation), measured)
    except Exception as error:  # a run does not fail because its plan was not recorded
        warn_of_fault(error)


def record_batch(
    pipeline: Pipeline, installation: Installation, version: ModelVersion, report: BatchReport
) -> Mapping[str, str]:
    """Append a batch job's time to the ledger; return it beside its estimate, as a file of its run.

    A job does not fail because its plan could not be recorded: then a warning is logged.
    """
    if installation.ray_address != EMBEDDED:
        return {}
    try:
        facts = data_facts(pipeline, installation, call_functions=False)
        plan = plan_of(asked_of(version.kind, pipeline, installation, facts), installation)
        name = version.tags.get(CANDIDATE_TAG)
        measured = measured_batch(plan, version.kind, name, report)
        append_measurements(ledger_of(installation), measured)
    except Exception as error:
        warn_of_fault(error)
        return {}
    price, units = plan.price_per_hour, units_of(report)
    derived = [
        each for job in measured for each in batch_figures(job, units, plan.work.unit, price)
    ]
    return {FILE: _as_json(measured, derived)} if measured else {}


def record_certified(
    package: Package, installation: Installation, snapshot: Snapshot
) -> Mapping[str, str]:
    """Measure a version's speed again; return it beside its estimate, as a file of its run.

    A certificate does not fail because the speed could not be measured: then a warning is logged.

    Args:
        package: the version's files.
        installation: has the ledger, and this machine's measurements.
        snapshot: the data that the version was certified on.
    """
    version = package.version
    try:
        steps, pipeline = steps_of(version.kind), pipeline_of(package)
        facts = facts_of_snapshot(pipeline, snapshot, read=False)
        speed = steps.measure_speed(package, installation)
        plan = plan_of(asked_of(version.kind, pipeline, installation, facts), installation)
        name = version.tags.get(CANDIDATE_TAG, "")
        measured = measured_speed(plan, version.kind, name, speed, version.run_id)
        append_measurements(ledger_of(installation), measured)
    except Exception as error:
        warn_of_fault(error)
        return {}
    price = plan.price_per_hour
    derived = [*tail_of(speed), *derived_figures(measured, plan.work, price)]
    return {LIVE_FILE: _as_json(measured, derived)} if measured else {}
