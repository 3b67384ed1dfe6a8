"""Writes the plan of a run, a certificate or a batch job beside what was measured.

To the planner's ledger, to the MLflow run and to the report of the run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    read_measurements,
)
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.this_machine import this_device
from millrace.models.planner.work import Work
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import CANDIDATE_TAG, ModelVersion, Package
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import Exported, KindReport, Prepared, Trained, steps_of
from millrace.tasks.plan import data_facts, facts_of_snapshot, ledger_of
from millrace.tasks.plan_measured import (
    RunPlan,
    measured_batch,
    measured_in,
    measured_speed,
    tail_of,
    units_of,
)
from millrace.tasks.plan_places import cpu_place, gpu_place
from millrace.tasks.progress import log
from millrace.tasks.reports.markdown import table

FILE, LIVE_FILE = "plan/plan.json", "plan/plan-live.json"
"""Artifacts of a run: its estimates and measurements, and those of `millrace certify`."""


@dataclass(frozen=True)
class AskedWork:
    """What a run asks for, and where on this machine it is done.

    Attributes:
        work: the work.
        training_gpus: GPUs that it trains on; 0: it trains on the CPU.
        serves_on_gpu: whether its export is measured on a GPU.
        price_per_hour: what this machine costs for an hour; None: not known.
    """

    work: Work
    training_gpus: int
    serves_on_gpu: bool
    price_per_hour: float | None


def work_of_run(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    prepared: Prepared[Any],
) -> AskedWork | None:
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
        facts = facts_of_snapshot(pipeline, snapshot, read=False)
        work = steps_of(kind).plan(pipeline, installation, facts)
        return asked_of(work, pipeline, _gpus_of_ray())
    except Exception as error:
        _warn(error)
        return None


def asked_of(work: Work, pipeline: Pipeline, gpus: int = 0) -> AskedWork:
    """Return what a run asks for: workers have a GPU if there is one for each of them.

    Args:
        work: the work.
        pipeline: says where the model is served, and the price of the machine.
        gpus: GPUs that the workers may have.
    """
    training = work.training
    has_gpus = training.engine == "torch" and gpus >= training.workers
    return AskedWork(
        work,
        training_gpus=training.workers if has_gpus else 0,
        serves_on_gpu=pipeline.serving.on_gpu and work.online.engine != "openvino",
        price_per_hour=pipeline.batch.price_per_hour,
    )


def _gpus_of_ray() -> int:
    """Return the GPUs of the connected Ray; without one here torch is not imported to ask."""
    if not this_machine().gpu:
        return 0
    from millrace.models.training.workers import gpus_of_ray

    return gpus_of_ray()


@contextmanager
def planned_beside(
    asked: AskedWork | None, installation: Installation
) -> Iterator["Future[RunPlan | None]"]:
    """Plan a run in a thread beside the block, in which this process waits for a training.

    The thread imports nothing: two threads that import at a time may each find a module of the
    other half done. `work_of_run` has imported what it needs.

    Args:
        asked: what the run asks for; None: it is not planned.
        installation: has the ledger, and this machine's measurements.
    """
    planned: Future[RunPlan | None] = Future()

    def plan() -> None:
        try:
            planned.set_result(None if asked is None else _plan_run(asked, installation))
        except Exception as error:  # a run does not fail because it was not planned
            _warn(error)
            planned.set_result(None)

    # The thread does not keep an interrupted process alive, as one of an executor would.
    Thread(target=plan, name="plan", daemon=True).start()
    yield planned


def _plan_run(asked: AskedWork, installation: Installation) -> RunPlan:
    """Return the plan of a run, and warn of what does not fit into this machine's memory."""
    plan = _plan_of(asked, installation)
    if plan.trains is not None:
        for fault in plan_sheet(plan.work, plan.trains.machines, plan.trains.fits).faults:
            log.warning("%s", fault)
    return plan


def _plan_of(asked: AskedWork, installation: Installation) -> RunPlan:
    measured = read_measurements(ledger_of(installation))
    cpu = cpu_place(installation, measured, asked.price_per_hour)
    gpus = asked.training_gpus
    return RunPlan(
        asked.work,
        trains=gpu_place(measured, gpus) if gpus else cpu,
        serves=gpu_place(measured, 1) if asked.serves_on_gpu else cpu,
        price_per_hour=asked.price_per_hour,
    )


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
        _warn(error)


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
        work = steps_of(version.kind).plan(pipeline, installation, facts)
        plan = _plan_of(asked_of(work, pipeline), installation)
        name = version.tags.get(CANDIDATE_TAG)
        measured = measured_batch(plan, version.kind, name, report)
        append_measurements(ledger_of(installation), measured)
    except Exception as error:
        _warn(error)
        return {}
    price, units = plan.price_per_hour, units_of(report)
    derived = [each for job in measured for each in batch_figures(job, units, work.unit, price)]
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
        work = steps.plan(pipeline, installation, facts)
        speed = steps.measure_speed(package, installation)
        plan = _plan_of(asked_of(work, pipeline), installation)
        name = version.tags.get(CANDIDATE_TAG, "")
        measured = measured_speed(plan, version.kind, name, speed, version.run_id)
        append_measurements(ledger_of(installation), measured)
    except Exception as error:
        _warn(error)
        return {}
    price = plan.price_per_hour
    derived = [*tail_of(speed), *derived_figures(measured, work, price)]
    return {LIVE_FILE: _as_json(measured, derived)} if measured else {}


def _warn(error: BaseException) -> None:
    why = next(iter(str(error).splitlines()), type(error).__name__)
    log.warning("the plan was not recorded: %s", why)
