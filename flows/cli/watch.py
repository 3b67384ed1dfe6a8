"""`millrace status --watch`: what Triton does now, as a live table or as lines of JSON."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.flows import console
from millrace.models.common.errors import TransientError
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


FindServers = Callable[[], Sequence[Endpoint]]


def watch_load(find: FindServers, seconds: float, *, as_json: bool) -> None:
    """Show what the servers do until Ctrl-C.

    Args:
        find: returns the servers that run now.
        seconds: between two looks.
        as_json: whether to print a line of JSON each time, instead of a table.

    Raises:
        TransientError: a server does not answer.
    """
    changes = look_again(find, seconds)
    if as_json:
        for each in changes:
            console.print_json_line({server: as_values(change) for server, change in each.items()})
        return
    first = next(changes)
    with Live(tables(first), console=Console(), auto_refresh=False) as live:
        for each in changes:
            live.update(tables(each), refresh=True)


def look_again(find: FindServers, seconds: float) -> Iterator[dict[str, Change]]:
    """Yield what each server did in the last `WINDOW` seconds, again and again.

    Replicas come and go; a server that is not one of several must answer.

    Raises:
        TransientError: a server does not answer.
    """
    looks: dict[Endpoint, deque[Look]] = {}
    while True:
        looks = {each: _look(each, looks.get(each, deque())) for each in find()}
        changes = {
            str(each): Change(past[0], past[-1]) for each, past in looks.items() if len(past) > 1
        }
        if changes:
            yield changes
        time.sleep(seconds)


def _look(endpoint: Endpoint, past: deque[Look]) -> deque[Look]:
    """Return the looks at a server with one more; none of a replica that does not answer."""
    try:
        samples = read_metrics(endpoint)
    except TransientError:
        if endpoint.replica is None:
            raise
        return deque()
    past.append(Look(time.monotonic(), samples))
    while len(past) > 2 and past[-1].at - past[1].at >= WINDOW:
        past.popleft()
    return past


def as_values(change: Change) -> dict[str, Any]:
    """Return what a server did, for JSON."""
    return {
        "seconds": change.seconds,
        "models": [asdict(each) for each in model_loads(change)],
        "clients": [asdict(each) for each in way_loads(change)],
    }


def tables(changes: dict[str, Change]) -> Group:
    """Return what servers did as tables: of each version, and of what clients saw.

    Replicas have one guard, so what its clients saw is shown once.
    """
    found: list[Table] = []
    guards: set[str] = set()
    for server, change in changes.items():
        models = model_loads(change)
        names = [f"{each.model} {each.version}" for each in models]
        found.append(_table(f"Triton at {server}", "version", names, models, MODEL_COLUMNS))
        guard = server.split()[0]
        ways = way_loads(change) if guard not in guards else []
        guards.add(guard)
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
