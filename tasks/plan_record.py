"""Writes the plan of a run beside what was measured: to MLflow, and to the planner's ledger."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from threading import Thread
from typing import Any

from millrace.export.candidate import AnyCandidate
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.planner.catalogue import THIS_MACHINE, Machines
from millrace.models.planner.estimates import (
    Fits,
    Name,
    call_terms,
    estimate_quantity,
    job_terms,
    serving_memory_terms,
    training_memory_terms,
    training_step_terms,
)
from millrace.models.planner.fit import Terms
from millrace.models.planner.measurements import (
    Measurement,
    append_measurements,
    fits_of,
    read_measurements,
)
from millrace.models.planner.sheet import actors_on, plan_sheet
from millrace.models.planner.this_machine import this_device
from millrace.models.planner.work import TrainingWork, Work
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import CANDIDATE_TAG, ModelVersion
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.kinds.steps import Exported, Prepared, Trained, steps_of
from millrace.tasks.plan import data_facts, facts_of_snapshot, ledger_of
from millrace.tasks.progress import log

FILE = "plan/plan.json"
"""Artifact of a run: its estimates and measurements."""
MEMORY, MIB = "worker_memory_mib", 2**20


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, made before its training begins.

    Attributes:
        work: what the run asks for.
        machines: this machine.
        fits: what was fitted on earlier measurements of this machine.
    """

    work: Work
    machines: Machines
    fits: Fits


def work_of_run(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    prepared: Prepared[Any],
) -> Work | None:
    """Return what a run on this machine asks for; None where another machine trains.

    This machine is measured, if the home does not know it yet. A run does not fail because it
    cannot be planned: then a warning is logged.

    Args:
        kind: the kind of the model.
        pipeline: the pipeline.
        installation: its home has this machine's measurements.
        snapshot: the data.
        prepared: the training, with the settings that the pipeline leaves open.
    """
    if installation.ray_address != EMBEDDED:
        return None
    names = ("batch_size", "num_workers")
    chosen = {name: int(prepared.chosen[name]) for name in names if name in prepared.chosen}
    training = pipeline.training.model_copy(update=chosen)
    pipeline = pipeline.model_copy(update={"training": training})
    try:
        this_device(installation.home)
        return steps_of(kind).plan(
            pipeline, installation, facts_of_snapshot(pipeline, snapshot, read=False)
        )
    except Exception as error:
        _warn(error)
        return None


@contextmanager
def planned_beside(
    work: Work | None, installation: Installation
) -> Iterator["Future[RunPlan | None]"]:
    """Plan a run in a thread beside the block, in which this process waits for a training.

    The thread imports nothing: two threads that import at a time may each find a module of the
    other half done. `work_of_run` has imported what it needs.
    """
    planned: Future[RunPlan | None] = Future()

    def plan() -> None:
        try:
            planned.set_result(None if work is None else _plan_run(work, installation))
        except Exception as error:  # a run does not fail because it was not planned
            _warn(error)
            planned.set_result(None)

    # The thread does not keep an interrupted process alive, as one of an executor would.
    Thread(target=plan, name="plan", daemon=True).start()
    yield planned


def _plan_run(work: Work, installation: Installation) -> RunPlan:
    """Return the plan of a run, and warn of what does not fit into this machine's memory."""
    fits = fits_of(read_measurements(ledger_of(installation)), str(this_machine()))
    machines = Machines(THIS_MACHINE, this_device(installation.home))
    for fault in plan_sheet(work, machines, fits).faults:
        log.warning("%s", fault)
    return RunPlan(work, machines, fits)


def record_run(
    planned: "Future[RunPlan | None]",
    kind: ModelKind,
    installation: Installation,
    trained: Trained[Any],
    exported: Exported,
    run: TrackedRun,
) -> Mapping[str, str]:
    """Append a run's measurements to the ledger; return them beside the plan, as a file of the run.

    The ledger is written in a thread. A run does not fail because it cannot be written: then a
    warning is logged.
    """
    plan = planned.result()
    if plan is None:
        return {}
    measured = measured_in(plan, kind, trained, exported.chosen, run.run_id)
    Thread(target=_append, args=(installation, measured), name="append-measurements").start()
    rows = {
        each.quantity: {
            "estimate": each.estimate,
            "low": each.low,
            "high": None if each.high == float("inf") else each.high,
            "measured": each.measured,
            "terms": dict(each.terms),
        }
        for each in measured
    }
    return {FILE: json.dumps({"machine": str(this_machine()), "quantities": rows}, indent=2)}


def _append(installation: Installation, measured: Sequence[Measurement]) -> None:
    """Append to the ledger, beside the registration; the process ends only when it is done."""
    try:
        append_measurements(ledger_of(installation), measured)
    except Exception as error:  # a run does not fail because its plan was not recorded
        _warn(error)


def record_batch(
    pipeline: Pipeline, installation: Installation, version: ModelVersion, report: BatchReport
) -> None:
    """Append a batch job's time to the ledger, beside its estimate.

    A job does not fail because its plan could not be recorded: then a warning is logged.
    """
    if installation.ray_address != EMBEDDED:
        return
    try:
        measured = _measured_batch(pipeline, installation, version, report)
        append_measurements(ledger_of(installation), measured)
    except Exception as error:
        _warn(error)


def _measured_batch(
    pipeline: Pipeline, installation: Installation, version: ModelVersion, report: BatchReport
) -> list[Measurement]:
    """Return the measurement of a batch job; nothing if an earlier run did a part of it."""
    device = this_device(installation.home)
    machines = Machines(THIS_MACHINE, device)
    facts = data_facts(pipeline, installation, call_functions=False)
    work = steps_of(version.kind).plan(pipeline, installation, facts)
    job, name = actors_on(work.batch, machines), version.tags.get(CANDIDATE_TAG)
    variant = next((each for each in job.variants if each.name == name), None)
    if variant is None or report.resumed or not report.scored:
        return []
    units, calls = float(report.scored), report.scored / job.call_units
    if report.tokens_out is not None:
        units = float(report.tokens_out + (report.tokens_in or 0))
        calls = report.tokens_out / job.call_units
    terms = job_terms(job, variant, units, calls, machines)
    fits = fits_of(read_measurements(ledger_of(installation)), str(this_machine()))
    plan = RunPlan(work, machines, fits)
    return [_measurement(plan, version.kind, report.job, "batch_job", terms, report.seconds)]


def _warn(error: BaseException) -> None:
    why = next(iter(str(error).splitlines()), type(error).__name__)
    log.warning("the plan was not recorded: %s", why)


def measured_in(
    plan: RunPlan,
    kind: ModelKind,
    trained: Trained[Any],
    chosen: AnyCandidate,
    run_id: str,
) -> list[Measurement]:
    """Return the measurements of a run, each with its estimate."""
    training = plan.work.training
    found: list[tuple[Name, Terms, float | None]] = [
        (
            "training_step",
            training_step_terms(training, plan.machines),
            step_seconds_of(training, plan.work.unit, trained.history),
        ),
        (
            "training_memory",
            training_memory_terms(training, plan.work.online.engine),
            memory_of(trained.history),
        ),
    ]
    speed, online = chosen.speed, plan.work.online
    variant = next((each for each in online.variants if each.name == chosen.name), None)
    if speed is not None and variant is not None:
        alone = replace(online, instances=1)
        full = call_terms(alone, variant, online.call_units, plan.machines)
        per_unit = {name: value / online.call_units for name, value in full.items()}
        latency = speed.latency_ms / 1000
        found += [
            ("online_call", call_terms(alone, variant, 1, plan.machines), latency),
            ("online_unit", per_unit, 1 / speed.per_second if speed.per_second else None),
            ("online_memory", serving_memory_terms(alone, variant), peak_of(speed)),
        ]
    return [
        _measurement(plan, kind, run_id, name, terms, value)
        for name, terms, value in found
        if value is not None and value > 0
    ]


def _measurement(
    plan: RunPlan, kind: ModelKind, run_id: str, name: Name, terms: Terms, value: float
) -> Measurement:
    estimate = estimate_quantity(name, "", terms, plan.fits)
    return Measurement(
        quantity=name,
        model=plan.work.model,
        kind=kind.name,
        machine=str(this_machine()),
        run_id=run_id,
        estimate=estimate.value,
        low=estimate.low or 0.0,
        high=float("inf") if estimate.high is None else estimate.high,
        measured=value,
        terms=terms,
        time=datetime.now(UTC),
    )


def step_seconds_of(
    training: TrainingWork, unit: str, history: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the median time of a step, of the second half of the reports.

    The first reports include what happens once, such as the allocation of memory.
    """
    name = "samples_per_second" if unit == "rows" else "tokens_per_second"
    rates = [float(report[name]) for report in history if report.get(name)]
    late = rates[len(rates) // 2 :]
    if not late:
        return None
    return training.step_units * training.workers / median(late)


def memory_of(history: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the peak memory of a worker, in bytes."""
    peaks = [float(report[MEMORY]) for report in history if MEMORY in report]
    return max(peaks) * MIB if peaks else None


def peak_of(speed: Any) -> float | None:
    """Return the peak memory of the process that measured a candidate, in bytes."""
    peak = getattr(speed, "peak_memory_bytes", None)
    return None if peak is None else float(peak)
