"""A plan of a pipeline: what is known of its data, its kind's work, and the machines."""

from collections.abc import Mapping
from pathlib import Path

from millrace.models.common.errors import MillraceError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.sample_check import check_sample
from millrace.models.data.snapshots import Snapshot
from millrace.models.planner.catalogue import (
    THIS_MACHINE,
    Device,
    parse_machines,
    read_devices,
    shipped_devices,
)
from millrace.models.planner.measurements import fits_of, read_measurements
from millrace.models.planner.sheet import Sheet, plan_sheet
from millrace.models.planner.this_machine import this_device
from millrace.models.planner.work import Work
from millrace.tasks.kinds.data_facts import DataFacts
from millrace.tasks.kinds.steps import steps_of

LEDGER = ("planner", "measurements")
OWN_DEVICES = "hardware.yaml"
"""File in the home folder with devices of the user's own."""


def plan_pipeline(
    pipeline: Pipeline, installation: Installation, hardware: str, *, call_functions: bool
) -> tuple[Sheet, ...]:
    """Return a sheet of the pipeline for each kind of machine.

    Args:
        pipeline: the pipeline.
        installation: its home has the snapshots, and keeps this machine's measurements.
        hardware: the machines, as `h100x8,this-machine`.
        call_functions: whether a source that is a Python function may be called, if there is no
            snapshot.

    Raises:
        InputError: a device is unknown, or the model cannot be built.
        TransientError: the source or MLflow cannot be reached.
    """
    machines = parse_machines(hardware, known_devices(pipeline, installation, hardware))
    work = work_of(pipeline, installation, call_functions=call_functions)
    own = fits_of(read_measurements(ledger_of(installation)), str(this_machine()))
    return tuple(plan_sheet(work, each, own if each.device.is_cpu else {}) for each in machines)


def ledger_of(installation: Installation) -> str:
    """Return the URI of the ledger."""
    return installation.table(*LEDGER)


def work_of(pipeline: Pipeline, installation: Installation, *, call_functions: bool) -> Work:
    """Return what the pipeline asks for, by its newest snapshot or a sample of its source."""
    steps = steps_of(kind_of_family(pipeline.model.family))
    if steps.names_versions(pipeline):
        pipeline = steps.pin_versions(pipeline, installation)
    facts = data_facts(pipeline, installation, call_functions=call_functions)
    return steps.plan(pipeline, installation, facts)


def known_devices(
    pipeline: Pipeline, installation: Installation, hardware: str
) -> Mapping[str, Device]:
    """Return the devices of the package and of the home; this machine only if it is named."""
    devices = dict(shipped_devices())
    own = installation.home / OWN_DEVICES
    if own.is_file():
        devices.update(read_devices(own))
    if THIS_MACHINE in hardware:
        price = pipeline.batch.price_per_hour
        devices[THIS_MACHINE] = this_device(installation.home, price)
    return devices


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


def facts_of_snapshot(pipeline: Pipeline, snapshot: Snapshot) -> DataFacts:
    """Return what is known of the data in a snapshot."""
    return DataFacts(
        schema=snapshot.schema,
        categories=_categories(snapshot.statistics),
        rows=snapshot.rows,
        train_rows=snapshots.count_rows(snapshot, "train", pipeline.dataset.split),
        row_bytes=_stored_bytes(snapshot),
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
