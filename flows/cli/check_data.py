"""What `millrace check` says in about ten lines: the data, the model, and what a run would do."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.flows import console
from millrace.flows.cli.command_setup import load_settings
from millrace.models.common.counted import counted
from millrace.models.common.errors import MillraceError
from millrace.models.config.dataset_spec import SPLITS, Split
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.describe_data import describe_data
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
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot, open_snapshot
from millrace.models.data.sources.csv_quotes import describe_line_breaks

if TYPE_CHECKING:
    from millrace.models.common.installation import Installation
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.planner.sheet import Sheet
    from millrace.tasks.check_all import FullCheck

MOST_VARIANTS = 6


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Attributes:
        lines: it in words, without the warnings.
        warnings: what a run would warn of, or refuse.
        rows: number of good rows that were read; None: the data was not read.
        bad: number of bad rows.
        is_whole: whether these are all rows of the source.
        reasons: number of bad rows by reason.
        split: number of rows of each split, about if not all rows were read.
        schema: the columns and their roles.
        statistics: statistics of the good rows, by column.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    rows: int | None = None
    bad: int = 0
    is_whole: bool = False
    reasons: Mapping[str, int] = field(default_factory=dict)
    split: Mapping[Split, int] = field(default_factory=dict)
    schema: TableSchema | None = None
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            **{"rows": self.rows, "bad": self.bad, "is_whole": self.is_whole},
            **{"reasons": dict(self.reasons), "split": dict(self.split)},
            "schema": self.schema.as_json() if self.schema else None,
            "statistics": {name: each.as_json() for name, each in self.statistics.items()},
            **{"lines": self.lines, "warnings": self.warnings},
        }


def check_first_rows(pipeline: "Pipeline") -> CheckReport:
    """Check the first rows of the source.

    Raises:
        InputError: a column does not fit, or all of the rows are bad.
        TransientError: a source on the network cannot be read.
    """
    stored = _newest_snapshot(pipeline)
    found = check_sample(pipeline, stored.schema if stored else None)
    if found is None:
        calls = f"rows: not read, because {pipeline.dataset.source} is code; `--full` calls it"
        return CheckReport((calls, *_describe_run(pipeline)))
    require_good_rows(found)
    bad = sum(found.reasons.values())
    good = found.rows - bad
    shares = {name: getattr(pipeline.dataset.split, name) for name in SPLITS}
    split = {name: round(share * good) for name, share in shares.items()}
    words = f", {bad:,} of them bad: {describe_reasons(found.reasons)}" if bad else ", all good"
    which = "all" if found.is_whole else "the first"
    lines = [
        f"rows: {which} {counted(found.rows, 'row')} of {pipeline.dataset.source}{words}",
        *describe_data(found.schema, found.statistics),
        f"split: about {_sizes(split)}" + ("" if found.is_whole else ", of these rows"),
        *_describe_run(pipeline),
    ]
    warnings = [*_refusal(pipeline, found), *_line_breaks(found.line_breaks)]
    if found.repeated_keys:
        warnings.append(describe_repeated(found.repeated_keys, found.schema.key))
    return CheckReport(
        tuple(lines),
        tuple(warnings),
        rows=good,
        bad=bad,
        is_whole=found.is_whole,
        reasons=found.reasons,
        split=split,
        schema=found.schema,
        statistics=found.statistics,
    )


def check_all_rows(pipeline: "Pipeline") -> CheckReport:
    """Check all rows, build the model, and estimate what its training takes.

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
        sheet = _plan(pipeline, installation)
        faults = sheet.faults if sheet else ()
        does_fit = not any(each.what == "training" for each in faults)
        found = check_all(pipeline, stored, installation, shown.update, builds=does_fit)
        sheet = _plan(pipeline, installation, found.snapshot) or sheet
    snapshot = found.snapshot
    bad = f", {snapshot.quarantined:,} to quarantine: {describe_reasons(snapshot.reasons)}"
    does = "does not publish them again" if found.unchanged else "publishes them"
    why = "it refers to others" if does_fit else "it does not fit into memory"
    lines = [
        f"rows: {snapshot.rows + snapshot.quarantined:,} of {pipeline.dataset.source}"
        f"{bad if snapshot.quarantined else ', all good'}; a run {does}",
        *describe_data(snapshot.schema, snapshot.statistics),
        f"split: {_sizes(found.split_rows)}",
        *_describe_run(pipeline),
        f"model: {f'built, {found.model}' if found.model else f'not built, because {why}'}",
        *(_describe_cost(sheet) if sheet else ()),
    ]
    return CheckReport(
        tuple(lines),
        (*_warnings(found), *(str(each) for each in (sheet.faults if sheet else ()))),
        rows=snapshot.rows,
        bad=snapshot.quarantined,
        is_whole=True,
        reasons=dict(snapshot.reasons),
        split=found.split_rows,
        schema=snapshot.schema,
        statistics=snapshot.statistics,
    )


def _sizes(split: Mapping[Split, int]) -> str:
    purposes = {"train": "to train", "validation": "to validate", "test": "to test"}
    return ", ".join(f"{rows:,} {purposes[name]}" for name, rows in split.items())


def _describe_run(pipeline: "Pipeline") -> Iterator[str]:
    """Yield what a run trains, exports and promotes."""
    variants = list(pipeline.export.candidates)
    exports = ", ".join(variants[:MOST_VARIANTS]) + (", …" if variants[MOST_VARIANTS:] else "")
    promotes = {"auto": "promotes what is no worse", "manual": "leaves the promotion to you"}
    yield (
        f"a run: trains {pipeline.model.family}, exports {exports}, "
        f"{promotes[pipeline.promotion.mode]}"
    )


def _describe_cost(sheet: "Sheet") -> Iterator[str]:
    """Yield the memory and the time that are expected on this machine."""
    training = sheet.cells["training"]
    yield f"memory: {training['memory'][0]} on each of {sheet.work.training.workers} workers"
    total = [each for each in training["speed"] if each.name == "of steps in all"]
    latency = f"an answer in {sheet.latency}"
    yield f"time: {f'{total[0]} of training steps, ' if total else ''}{latency}"


def _plan(
    pipeline: "Pipeline", installation: "Installation", snapshot: Snapshot | None = None
) -> "Sheet | None":
    """Return the plan on this machine; None if it cannot be planned, as the check itself says."""
    from millrace.tasks.plan import facts_of_snapshot, plan_here

    with suppress(MillraceError):
        facts = facts_of_snapshot(pipeline, snapshot, read=False) if snapshot else None
        return plan_here(pipeline, installation, facts)
    return None


def _refusal(pipeline: "Pipeline", found: SampleCheck) -> Iterator[str]:
    """Yield that a run would refuse a source of which this large a share is bad."""
    bad, most = sum(found.reasons.values()), pipeline.dataset.max_quarantine
    if bad <= most * found.rows:
        return
    others = "" if found.rows < SAMPLE_ROWS else " if the other rows are like these"
    yield f"above max_quarantine {100 * most:g}%: a run would refuse the data{others}"
    name, good = pipeline.name, found.rows - bad
    sample = Snapshot(name, "", -1, "", good, found.schema, {}, {}, bad, found.reasons)
    if hint := nulls_hint(sample):
        yield hint


def _warnings(found: "FullCheck") -> Iterator[str]:
    snapshot = found.snapshot
    yield from _line_breaks(snapshot.line_breaks)
    if snapshot.left_out:
        yield describe_left_out(snapshot.left_out)
    yield from describe_lacked(snapshot.lacked_columns)
    if snapshot.repeated_keys:
        yield describe_repeated(snapshot.repeated_keys, snapshot.schema.key)


def _line_breaks(cells: int) -> Iterator[str]:
    if cells:
        yield describe_line_breaks(cells)


def _newest_snapshot(pipeline: "Pipeline") -> Snapshot | None:
    """Return the newest snapshot in a local home; None if there is none."""
    with suppress(MillraceError):
        installation = load_settings().installation()
        if "://" not in installation.tables_uri:
            return open_snapshot(installation, pipeline.name)
    return None
