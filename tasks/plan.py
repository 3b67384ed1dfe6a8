"""A plan of a pipeline: what is known of its data, its kind's work, and the machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from cronsim import CronSim

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.common.machine_cache import machine_cache
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.sample_check import check_sample
from millrace.models.data.snapshots import Snapshot
from millrace.models.planner.catalogue import (
    THIS_MACHINE,
    Device,
    Machines,
    parse_machines,
    read_devices,
    shipped_devices,
)
from millrace.models.planner.compare import HOURS_OF_A_MONTH, Bounds, Verdict, judge_sheet
from millrace.models.planner.measurements import read_measurements
from millrace.models.planner.packing import Demand, PackedDevice, pack_devices, replicas_of
from millrace.models.planner.quantity import Cell
from millrace.models.planner.sheet import Sheet, plan_sheet
from millrace.models.planner.this_machine import this_device
from millrace.models.planner.training_flops import SECONDS_OF_A_DAY
from millrace.models.planner.work import Work
from millrace.tasks.described_base import pinned_for_plan
from millrace.tasks.kinds.data_facts import DataFacts, ReadFacts
from millrace.tasks.kinds.steps import KindSteps, steps_of
from millrace.tasks.plan_places import fits_of_device, of_kind, pipeline_on

LEDGER = ("planner", "measurements")
NIGHT_SECONDS = 8 * 3600.0
"""Time of nightly jobs, where `batch.deadline` does not say it."""
OWN_DEVICES = "hardware.yaml"
"""File in the home folder with devices of the user's own."""


def plan_pipeline(
    pipeline: Pipeline,
    installation: Installation,
    hardware: str,
    *,
    load_per_second: float | None = None,
    budget: float | None = None,
    call_functions: bool,
    facts: DataFacts | None = None,
) -> tuple[Verdict, ...]:
    """Return the plan of the pipeline on each kind of machine, and what bounds it breaks.

    Args:
        pipeline: the pipeline.
        installation: its home has the snapshots and the measured runs.
        hardware: the machines, as `h100x8,this-machine`.
        load_per_second: rows or tokens that are asked for online; None: not known.
        budget: most dollars a month; None: no bound.
        call_functions: whether a source that is a Python function may be called, if there is no
            snapshot.
        facts: what is known of the data; None: what the newest snapshot or a sample shows.

    Raises:
        InputError: a device is unknown, or the model cannot be built.
        TransientError: the source or MLflow cannot be reached.
    """
    machines = parse_machines(hardware, known_devices(pipeline, installation, hardware))
    steps, pipeline = _pinned(pipeline, installation)
    read_facts = _read_once(pipeline, installation, call_functions, facts)
    measured = read_measurements(ledger_of(installation))
    measured = of_kind(measured, kind_of_family(pipeline.model.family))
    bounds = replace(bounds_of(pipeline, budget), load=load_per_second)
    verdicts = []
    for each in machines:
        work = steps.plan(pipeline_on(pipeline, each), installation, read_facts)
        fits = fits_of_device(each, measured)
        verdicts.append(judge_sheet(plan_sheet(work, each, fits, load_per_second), bounds))
    return tuple(verdicts)


@dataclass(frozen=True)
class Packing:
    """Several models on the fewest devices of a kind.

    Attributes:
        machines: the kind of device.
        devices: the devices with their jobs.
        models: number of models.
        apart: number of devices if no model shares one with another.
    """

    machines: Machines
    devices: tuple[PackedDevice, ...]
    models: int
    apart: int

    @property
    def saved_per_month(self) -> float | None:
        """Dollars a month that are saved against devices for each model alone; None: no price."""
        price = self.machines.device.price
        if price is None or len(self.devices) > self.apart:
            return None
        return (self.apart - len(self.devices)) * price.dollars_per_hour * HOURS_OF_A_MONTH


def pack_pipelines(
    verdicts: Sequence[Verdict], pipelines: Sequence[Pipeline], load_per_second: float | None
) -> Packing:
    """Pack the services and the nightly jobs of several models onto the fewest devices.

    A service whose load is more than a device can do has replicas, and so has a job whose night is
    too short for one.

    Args:
        verdicts: the plan of each model on one device of the same kind.
        pipelines: their pipelines.
        load_per_second: rows or tokens that each service is asked for; None: only memory counts.

    Raises:
        InputError: a job fits no device by itself, or needs several.
    """
    machines = verdicts[0].sheet.machines
    if machines.count > 1:
        raise InputError(
            f"several pipelines are packed onto single devices, not onto {machines}",
            seen=str(machines),
            valid=machines.name,
            hint="leave out the number: as many devices are taken as are needed",
        )
    online: list[Demand] = []
    nightly: list[Demand] = []
    apart = 0
    for verdict, pipeline in zip(verdicts, pipelines, strict=True):
        cells = verdict.sheet.cells
        needed = max(verdict.sheet.devices["online"], verdict.sheet.devices["batch"])
        if needed > 1:
            raise InputError(
                f"{pipeline.name} needs {needed} devices, and cannot share one",
                seen=f"{needed} devices",
                valid="models that each fit one device",
                hint=f"plan {pipeline.name} by itself",
            )
        memory = cells["online"]["memory"][0].value
        load = (load_per_second or 0.0) / _rate(cells["online"]["speed"])
        services = replicas_of(Demand(f"{pipeline.name} online", memory, load))
        jobs = [each for each in cells["batch"]["speed"] if each.unit == "seconds"]
        window = bounds_of(pipeline).nightly or NIGHT_SECONDS
        share = jobs[0].value / window if jobs else 0.0
        memory = cells["batch"]["memory"][0].value
        parts = replicas_of(Demand(f"{pipeline.name} batch", memory, share))
        online, nightly = [*online, *services], [*nightly, *parts]
        apart += max(len(services), len(parts))
    devices = pack_devices(online, nightly, machines.device.memory)
    return Packing(machines, tuple(devices), len(pipelines), apart)


def _rate(speed: Cell) -> float:
    return next(each.value for each in speed if each.unit == "per second")


def plan_here(
    pipeline: Pipeline, installation: Installation, facts: DataFacts | None = None
) -> Sheet:
    """Return the plan of a pipeline on this machine.

    Args:
        pipeline: the pipeline.
        installation: its home has the snapshots and the measured runs.
        facts: what is known of the data; None: what the newest snapshot or a sample shows.

    Raises:
        InputError: the model cannot be built.
        TransientError: the source or MLflow cannot be reached.
    """
    (verdict,) = plan_pipeline(
        pipeline, installation, THIS_MACHINE, call_functions=True, facts=facts
    )
    return verdict.sheet


def bounds_of(pipeline: Pipeline, budget: float | None = None) -> Bounds:
    """Return the bounds that a pipeline file states, and the budget."""
    slo = pipeline.serving.latency_slo_ms
    return Bounds(
        latency=None if slo is None else slo / 1000,
        nightly=_nightly_seconds(pipeline),
        budget=budget,
    )


def _nightly_seconds(pipeline: Pipeline) -> float | None:
    """Return the time from the scheduled start of the batch job to its deadline."""
    line, deadline = pipeline.schedule.score, pipeline.batch.deadline
    if line is None or deadline is None:
        return None
    start = next(CronSim(line, datetime.now(UTC)))
    hours, minutes = map(int, deadline.split(":"))
    end = start.replace(hour=hours, minute=minutes, second=0)
    return (end - start).total_seconds() % SECONDS_OF_A_DAY or SECONDS_OF_A_DAY


def ledger_of(installation: Installation) -> str:
    """Return the URI of the ledger."""
    return installation.table(*LEDGER)


def work_of(pipeline: Pipeline, installation: Installation, *, call_functions: bool) -> Work:
    """Return what the pipeline asks for on this machine's CPU.

    By its newest snapshot, or a sample of its source.
    """
    steps, pipeline = _pinned(pipeline, installation)
    read_facts = _read_once(pipeline, installation, call_functions)
    cpu = Machines(THIS_MACHINE, this_device(machine_cache()))
    return steps.plan(pipeline_on(pipeline, cpu), installation, read_facts)


def _pinned(pipeline: Pipeline, installation: Installation) -> tuple[KindSteps, Pipeline]:
    """Return the steps of the pipeline's kind, and the pipeline with its versions pinned."""
    steps = steps_of(kind_of_family(pipeline.model.family))
    return steps, pinned_for_plan(steps, pipeline, installation)


def known_devices(
    pipeline: Pipeline, installation: Installation, hardware: str
) -> Mapping[str, Device]:
    """Return the devices of the package and of the home; this machine only if it is named."""
    devices = dict(shipped_devices())
    own = installation.home / OWN_DEVICES
    if own.exists():
        devices.update(read_devices(own))
    if THIS_MACHINE in hardware.lower():
        price = pipeline.batch.price_per_hour
        devices[THIS_MACHINE] = this_device(machine_cache(), price)
    return devices


def _read_once(
    pipeline: Pipeline,
    installation: Installation,
    call_functions: bool,
    facts: DataFacts | None = None,
) -> ReadFacts:
    """Return a function that reads what is known of the data, once for all machines."""
    return cache(lambda: facts or data_facts(pipeline, installation, call_functions=call_functions))


def data_facts(
    pipeline: Pipeline, installation: Installation, *, call_functions: bool
) -> DataFacts | None:
    """Return what is known of the data; None for a function that is not called."""
    snapshot = _newest_snapshot(pipeline, installation)
    if snapshot is not None:
        return facts_of_snapshot(pipeline, snapshot)
    sample = check_sample(pipeline, None, call_functions=call_functions)
    if sample is None:
        return None
    good = sample.rows - sum(sample.reasons.values())
    train = pipeline.dataset.split.train
    return DataFacts(
        schema=sample.schema,
        categories=_categories(sample.statistics),
        rows=good if sample.is_whole else None,
        train_rows=round(good * train) if sample.is_whole else None,
        row_bytes=sample.bytes / good if good else None,
        source=f"the first {sample.rows:,} rows of the source",
    )


def facts_of_snapshot(pipeline: Pipeline, snapshot: Snapshot, *, read: bool = True) -> DataFacts:
    """Return what is known of the data in a snapshot.

    Args:
        pipeline: says how the rows are split.
        snapshot: the snapshot.
        read: whether its files may be opened: for the exact train rows, and the bytes of a row.
    """
    split = pipeline.dataset.split
    estimate = round(snapshot.rows * split.train)
    return DataFacts(
        schema=snapshot.schema,
        categories=_categories(snapshot.statistics),
        rows=snapshot.rows,
        train_rows=snapshots.count_rows(snapshot, "train", split) if read else estimate,
        row_bytes=_stored_bytes(snapshot) if read else None,
        source=f"snapshot {snapshot.version}",
    )


def _categories(statistics: Mapping[str, ColumnStatistics]) -> dict[str, int]:
    return {name: len(each.counts) for name, each in statistics.items() if each.counts}


def _newest_snapshot(pipeline: Pipeline, installation: Installation) -> Snapshot | None:
    if "://" not in installation.tables_uri and not Path(installation.tables_uri).is_dir():
        return None
    try:
        return snapshots.open_snapshot(installation, pipeline.name)
    except MillraceError:
        return None


def _stored_bytes(snapshot: Snapshot) -> float | None:
    """Return the mean bytes of a row in the files of the snapshot's first row groups."""
    fragments = snapshots.row_files(snapshot)[:8]
    groups = [group for each in fragments for group in each.row_groups]
    rows = sum(group.num_rows for group in groups)
    return sum(group.total_byte_size for group in groups) / rows if rows else None
