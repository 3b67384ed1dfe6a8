"""Metrics by model, for Prometheus."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.guard.arrivals_table import SCHEMA, parse_lines
from millrace.serving.guard.socket_page import serving_page
from millrace.serving.guard.sockets import SocketConnection
from millrace.serving.triton.client_load import Terms
from millrace.serving.triton.client_metrics import BOUNDS, NOT_LIVE, ClientMetrics
from millrace.serving.triton.served_load import Samples, parse

TERMS = {"m": Terms(SloSpec(rate=1, p99_ms=10), 1.5), "other": Terms(price_per_hour=0.5)}


def lines(*ended: tuple[str, str, str, str]) -> pa.Table:
    """Return lines of requests with a model, protocol, microseconds and status each."""
    text = "".join(
        f"1795608000000000 {model} 1 {protocol} 9 {took} {status} .\n"
        for model, protocol, took, status in ended
    )
    return pa.concat_tables([SCHEMA.empty_table(), *parse_lines(text.encode())])


def samples(metrics: ClientMetrics) -> Samples:
    return parse(metrics.page().decode())


def value(found: Samples, metric: str, **labels: str) -> float:
    return found[metric, frozenset(labels.items())]


@pytest.fixture
def metrics() -> ClientMetrics:
    return ClientMetrics()


def test_requests_are_counted_by_outcome(metrics: ClientMetrics) -> None:
    for _ in range(2):
        metrics.add(
            lines(
                ("m", "grpc", "1000", "0"),
                ("m.columns", "grpc", "1000", "0"),
                ("m", "grpc", "1000", "4"),
                ("m", "http", "-", "-"),
            ),
            TERMS,
        )
    found = samples(metrics)
    labels = {"model": "m", "protocol": "grpc"}
    assert value(found, "millrace_requests", **labels, outcome="answered") == 4
    assert value(found, "millrace_requests", **labels, outcome="failed") == 2
    labels["protocol"] = "http"
    assert value(found, "millrace_requests", **labels, outcome="abandoned") == 2
    assert value(found, "millrace_requests", **labels, outcome="failed") == 0


def test_durations_are_those_of_answers(metrics: ClientMetrics) -> None:
    metrics.add(
        lines(
            ("m", "http", "10000", "200"), ("m", "http", "10001", "200"), ("m", "http", "9", "500")
        ),
        TERMS,
    )
    found = samples(metrics)
    name, labels = "millrace_request_duration_seconds", {"model": "m", "protocol": "http"}
    assert value(found, f"{name}_bucket", **labels, le="0.01") == 1
    assert value(found, f"{name}_bucket", **labels, le="0.015") == 2
    assert value(found, f"{name}_count", **labels) == 2
    assert value(found, f"{name}_sum", **labels) == pytest.approx(0.020001)


def test_an_answer_beyond_the_last_bucket_is_counted(metrics: ClientMetrics) -> None:
    metrics.add(lines(("m", "grpc", str(int(BOUNDS[-1] * 1e6) + 1), "0")), TERMS)
    labels = {"model": "m", "protocol": "grpc"}
    bucket = "millrace_request_duration_seconds_bucket"
    assert value(samples(metrics), bucket, **labels, le="600") == 0
    assert value(samples(metrics), bucket, **labels, le="+Inf") == 1


def test_goodput_bounds_and_price(metrics: ClientMetrics) -> None:
    within = ("m", "grpc", "10000", "0")
    metrics.add(lines(within, ("m", "grpc", "10001", "0"), ("m", "grpc", "1", "4")), TERMS)
    found = samples(metrics)
    assert value(found, "millrace_requests_within_goal", model="m") == 1
    assert value(found, "millrace_goal_seconds", model="m", bound="p99") == 0.01
    assert value(found, "millrace_machine_dollars_per_hour") == 1.5


def test_names_that_clients_choose_take_no_memory(metrics: ClientMetrics) -> None:
    metrics.add(lines(*[(f"x{number}", "http", "10", "404") for number in range(1000)]), TERMS)
    page = metrics.page().decode()
    assert "x7" not in page
    found = parse(page)
    labels = {"model": NOT_LIVE, "protocol": "http", "outcome": "failed"}
    assert value(found, "millrace_requests", **labels) == 1000


def test_before_the_first_request_there_are_only_bounds(metrics: ClientMetrics) -> None:
    metrics.add(lines(), TERMS)
    assert {name for name, _ in samples(metrics)} == {
        "millrace_goal_seconds",
        "millrace_machine_dollars_per_hour",
    }
    metrics.add(lines(), {})
    assert not samples(metrics)


def get(path: Path) -> bytes:
    connection = SocketConnection(path, 5.0)
    try:
        connection.request("GET", "/metrics/clients")
        return connection.getresponse().read()
    finally:
        connection.close()


def in_a_long_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    return folder / "clients.metrics"


@pytest.mark.parametrize("place", [in_a_long_folder, lambda path: path / "s"])
def test_a_page_is_served_at_a_private_socket(
    tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    path = place(tmp_path)
    path.touch()  # of a process that was killed
    with serving_page(path, lambda: b"seen"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert get(path) == b"seen"
        threads = [threading.Thread(target=get, args=(path,)) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(5)
            assert not each.is_alive()
    assert not path.exists()
