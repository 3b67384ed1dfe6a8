"""Tables of batch jobs and of the lineage of their rows."""

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
    """Print the report of a batch job."""
    approval = f"{'yes' if report.approved else 'no'}: {report.approval}"
    rows: list[Row] = [
        ("table", f"{report.table} version {report.table_version}"),
        ("date", report.date),
        ("model", f"{report.model} version {report.model_version}"),
        *([("approved", approval)] if report.approved is not None else []),
        *([("input", _shorten(report.input))] if report.input else []),
        ("rows", f"{report.rows:,}"),
        ("scored", f"{report.scored:,}"),
        *([("replaces", _shorten(report.replaced))] if report.replaced else []),
        ("dead letters", f"{report.dead:,}"),
        *([("as live", report.agreement)] if report.agreement else []),
        *_speed_rows(report),
    ]
    print_table("batch", ("what", "value"), rows)


def _speed_rows(report: "BatchReport") -> list[Row]:
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
    """Print the lineage of each row, the newest date first."""
    for each in found:
        print_table(
            f"lineage of {each.origin.row['_key']}", ("what", "value"), [*_lineage_rows(each)]
        )


def _lineage_rows(found: "Lineage") -> Iterator[Row]:
    origin = found.origin
    row = {name: value for name, value in origin.row.items() if name not in ("_key", "_row")}
    yield "row", _join(row)
    yield (
        "from",
        f"row {origin.place:,} of {origin.file or 'a file that is not known'}, counted from 0",
    )
    if origin.manifest or origin.source:
        yield "input", _join({**origin.source, **origin.manifest})
    yield "job", f"{origin.job}, version {origin.table_version} of the table"
    yield "committed", _join(origin.committed)
    if found.version:
        yield "model", _join(found.version)
    for file in found.data.get("files", [found.data] if found.data else []):
        yield "learnt from", _join(file)
    if not found.releases:
        yield "release", "none: this version was not released from here"
    for event in found.releases:
        yield "release", _join(event)


def _shorten(text: str) -> str:
    """Return a text in which each digest is cut to its first digits."""
    return DIGEST.sub(FIRST_DIGITS, text)


def _join(values: Mapping[str, Any]) -> str:
    """Return names and values in one line, with shortened digests; `--json` has the whole ones."""
    known = ((name, value) for name, value in values.items() if value not in ("", None))
    return ", ".join(f"{name} {_shorten(str(value))}" for name, value in known)
