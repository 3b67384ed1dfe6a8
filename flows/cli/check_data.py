"""What `millrace check` says about the data, on standard error; the pipeline goes to stdout."""

from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.flows import console
from millrace.flows.cli.command_setup import load_settings, report
from millrace.models.common.counted import counted
from millrace.models.common.errors import MillraceError
from millrace.models.data.forgotten_keys import describe_left_out
from millrace.models.data.lacked_columns import describe_lacked
from millrace.models.data.publish_decision import nulls_hint
from millrace.models.data.repeated_keys import describe_repeated
from millrace.models.data.sample_check import (
    SAMPLE_ROWS,
    SampleCheck,
    check_sample,
    describe_reasons,
    require_good_rows,
)
from millrace.models.data.schema import describe_schema
from millrace.models.data.snapshots import Snapshot, open_snapshot
from millrace.models.data.sources.csv_quotes import describe_line_breaks

if TYPE_CHECKING:
    from millrace.models.common.installation import Installation
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.planner.sheet import MemoryFault


def check_first_rows(pipeline: "Pipeline") -> None:
    """Check the first rows of the source, and report the schema and the bad rows.

    Raises:
        InputError: a column does not fit, or all of the rows are bad.
        TransientError: a source on the network cannot be read.
    """
    stored = _newest_snapshot(pipeline)
    found = check_sample(pipeline, stored.schema if stored else None)
    if found is None:
        return
    require_good_rows(found)
    report(f"columns: {describe_schema(found.schema)}")
    bad = sum(found.reasons.values())
    words = f", {bad:,} of them bad: {describe_reasons(found.reasons)}" if bad else ", all good"
    report(f"sample: the first {counted(found.rows, 'row')}{words}")
    _report_refusal(pipeline, found)
    _report_line_breaks(found.line_breaks)
    if found.repeated_keys:
        report(f"warning: {describe_repeated(found.repeated_keys, found.schema.key)}")


def check_all_rows(pipeline: "Pipeline") -> None:
    """Check all rows and build the model, and report what a run would do.

    Raises:
        InputError: a run would refuse the source, its rows or the model.
        TransientError: the source cannot be read.
    """
    from millrace.tasks.check_all import check_all
    from millrace.tasks.progress import bar

    stored = _newest_snapshot(pipeline)
    installation = load_settings().installation()
    console.set_up_logging()
    with console.reserve_stdout(), bar("check", None, "rows") as shown:
        faults = _memory_faults(pipeline, installation)
        does_fit = not any(each.what == "training" for each in faults)
        found = check_all(pipeline, stored, installation, shown.update, builds=does_fit)
    report(f"columns: {found.schema}")
    rows = found.rows + found.quarantined
    bad = f", {found.quarantined:,} to quarantine: {describe_reasons(found.reasons)}"
    does = "does not publish them again" if found.unchanged else "publishes them"
    report(f"rows: {rows:,}{bad if found.quarantined else ', all good'}; a run {does}")
    _report_line_breaks(found.line_breaks)
    if found.left_out:
        report(f"warning: {describe_left_out(found.left_out)}")
    for line in describe_lacked(found.lacked_columns):
        report(f"warning: {line}")
    if found.repeated_keys:
        report(f"warning: {found.repeated_keys}")
    why = "it refers to others" if does_fit else "it does not fit into memory"
    report(f"model: {f'built, {found.model}' if found.model else f'not built, because {why}'}")
    for fault in faults:
        report(f"warning: {fault}")


def _memory_faults(pipeline: "Pipeline", installation: "Installation") -> "tuple[MemoryFault, ...]":
    """Return what does not fit into memory; nothing if it cannot be planned."""
    from millrace.tasks.plan import memory_faults

    try:
        return memory_faults(pipeline, installation)
    except MillraceError:  # the check itself says what is wrong
        return ()


def _report_refusal(pipeline: "Pipeline", found: SampleCheck) -> None:
    """Report that a run would refuse a source of which this large a share is bad."""
    bad, most = sum(found.reasons.values()), pipeline.dataset.max_quarantine
    if bad <= most * found.rows:
        return
    others = "" if found.rows < SAMPLE_ROWS else " if the other rows are like these"
    report(f"above max_quarantine {100 * most:g}%: a run would refuse the data{others}")
    name, good = pipeline.name, found.rows - bad
    sample = Snapshot(name, "", -1, "", good, found.schema, {}, {}, bad, found.reasons)
    if hint := nulls_hint(sample):
        report(hint)


def _report_line_breaks(cells: int) -> None:
    if cells:
        report(f"warning: {describe_line_breaks(cells)}")


def _newest_snapshot(pipeline: "Pipeline") -> Snapshot | None:
    """Return the newest snapshot in a local home; None if there is none."""
    with suppress(MillraceError):
        installation = load_settings().installation()
        if "://" not in installation.tables_uri:
            return open_snapshot(installation, pipeline.name)
    return None
