"""The guard's metrics: requests by status and their latencies, and nothing else of Envoy's."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from rich.console import Console
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.flows.cli.watch import look_again, tables
from millrace.flows.triggers.client_metrics_publisher import ClientMetricsPublisher
from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.guard import envoy_process
from millrace.serving.guard.arrivals_log import log_path
from millrace.serving.guard.arrivals_tail import ArrivalsTail
from millrace.serving.guard.envoy_stats import CLIENTS_PATH, METRICS_PATH
from millrace.serving.triton.client_load import Terms, client_loads
from millrace.serving.triton.client_metrics import NOT_LIVE
from millrace.serving.triton.recent_requests import RecentRequests
from millrace.serving.triton.served_load import model_loads, way_loads
from tests.integration.guard_stand import Stand, stand
from tests.integration.ports import free_endpoint
from tests.integration.test_grpc_guard import guard_of

SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
ROWS = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("guard") / "home") as found:
        yield found


def page(served: Stand) -> str:
    """Return the page of the guard's metrics."""
    port = served.endpoint.metrics_port
    answer = served.ask(path=METRICS_PATH, method="GET", port=port)
    assert answer.status == 200
    return answer.body.decode()


def value(served: Stand, name: str, *labels: str) -> float:
    """Return a sample of the page with these labels; 0 if there is none."""
    for found in SAMPLE.finditer(page(served)):
        if found[1] == name and all(each in found[2] for each in labels):
            return float(found[3])
    return 0.0


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds: Envoy collects its histograms every few seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_requests_over_grpc_are_counted_by_method_and_status(served) -> None:
    method, name = 'method="ModelInfer"', "envoy_cluster_grpc"
    before = value(served, f"{name}_0", method), value(served, f"{name}_5", method)
    for _ in range(3):
        served.client.predict("sums", ROWS)
    with grpc.insecure_channel(served.endpoint.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(pb.ModelInferRequest(model_name="nowhere"))
    after = value(served, f"{name}_0", method), value(served, f"{name}_5", method)
    assert (after[0] - before[0], after[1] - before[1]) == (3, 1)


def test_requests_over_http_are_counted_by_status(served) -> None:
    def counted() -> list[float]:
        return [
            value(served, "envoy_http_downstream_rq_xx", f'class="{each}"', 'prefix="http"')
            for each in (2, 4)
        ]

    before = counted()
    assert served.sums(ROWS["x"]) == [4.0]
    assert served.ask("{").status == 400
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1]


def test_latencies_are_in_histograms(served) -> None:
    of_grpc = ("envoy_cluster_grpc_upstream_rq_time_bucket", 'method="ModelInfer"', 'le="+Inf"')
    of_http = ("envoy_http_downstream_rq_time_bucket", 'prefix="http"', 'le="+Inf"')
    before = value(served, *of_grpc), value(served, *of_http)
    served.client.predict("sums", ROWS)
    served.sums(ROWS["x"])
    wait_for(lambda: value(served, *of_grpc) > before[0] and value(served, *of_http) > before[1])


def test_only_what_is_shown_is_collected(served) -> None:
    names = {found[1] for found in SAMPLE.finditer(page(served))}
    assert names
    assert all(
        each.startswith(("envoy_http_downstream_rq", "envoy_cluster_grpc_")) for each in names
    )
    assert served.client.endpoint.token not in page(served)


@pytest.mark.parametrize("query", ["?filter=x", "?", "/x", "/../../quitquitquit"])
def test_nothing_else_of_envoys_administration_is_reached(served, query) -> None:
    port = served.endpoint.metrics_port
    assert served.ask(path=METRICS_PATH + query, method="GET", port=port).status == 404
    assert served.ask(path=METRICS_PATH, port=port).status == 404
    assert served.is_right()


def test_a_page_of_another_origin_reads_no_metrics(served) -> None:
    headers, port = {"Origin": "http://evil.example"}, served.endpoint.metrics_port
    assert served.ask(path=METRICS_PATH, headers=headers, method="GET", port=port).status == 403


def test_a_guard_that_was_killed_starts_again_over_its_socket(tmp_path: Path) -> None:
    installation, endpoint = Installation(tmp_path, "", "").prepared(), free_endpoint()
    with envoy_process.running(installation, endpoint):
        os.kill(guard_of(endpoint).pid, signal.SIGKILL)
    with envoy_process.running(installation, endpoint):
        again = Stand(installation, endpoint, None)  # type: ignore[arg-type]
        assert "envoy_http" in page(again)


def test_what_a_server_does_is_seen_by_model_and_by_way(served, capsys) -> None:
    changes = look_again(
        lambda: [served.endpoint], 6.0
    )  # histograms are collected every five seconds
    for _ in range(4):
        served.client.predict("sums", ROWS)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(next, changes)
        time.sleep(0.5)
        for _ in range(4):
            served.client.predict("sums", ROWS)
        assert served.ask("{").status == 400
        (change,) = found.result().values()
    load = next(each for each in model_loads(change) if each.model == "sums")
    assert load.version == "1"
    assert round(load.requests_per_second * change.seconds) == 4
    assert load.rows_per_batch == 1
    assert load.queue_ms is not None
    ways = {each.way: each for each in way_loads(change)}
    assert ways["gRPC"].p99_ms is not None
    assert round(ways["HTTP"].refused_per_second * change.seconds) >= 1
    Console(width=120).print(tables({"here": change}))
    said = capsys.readouterr().out
    assert "sums 1" in said
    assert "tokens/min" not in said


def seen_by(recent: RecentRequests) -> int:
    """Look again, and return how many requests were seen; the guard writes every second."""
    recent.look(1.0)
    return sum(len(each.is_answered) for each in recent.by_model().values())


def test_what_clients_of_a_model_see_is_read_from_the_record(served) -> None:
    path = served.installation.home / log_path(served.endpoint)
    recent = RecentRequests(ArrivalsTail(path), window=60.0)
    recent.look(0.0)
    for _ in range(4):
        served.client.predict("sums", ROWS)
    with pytest.raises(MillraceError):
        served.client.predict("sums", {"x": np.ones((1, 5), np.float32)})
    goals = {"sums": Terms(SloSpec(rate=1, p99_ms=60_000))}
    wait_for(lambda: seen_by(recent) == 5)
    (load,) = client_loads(recent, [], goals)
    assert (load.requests_per_second, load.failed_per_second) == (5.0, 1.0)
    assert load.goodput_per_second == 4.0
    assert load.p99_ms is not None
    Console(width=120).print(tables({}, [load]))


def test_what_clients_see_is_a_page_of_metrics(served) -> None:
    installation = replace(served.installation, triton=(served.endpoint,))
    publisher = ClientMetricsPublisher(installation, pause=0.1)
    port = served.endpoint.metrics_port
    before = served.ask(path=CLIENTS_PATH, method="GET", port=port)
    assert before.status == 503
    assert b"these metrics are not made now" in before.body
    publisher.start()
    try:
        wait_for(lambda: served.ask(path=CLIENTS_PATH, method="GET", port=port).status == 200)
        served.client.predict("sums", ROWS)
        labels = rf'model="{re.escape(NOT_LIVE)}",outcome="answered",protocol="grpc"'
        some = re.compile(rf"millrace_requests_total{{{labels}}} [1-9]")  # no release made it live
        wait_for(lambda: some.search(clients_page(served)) is not None)
        headers = {"Origin": "http://evil.example"}
        answer = served.ask(path=CLIENTS_PATH, headers=headers, method="GET", port=port)
        assert answer.status == 403
    finally:
        publisher.stop()
        publisher.join(10)


def clients_page(served: Stand) -> str:
    port = served.endpoint.metrics_port
    return served.ask(path=CLIENTS_PATH, method="GET", port=port).body.decode()
