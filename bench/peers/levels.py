"""Servers that take turns at each number of clients, and a table of what the clients saw."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.http_clients import LoadResult, measure_load
from bench.http_load import HttpRequest
from bench.measure import Rounds

CLIENTS = (1, 8, 32, 128)
COLUMNS = ("clients", "server", "requests/s", "p50 ms", "p99 ms", "errors", "Triton ÷ peer")


@dataclass(frozen=True)
class Level:
    """What so many clients saw.

    Attributes:
        clients: how many.
        seen: by server, what they saw in each round.
    """

    clients: int
    seen: Mapping[str, Sequence[LoadResult]]

    def ratio(self, server: str, other: str) -> float:
        """Return the median of a server's requests per second ÷ another's, round by round."""
        a, b = ([each.requests_per_second for each in self.seen[name]] for name in (server, other))
        return Rounds(a, b).ratio

    def errors(self, server: str) -> int:
        """Return the errors of a server in all rounds."""
        return sum(each.errors for each in self.seen[server])


def measure_level(
    servers: Mapping[str, HttpRequest], clients: int, rounds: int, seconds: int
) -> Level:
    """Measure servers in turn: A B C, then C B A, and so on.

    Args:
        servers: the request to each of them.
        clients: how many send it.
        rounds: measurements of each server.
        seconds: of a measurement.
    """
    seen: dict[str, list[LoadResult]] = {name: [] for name in servers}
    for number in range(rounds):
        for name in list(servers)[:: -1 if number % 2 else 1]:
            seen[name].append(measure_load(servers[name], clients, seconds))
    return Level(clients, seen)


def format_table(levels: Iterable[Level], peer: str) -> str:
    """Return a Markdown table of medians: at each level the peer, and each Triton with its ratio.

    The errors are the sum of all rounds.
    """
    lines = [f"| {' | '.join(COLUMNS)} |", f"|---:|---|{'---:|' * (len(COLUMNS) - 2)}"]
    for level in levels:
        for server, seen in level.seen.items():
            rate = statistics.median(each.requests_per_second for each in seen)
            p50 = statistics.median(each.p50_ms for each in seen)
            p99 = statistics.median(each.p99_ms for each in seen)
            ratio = "" if server == peer else f"{level.ratio(server, peer):.2f}"
            lines.append(
                f"| {level.clients} | {server} | {rate:.0f} | {p50:.1f} | {p99:.1f} "
                f"| {level.errors(server)} | {ratio} |"
            )
    return "\n".join(lines)


def list_samples(levels: Iterable[Level]) -> dict[str, list[float]]:
    """Return the measurements behind the table, by server, number of clients and quantity."""
    return {
        f"{server}, {level.clients} clients, {quantity}": [
            float(getattr(each, quantity)) for each in seen
        ]
        for level in levels
        for server, seen in level.seen.items()
        for quantity in ("requests_per_second", "p50_ms", "p99_ms", "errors")
    }
