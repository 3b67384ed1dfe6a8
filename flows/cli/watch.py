"""`millrace status --watch`: what Triton does now, as a live table or as lines of JSON."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.flows import console
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import safe
from millrace.serving.triton.served_load import (
    Change,
    Look,
    ModelLoad,
    WayLoad,
    model_loads,
    read_metrics,
    way_loads,
)

WINDOW = 6.0
"""Seconds that are shown, if they were seen: the guard collects its histograms every five."""
MODEL_COLUMNS = {
    "requests_per_second": "requests/s",
    "failed_per_second": "failed/s",
    "rows_per_batch": "rows/batch",
    "queue_ms": "queue ms",
    "compute_ms": "compute ms",
    "tokens_per_minute": "tokens/min",
    "ttft_p99_ms": "ttft p99 ms",
    "tpot_p99_ms": "tpot p99 ms",
}
WAY_COLUMNS = {
    "requests_per_second": "requests/s",
    "refused_per_second": "errors/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}


def watch_load(endpoints: Sequence[Endpoint], seconds: float, *, as_json: bool) -> None:
    """Show what the servers do until Ctrl-C.

    Args:
        endpoints: the servers.
        seconds: between two looks.
        as_json: whether to print a line of JSON each time, instead of a table.

    Raises:
        TransientError: a server does not answer.
    """
    changes = look_again(endpoints, seconds)
    if as_json:
        for each in changes:
            console.print_json_line({server: as_values(change) for server, change in each.items()})
        return
    first = next(changes)
    with Live(tables(first), console=Console(), auto_refresh=False) as live:
        for each in changes:
            live.update(tables(each), refresh=True)


def look_again(endpoints: Sequence[Endpoint], seconds: float) -> Iterator[dict[str, Change]]:
    """Yield what each server did in the last `WINDOW` seconds, again and again.

    Raises:
        TransientError: a server does not answer.
    """
    looks = {each.grpc: deque([_look(each)]) for each in endpoints}
    while True:
        time.sleep(seconds)
        for each in endpoints:
            past = looks[each.grpc]
            past.append(_look(each))
            while past[-1].at - past[1].at >= WINDOW:
                past.popleft()
        yield {server: Change(past[0], past[-1]) for server, past in looks.items()}


def _look(endpoint: Endpoint) -> Look:
    samples = read_metrics(endpoint)
    return Look(time.monotonic(), samples)


def as_values(change: Change) -> dict[str, Any]:
    """Return what a server did, for JSON."""
    return {
        "seconds": change.seconds,
        "models": [asdict(each) for each in model_loads(change)],
        "clients": [asdict(each) for each in way_loads(change)],
    }


def tables(changes: dict[str, Change]) -> Group:
    """Return what servers did as tables: of each version, and of what clients saw."""
    found: list[Table] = []
    for server, change in changes.items():
        models = model_loads(change)
        names = [f"{each.model} {each.version}" for each in models]
        found.append(_table(f"Triton at {server}", "version", names, models, MODEL_COLUMNS))
        ways = way_loads(change)
        if ways:
            names = [each.way for each in ways]
            found.append(_table("seen by clients", "way", names, ways, WAY_COLUMNS))
    return Group(*found)


def _table(
    title: str,
    first: str,
    names: Sequence[str],
    loads: Sequence[ModelLoad] | Sequence[WayLoad],
    columns: dict[str, str],
) -> Table:
    """Return a table without the columns that are empty in every row."""
    values = [asdict(each) for each in loads]
    kept = [key for key in columns if any(each[key] is not None for each in values)]
    table = Table(title=Text(title, style="bold"), title_justify="left", header_style="bold")
    table.add_column(first)
    for key in kept:
        table.add_column(columns[key], justify="right")
    for name, each in zip(names, values, strict=True):
        cells = ("–" if each[key] is None else _number(each[key]) for key in kept)
        table.add_row(Text(safe(name)), *cells)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
