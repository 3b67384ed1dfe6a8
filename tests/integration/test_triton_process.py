"""Starting and stopping the embedded Triton."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.triton import server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path, "", "").prepared()


@pytest.fixture
def endpoint() -> Endpoint:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return Endpoint("127.0.0.1", *(each.getsockname()[1] for each in sockets))


def processes_of(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        if any(str(home) in part for part in process.info["cmdline"] or ()):
            yield process


def test_nothing_is_left_after_an_error_in_the_block(installation, endpoint) -> None:
    (installation.model_repository / "echo/1").mkdir(parents=True)
    (installation.model_repository / "echo/1/model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    (installation.model_repository / "echo/config.pbtxt").write_text(
        'name: "echo" backend: "python" '
        'input { name: "x" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    )
    regions = set(server.SHARED_MEMORY.iterdir())
    with suppress(ZeroDivisionError), server.running(installation, endpoint) as client:
        client.load("echo")
        assert len(list(processes_of(installation.home))) >= 2
        raise ZeroDivisionError
    assert not list(processes_of(installation.home))
    ours = f"_{endpoint.grpc_port}_"
    left = set(server.SHARED_MEMORY.iterdir()) - regions
    assert not [region for region in left if ours in region.name]


def test_the_log_is_private(installation, endpoint) -> None:
    with server.running(installation, endpoint):
        pass
    assert server.log_file(installation, endpoint).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named_with_its_setting(installation, endpoint, kind) -> None:
    port = getattr(endpoint, f"{kind}_port")
    with socket.socket() as taken:
        taken.bind((endpoint.host, port))
        taken.listen()
        setting = f"MILLRACE_TRITON_{kind.upper()}_PORT"
        with (
            pytest.raises(WorkError, match=rf"(?s)port {port} .*{setting}"),
            server.running(installation, endpoint),
        ):
            pytest.fail("it started")


def test_a_server_that_cannot_start_shows_its_log(installation, endpoint) -> None:
    installation.model_repository.rmdir()
    with (
        pytest.raises(WorkError, match=r"(?s)Triton ended .*model_repository.*read the whole log"),
        server.running(installation, endpoint),
    ):
        pytest.fail("it started")
