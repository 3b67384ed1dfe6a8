import pytest

from bench.catalog import MODULES
from bench.http_clients import LoadResult
from bench.http_load import HttpRequest
from bench.peers.beside import PEERS, SLOW
from bench.peers.levels import Level, format_table, list_samples, measure_level

LEVEL = Level(
    8,
    {
        "Other": [LoadResult(100, 10, 20, 1), LoadResult(200, 11, 40, 0), LoadResult(50, 9, 30, 2)],
        "Triton": [LoadResult(500, 1, 2, 0), LoadResult(400, 3, 4, 0), LoadResult(350, 2, 3, 0)],
    },
)


def test_servers_are_measured_in_turn_and_in_reverse_order_in_each_second_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports: list[int] = []

    def measure_load(request: HttpRequest, clients: int, seconds: int) -> LoadResult:
        assert (clients, seconds) == (8, 2)
        ports.append(request.port)
        return LoadResult(request.port, 1.0, 2.0, 0)

    monkeypatch.setattr("bench.peers.levels.measure_load", measure_load)
    servers = {str(port): HttpRequest("", port, "", b"") for port in (1, 2, 3)}
    level = measure_level(servers, clients=8, rounds=3, seconds=2)
    assert ports == [1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert [each.requests_per_second for each in level.seen["2"]] == [2, 2, 2]


def test_a_ratio_is_the_median_over_rounds() -> None:
    assert LEVEL.ratio("Triton", "Other") == 5


def test_the_table_has_medians_and_all_errors() -> None:
    lines = format_table([LEVEL], "Other").splitlines()
    assert lines[2:] == [
        "| 8 | Other | 100 | 10.0 | 30.0 | 3 |  |",
        "| 8 | Triton | 400 | 2.0 | 3.0 | 0 | 5.00 |",
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_every_measurement_is_a_sample() -> None:
    samples = list_samples([LEVEL])
    assert len(samples) == 8
    assert samples["Other, 8 clients, errors"] == [1, 0, 2]


def test_the_catalog_lists_both_rows_of_each_peer() -> None:
    assert set(MODULES["peers"]) == {*PEERS, *(name + SLOW for name in PEERS)}
