import http.server
import shutil
import threading
from collections.abc import Iterator

import pytest

from bench import http_clients
from bench.http_clients import LoadResult, measure_load, name_client, read_wrk
from bench.http_load import HttpRequest

SEEN = '{"answers": 90, "refused": 10, "unanswered": 2, "us": 2000000, "p50_us": 1500, "p99_us": 9}'
has_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the body that it gets, and refuses every other request to /refuses."""

    protocol_version = "HTTP/1.1"
    requests = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Echo.requests += 1
        self.send_response(503 if self.path == "/refuses" and Echo.requests % 2 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def request_to() -> Iterator[HttpRequest]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield HttpRequest("127.0.0.1", server.server_port, "/answers", b'{"x": [1]}')
        server.shutdown()
        thread.join()


def test_a_request_is_sent_with_its_body(request_to: HttpRequest) -> None:
    assert request_to.send() == {"x": [1]}


def test_refused_requests_are_errors_and_no_answers() -> None:
    assert read_wrk(f"Running 2s test\n{SEEN}\n") == LoadResult(40.0, 1.5, 0.009, 12)


def test_no_answer_at_all_fails() -> None:
    with pytest.raises(ConnectionError, match="no answer with 200"):
        read_wrk(SEEN.replace("90", "10"))


@has_wrk
def test_wrk_measures_and_says_its_version(request_to: HttpRequest) -> None:
    load = measure_load(request_to, clients=2, seconds=1)
    assert load.requests_per_second > 1
    assert 0 < load.p50_ms <= load.p99_ms
    assert load.errors == 0
    assert name_client().startswith("wrk ")


@has_wrk
def test_wrk_counts_what_a_server_refuses(request_to: HttpRequest) -> None:
    refusing = HttpRequest(request_to.host, request_to.port, "/refuses", request_to.body)
    assert measure_load(refusing, clients=2, seconds=1).errors > 0


@has_wrk
def test_a_server_that_is_not_there_fails() -> None:
    with pytest.raises(ConnectionError, match="wrk failed"):
        measure_load(HttpRequest("127.0.0.1", 1, "/", b"{}"), clients=1, seconds=1)


def test_without_wrk_clients_in_python_measure(
    request_to: HttpRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_clients, "WRK", "no-such-program")
    load = measure_load(request_to, clients=2, seconds=1)
    assert load.requests_per_second > 1
    assert 0 < load.p50_ms <= load.p99_ms
    assert "Python" in name_client()
