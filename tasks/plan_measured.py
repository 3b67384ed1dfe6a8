"""What of a run, a certificate and a batch job is measured, each beside its estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from millrace.models.config.model_kind import ModelKind
from millrace.models.planner.compared_figures import ComparedFigure
from millrace.models.planner.estimates import Name, estimate_quantity
from millrace.models.planner.fit import Terms
from millrace.models.planner.measurements import DISTURBED, Measurement
from millrace.models.planner.run_terms import batch_terms, online_terms, training_terms
from millrace.models.planner.work import TrainingWork, Work
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.kinds.steps import Trained
from millrace.tasks.plan_places import Place

MEMORY, MIB = "worker_memory_mib", 2**20


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, made before its training begins.

    Attributes:
        work: what the run asks for.
        trains: where it trains; None: on a GPU that the catalogue does not have.
        serves: where its export and its batch jobs answer; None as above.
        price_per_hour: what this machine costs for an hour; None: not known.
    """

    work: Work
    trains: Place | None
    serves: Place | None
    price_per_hour: float | None = None


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
    values: dict[Name, float | None] = {
        "training_step": step_seconds_of(training, plan.work.unit, trained.history),
        "training_memory": memory_of(trained.history),
    }
    found = []
    if plan.trains is not None:
        terms = training_terms(plan.work, plan.trains.machines)
        found = _measurements(plan, plan.trains, kind, run_id, terms, values)
    return [
        *found,
        *measured_speed(plan, kind, name, speed, run_id),
    ]


def measured_speed(
    plan: RunPlan, kind: ModelKind, name: str, speed: Any, run_id: str
) -> list[Measurement]:
    """Return the measurements of a variant's speed; the arguments are those of `measured_in`."""
    variants = plan.work.online.variants
    variant = next((each for each in variants if each.name == name), None)
    if speed is None or variant is None or plan.serves is None:
        return []
    values: dict[Name, float | None] = {
        "online_call": speed.latency_ms / 1000,
        "online_unit": 1 / speed.per_second if speed.per_second else None,
        # On a GPU the estimate is of its own memory, and the peak that of the host.
        "online_memory": peak_of(speed) if plan.serves.machines.device.is_cpu else None,
    }
    terms = online_terms(plan.work, variant, plan.serves.machines)
    return _measurements(plan, plan.serves, kind, run_id, terms, values)


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
    variants = plan.work.batch.variants
    variant = next((each for each in variants if each.name == name), None)
    if variant is None or plan.serves is None or report.resumed or not report.scored:
        return []
    generated = report.scored if report.tokens_out is None else report.tokens_out
    terms = batch_terms(plan.work, variant, plan.serves.machines, units_of(report), generated)
    return _measurements(plan, plan.serves, kind, report.job, terms, {"batch_job": report.seconds})


def _measurements(
    plan: RunPlan,
    place: Place,
    kind: ModelKind,
    run_id: str,
    terms: Mapping[Name, Terms],
    values: Mapping[Name, float | None],
) -> list[Measurement]:
    """Return a measurement for each value that was measured."""
    return [
        _measurement(plan, place, kind, run_id, name, terms[name], value)
        for name, value in values.items()
        if value is not None and value > 0
    ]


def _measurement(
    plan: RunPlan,
    place: Place,
    kind: ModelKind,
    run_id: str,
    name: Name,
    terms: Terms,
    value: float,
) -> Measurement:
    estimate = estimate_quantity(name, "", terms, place.fits)
    if place.machines.device.disturbed:
        terms = {**terms, DISTURBED: 1.0}
    return Measurement(
        quantity=name,
        model=plan.work.model,
        kind=kind.name,
        machine=place.name,
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
