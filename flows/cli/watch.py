"""`millrace status --watch`: what Triton does now, as a live table or as lines of JSON."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.flows import console
from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.printable import safe
from millrace.serving.guard.arrivals_log import log_path
from millrace.serving.guard.arrivals_tail import ArrivalsTail
from millrace.serving.replicas.files import servers_of
from millrace.serving.triton.client_load import ClientLoad, client_loads
from millrace.serving.triton.recent_requests import RecentRequests
from millrace.serving.triton.served_load import (
    Change,
    Look,
    ModelLoad,
    WayLoad,
    model_loads,
    read_metrics,
    way_loads,
)
from millrace.tasks.live_terms import LiveTerms

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
CLIENT_COLUMNS = {
    "requests_per_second": "requests/s",
    "failed_per_second": "failed/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "goodput_per_second": "within the goal/s",
    "cost_per_million": "$ per million",
    "cost_per_million_tokens": "$ per million tokens",
}
WAY_COLUMNS = {
    "requests_per_second": "requests/s",
    "refused_per_second": "errors/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}


FindServers = Callable[[], Sequence[Endpoint]]
Changes = dict[str, Change]


def watch_load(installation: Installation, seconds: float, *, as_json: bool) -> None:
    """Show what the servers do until Ctrl-C.

    Args:
        installation: where the servers are.
        seconds: between two looks.
        as_json: whether to print a line of JSON each time, instead of a table.

    Raises:
        TransientError: a server does not answer.
    """
    clients = Clients(installation)
    found = look_again(partial(servers_of, installation), seconds)
    seen = ((changes, clients.look(changes)) for changes in found)
    if as_json:
        for changes, loads in seen:
            servers = {server: as_values(each) for server, each in changes.items()}
            clients_of = [asdict(each) for each in loads]
            console.print_json_line({"servers": servers, "clients_of": clients_of})
        return
    first = next(seen)
    with Live(tables(*first), console=Console(), auto_refresh=False) as live:
        for each in seen:
            live.update(tables(*each), refresh=True)


class Clients:
    """What the clients of each model see, from the guard's record.

    Args:
        installation: has the record, and the terms of the models.
    """

    def __init__(self, installation: Installation) -> None:
        tail = ArrivalsTail(installation.home / log_path(servers_of(installation)[0]))
        self._recent = RecentRequests(tail, WINDOW)
        self._recent.look(time.monotonic())
        self._terms = LiveTerms(installation)

    def look(self, changes: Changes) -> list[ClientLoad]:
        """Return what they saw in the last seconds; nothing where arrivals are not recorded."""
        self._recent.look(time.monotonic())
        return client_loads(self._recent, list(changes.values()), self._terms.by_model())


def look_again(find: FindServers, seconds: float) -> Iterator[Changes]:
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


def tables(changes: Changes, clients: Sequence[ClientLoad] = ()) -> Group:
    """Return what servers did as tables: of each version, and of what clients saw.

    Replicas have one guard, so what its clients saw is shown once.

    Args:
        changes: what each server did.
        clients: what the clients of each model saw.
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
    if clients:
        names = [each.model for each in clients]
        found.append(_table("seen by clients of", "model", names, clients, CLIENT_COLUMNS))
    return Group(*found)


def _table(
    title: str,
    first: str,
    names: Sequence[str],
    loads: Sequence[ModelLoad | WayLoad | ClientLoad],
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
