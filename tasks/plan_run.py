"""Plans a run on this machine: what it asks for, where it is done, and what that should take."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.common.machine_cache import machine_cache
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.planner.catalogue import THIS_MACHINE, Machines
from millrace.models.planner.measurements import read_measurements
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.this_machine import this_device
from millrace.models.planner.work import Work
from millrace.tasks.kinds.data_facts import DataFacts
from millrace.tasks.kinds.steps import Prepared, steps_of
from millrace.tasks.plan import facts_of_snapshot, ledger_of
from millrace.tasks.plan_measured import RunPlan
from millrace.tasks.plan_places import cpu_place, gpu_place, of_kind, own_gpus, pipeline_on
from millrace.tasks.progress import log


@dataclass(frozen=True)
class AskedWork:
    """What a run asks for, and where on this machine it is done.

    Attributes:
        kind: the kind of the model.
        work: the work.
        training_gpus: GPUs that it trains on; 0: it trains on the CPU.
        serves_on_gpu: whether its export is measured on a GPU.
        price_per_hour: what this machine costs for an hour; None: not known.
    """

    kind: ModelKind
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
        facts = facts_of_snapshot(pipeline, snapshot, read=False)
        return asked_of(kind, pipeline, installation, facts, _gpus_of_ray())
    except Exception as error:
        warn_of_fault(error)
        return None


def asked_of(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    facts: DataFacts | None,
    gpus: int = 0,
) -> AskedWork:
    """Return what a run asks for: its workers have GPUs if there is one for each of them.

    Args:
        kind: the kind of the model.
        pipeline: the pipeline.
        installation: its home has this machine's measurements.
        facts: what is known of the data.
        gpus: GPUs that the workers may have.

    Raises:
        MillraceError: the model cannot be planned.
    """
    steps, price = steps_of(kind), pipeline.batch.price_per_hour
    cpu = Machines(THIS_MACHINE, this_device(machine_cache(), price))
    work = steps.plan(pipeline_on(pipeline, cpu), installation, lambda: facts)
    training = work.training
    used = training.workers if training.engine == "torch" and gpus >= training.workers else 0
    if (machines := own_gpus(used)) is not None:
        work = steps.plan(pipeline_on(pipeline, machines), installation, lambda: facts)
    on_gpu = pipeline.serving.on_gpu and work.online.engine != "openvino"
    return AskedWork(kind, work, used, on_gpu, price)


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
            warn_of_fault(error)
            planned.set_result(None)

    # The thread does not keep an interrupted process alive, as one of an executor would.
    Thread(target=plan, name="plan", daemon=True).start()
    yield planned


def _plan_run(asked: AskedWork, installation: Installation) -> RunPlan:
    """Return the plan of a run, and warn of what does not fit into this machine's memory."""
    plan = plan_of(asked, installation)
    if plan.trains is not None:
        for fault in plan_sheet(plan.work, plan.trains.machines, plan.trains.fits).faults:
            log.warning("%s", fault)
    return plan


def plan_of(asked: AskedWork, installation: Installation) -> RunPlan:
    """Return the plan of what a run asks for, by all that was measured before."""
    measured = of_kind(read_measurements(ledger_of(installation)), asked.kind)
    cpu = cpu_place(installation, measured, asked.price_per_hour)
    gpus = asked.training_gpus
    return RunPlan(
        asked.work,
        trains=gpu_place(measured, gpus) if gpus else cpu,
        serves=gpu_place(measured, 1) if asked.serves_on_gpu else cpu,
        price_per_hour=asked.price_per_hour,
    )


def warn_of_fault(error: BaseException) -> None:
    """Warn that a plan could not be made or recorded, which does not end a run."""
    why = next(iter(str(error).splitlines()), type(error).__name__)
    log.warning("the plan was not recorded: %s", why)
