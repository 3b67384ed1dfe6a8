"""What of a run, a certificate and a batch job is measured, each beside its estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

from millrace.models.common.hardware import this_machine
from millrace.models.config.model_kind import ModelKind
from millrace.models.planner.catalogue import Machines
from millrace.models.planner.compared_figures import ComparedFigure
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
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.sheet import actors_on
from millrace.models.planner.work import TrainingWork, Work
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.kinds.steps import Trained

MEMORY, MIB = "worker_memory_mib", 2**20
Found = tuple[Name, Terms, float | None]
"""A quantity, the terms of its estimate, and its measurement; None: it was not measured."""


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


def measured_in(
    plan: RunPlan, kind: ModelKind, trained: Trained[Any], name: str, speed: Any, run_id: str
) -> list[Measurement]:
    """Return the measurements of a run, each with its estimate.

    Args:
        plan: the plan of the run.
        kind: the kind of the model.
        trained: has the reports of the training.
        name: name of the variant that was chosen.
        speed: its speed; None: not measured.
        run_id: the MLflow run.
    """
    training = plan.work.training
    found: list[Found] = [
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
    return _measurements(plan, kind, run_id, [*found, *_found_of_speed(plan, name, speed)])


def measured_speed(
    plan: RunPlan, kind: ModelKind, name: str, speed: Any, run_id: str
) -> list[Measurement]:
    """Return the measurements of a variant's speed; the arguments are those of `measured_in`."""
    return _measurements(plan, kind, run_id, _found_of_speed(plan, name, speed))


def _found_of_speed(plan: RunPlan, name: str, speed: Any) -> list[Found]:
    online = plan.work.online
    variant = next((each for each in online.variants if each.name == name), None)
    if speed is None or variant is None:
        return []
    alone = replace(online, instances=1)
    full = call_terms(alone, variant, online.call_units, plan.machines)
    per_unit = {term: value / online.call_units for term, value in full.items()}
    return [
        ("online_call", call_terms(alone, variant, 1, plan.machines), speed.latency_ms / 1000),
        ("online_unit", per_unit, 1 / speed.per_second if speed.per_second else None),
        ("online_memory", serving_memory_terms(alone, variant), peak_of(speed)),
    ]


def units_of(report: BatchReport) -> float:
    """Return the units of a batch job: rows, or tokens read and generated."""
    if report.tokens_out is None:
        return float(report.scored)
    return float(report.tokens_out + (report.tokens_in or 0))


def measured_batch(
    plan: RunPlan, kind: ModelKind, name: str | None, report: BatchReport
) -> list[Measurement]:
    """Return the measurement of a batch job; none if an earlier run did a part of it.

    Args:
        plan: the plan of the job.
        kind: the kind of the model.
        name: name of the variant that scored.
        report: the report of the job.
    """
    job = actors_on(plan.work.batch, plan.machines)
    variant = next((each for each in job.variants if each.name == name), None)
    if variant is None or report.resumed or not report.scored:
        return []
    generated = report.scored if report.tokens_out is None else report.tokens_out
    calls = generated / job.call_units
    terms = job_terms(job, variant, units_of(report), calls, plan.machines)
    return _measurements(plan, kind, report.job, [("batch_job", terms, report.seconds)])


def _measurements(
    plan: RunPlan, kind: ModelKind, run_id: str, found: Sequence[Found]
) -> list[Measurement]:
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


def tail_of(speed: Any) -> list[ComparedFigure]:
    """Return the 99th percentile of the latency, which is measured only; none if it is not."""
    tail = getattr(speed, "p99_ms", None)
    if tail is None:
        return []
    words = "latency of one row, 99th percentile"
    return [ComparedFigure("online_call_p99", words, "seconds", float(tail) / 1000)]
