import http.server
import socket
import socketserver
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from millrace.models.common import reachable
from millrace.models.common.errors import SilentError, TransientError, WorkError
from millrace.models.common.reachable import require_database, require_http, require_tcp
from millrace.models.registry.tracking import check_reachable, database_server


class _Garbage(socketserver.BaseRequestHandler):
    """Answers whatever is asked with something that is no HTTP."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"garbage\n")


@pytest.fixture
def address() -> Iterator[str]:
    """Where something listens that does not speak HTTP."""
    with socketserver.TCPServer(("127.0.0.1", 0), _Garbage) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_what_answers_no_http_is_not_reachable(address: str) -> None:
    with pytest.raises(TransientError, match="Ray cannot be reached") as caught:
        require_http(f"http://{address}/", service="Ray", setting="RAY_ADDRESS")
    assert "check RAY_ADDRESS" in str(caught.value)


class _Late(socketserver.BaseRequestHandler):
    """Answers the second request; the first one waits in vain."""

    asked = 0

    def handle(self) -> None:
        type(self).asked += 1
        self.request.recv(1000)
        if self.asked == 1:
            time.sleep(0.4)
        else:
            self.request.sendall(b"HTTP/1.0 200 OK\r\n\r\ntrue")


def test_what_is_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(_Late, "asked", 0)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Late) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/health"
        require_http(url, service="Prefect", setting="PREFECT_API_URL")
        server.shutdown()
    assert _Late.asked == 2


class _Half(http.server.BaseHTTPRequestHandler):
    """Is well by its health page; its data answers with `status`, or not at all."""

    status = 0
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path != "/health" and not self.status:
            time.sleep(1)
        self.send_response(200 if self.path == "/health" else self.status or 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that is well by its health page."""
    for name, value in {"TIMEOUT_S": 0.1, "PATIENCE_S": 0.3, "HURRIED_S": 0.05}.items():
        monkeypatch.setattr(reachable, name, value)
    monkeypatch.setattr(_Half, "status", 0)
    monkeypatch.setattr(_Half, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Half) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def mlflow(address: str) -> None:
    url = f"{address}/health"
    require_http(url, service="MLflow", setting="MLFLOW_TRACKING_URI", data=f"{address}/data")


def test_a_server_that_is_well_and_gives_no_data_is_silent(half: str) -> None:
    with pytest.raises(SilentError, match="MLflow cannot be reached at"):
        mlflow(half)


def test_one_that_was_silent_a_moment_ago_is_not_waited_for_again(half: str) -> None:
    with pytest.raises(SilentError):
        mlflow(half)
    asked = len(_Half.asked)
    with pytest.raises(SilentError):
        mlflow(half)
    assert _Half.asked[asked:] == ["/health", "/data"]


@pytest.mark.parametrize("status", [200, 401, 404])
def test_one_that_speaks_is_asked_now_and_then_and_for_its_data_less_often(
    half: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Half.status = status
    mlflow(half)
    mlflow(half)
    assert _Half.asked == ["/health", "/data"]
    monkeypatch.setattr(reachable, "HEALTH_S", 0.0)
    mlflow(half)
    assert _Half.asked == ["/health", "/data", "/health"]


def test_one_that_fails_at_its_data_is_told_at_once(half: str) -> None:
    _Half.status = 500
    with pytest.raises(TransientError, match="cannot be reached") as told:
        mlflow(half)
    assert "500" in str(told.value)
    assert not isinstance(told.value, SilentError)


@pytest.mark.parametrize("url", ["http://host:abc/", "http://", "no address", "http://[::1/"])
def test_what_is_no_address_is_not_reachable(url: str) -> None:
    with pytest.raises(TransientError, match="cannot be reached"):
        require_http(url, service="Ray", setting="RAY_ADDRESS")


def test_what_listens_is_reachable(address: str) -> None:
    require_tcp(address, service="Ray", setting="RAY_ADDRESS")


def test_a_port_where_nobody_listens_is_not_reachable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(TransientError, match="cannot be reached"):
        require_tcp(f"127.0.0.1:{port}", service="Ray", setting="RAY_ADDRESS")


@pytest.mark.parametrize("address", ["host", "host:abc", "ray://host:99999"])
def test_an_address_without_a_port_is_not_reachable(address: str) -> None:
    with pytest.raises(TransientError, match="cannot be reached"):
        require_tcp(address, service="Ray", setting="RAY_ADDRESS")


def database(uri: str) -> None:
    require_database(uri, service="MLflow", setting="MLFLOW_TRACKING_URI")


def test_a_database_that_is_still_to_be_made_is_fine(tmp_path: Path) -> None:
    database(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_database_that_is_being_written_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.models.common.reachable.TIMEOUT_S", 0)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        database(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_database_in_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="the database of MLflow cannot be opened"):
        database(f"sqlite:///{tmp_path}/nowhere/mlflow.db")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database " * 100)
    with pytest.raises(WorkError, match="cannot be opened") as caught:
        database(f"sqlite:///{tmp_path}/mlflow.db")
    assert "not a database" in str(caught.value)


def test_another_database_is_not_looked_at() -> None:
    database("postgresql://nowhere/mlflow")


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("postgresql://u:p@db.local/mlflow", "db.local:5432"),
        ("postgresql+psycopg2://u:a/b@db.local:6000/mlflow", "db.local:6000"),
        ("mysql+pymysql://db.local/mlflow", "db.local:3306"),
        ("sqlite:////home/mlflow.db", None),
        ("/home/mlruns", None),
        ("file:///home/mlruns", None),
        ("nonsense", None),
    ],
)
def test_a_database_is_looked_for_where_its_address_says(uri: str, server: str | None) -> None:
    assert database_server(uri) == server


def test_a_database_that_is_not_there_is_told_at_once_without_its_password() -> None:
    with pytest.raises(TransientError, match="the database of MLflow cannot be reached") as told:
        check_reachable("postgresql://u:s3cr3t@127.0.0.1:1/mlflow")
    assert "s3cr3t" not in str(told.value)
