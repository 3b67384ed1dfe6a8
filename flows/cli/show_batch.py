"""What batch jobs print."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.flows.console import print_table

if TYPE_CHECKING:
    from millrace.flows.cli.lineage import Lineage
    from millrace.serving.batch.monitoring.batch_report import BatchReport


Row = tuple[object, object]
DIGEST, FIRST_DIGITS = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b"), r"\1…"


def show_batch(report: "BatchReport") -> None:
    """Print what a batch job did."""
    rows: list[Row] = [
        ("table", f"{report.table} version {report.table_version}"),
        ("date", report.date),
        ("model", f"{report.model} version {report.model_version}"),
        *([("approved", _approval(report))] if report.approved is not None else []),
        *([("input", _short(report.input))] if report.input else []),
        ("rows", f"{report.rows:,}"),
        ("scored", f"{report.scored:,}"),
        *([("replaces", _short(report.replaced))] if report.replaced else []),
        ("dead letters", f"{report.dead:,}"),
        *([("as live", report.agreement)] if report.agreement else []),
        *_pace(report),
    ]
    print_table("batch", ("what", "value"), rows)


def _approval(report: "BatchReport") -> str:
    return f"{'yes' if report.approved else 'no'}: {report.approval}"


def _pace(report: "BatchReport") -> list[Row]:
    if report.unchanged:
        return [("done", "before: the same model, input and parameters; nothing was run")]
    run = f"(a run of {report.seconds:.1f} s, end to end)"
    rows: list[Row] = [
        ("rows/s", f"{report.rows_per_second:,.0f}"),
        ("rows/day", f"{report.rows_per_day:,.0f} {run}"),
    ]
    if report.resumed:
        rows.insert(0, ("resumed", f"{report.resumed:,} rows of a run that did not end"))
    if report.tokens_in is not None and report.tokens_out is not None:
        rows += [
            ("input tokens", f"{report.tokens_in:,}"),
            ("output tokens", f"{report.tokens_out:,}"),
        ]
    return rows


def show_lineage(found: "Sequence[Lineage]") -> None:
    """Print the way of each row, the newest date first."""
    for each in found:
        print_table(f"lineage of {each.origin.row['_key']}", ("what", "value"), [*_steps(each)])


def _steps(found: "Lineage") -> Iterator[Row]:
    origin = found.origin
    told = {name: value for name, value in origin.row.items() if name not in ("_key", "_row")}
    yield "row", _in_line(told)
    yield (
        "from",
        f"row {origin.place:,} of {origin.file or 'a file that is not known'}, counted from 0",
    )
    if origin.manifest or origin.source:
        yield "input", _in_line({**origin.source, **origin.manifest})
    yield "job", f"{origin.job}, version {origin.table_version} of the table"
    yield "committed", _in_line(origin.committed)
    if found.version:
        yield "model", _in_line(found.version)
    for file in found.data.get("files", [found.data] if found.data else []):
        yield "learnt from", _in_line(file)
    if not found.releases:
        yield "release", "none: this version was not released from here"
    for event in found.releases:
        yield "release", _in_line(event)


def _short(text: str) -> str:
    """Return a text with the first digits of its digests."""
    return DIGEST.sub(FIRST_DIGITS, text)


def _in_line(values: Mapping[str, Any]) -> str:
    """Return names and values, of digests their first digits; `--json` has the whole."""
    told = ((name, value) for name, value in values.items() if value not in ("", None))
    return ", ".join(f"{name} {_short(str(value))}" for name, value in told)
