import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bench.http_load import HttpRequest, http_load
from bench.peers import environment
from bench.peers.models import Question, find_numbers
from bench.peers.server import Peer, _find_marked, run_peer
from millrace.models.common.errors import WorkError

SERVER = """
import http.server, subprocess, sys
subprocess.Popen(["sleep", "300"], start_new_session=True)  # as Ray's processes are
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"y": [[1.5, 2]]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Answer).serve_forever()
"""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr("bench.peers.server.WARM_UP_SECONDS", 0.2)  # a stand-in needs no more
    script = tmp_path / "serve.py"
    script.write_text(SERVER)
    return Peer("a stand-in", str(script), ("as it comes",), "/", "x", 1)


def test_the_numbers_of_an_answer_are_found_in_their_order() -> None:
    assert find_numbers({"predictions": [{"y": [1, 2.5]}, [3]], "name": "y"}) == [1.0, 2.5, 3.0]


def test_a_peer_ends_with_its_children_also_on_ctrl_c(peer: Peer) -> None:
    homes: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(peer, homes)
    assert _find_marked(homes[0]) == []
    assert not Path(homes[0]).exists()


def test_another_answer_than_onnx_runtimes_is_an_error(peer: Peer) -> None:
    question = Question(Path("none.onnx"), [0.0], [1.5, 3.0])
    with (
        pytest.raises(WorkError, match="a stand-in answers something else"),
        run_peer(peer, "", Path(sys.executable), question),
    ):
        pass


def test_a_peer_that_ends_says_why(peer: Peer) -> None:
    Path(peer.script).write_text("raise SystemExit('no such package')")
    question = Question(Path("none.onnx"), [0.0], [])
    with (
        pytest.raises(WorkError, match="did not start\n  seen: no such package"),
        run_peer(peer, "", Path(sys.executable), question),
    ):
        pass


def test_the_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def run(argv: list[str]) -> None:
        made.append(argv)
        tmp_path.mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "_run", run)
    assert environment.install_peers(tmp_path) == tmp_path / "bin" / "python"
    assert len(made) == 2
    environment.install_peers(tmp_path)
    assert len(made) == 2


def test_what_pip_says_is_in_the_error() -> None:
    pip = [sys.executable, "-c", "raise SystemExit('could not find a version')"]
    with pytest.raises(WorkError, match="seen: could not find a version(?s:.*)a network"):
        environment._run(pip)


def test_answers_in_chunks_are_read_to_their_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer_in_pieces, args=(server,), daemon=True).start()
        request = HttpRequest(*server.getsockname(), "/", b"{}")
        load = http_load(request, clients=1, seconds=0.2)
    assert load.requests >= 2
    assert min(load.latencies) >= 0.01


def _interrupted(peer: Peer, homes: list[str]) -> None:
    question = Question(Path("none.onnx"), [0.0], [1.5, 2.0])
    with run_peer(peer, "", Path(sys.executable), question) as other:
        homes.append(other.home)
        assert len(_find_marked(other.home)) == 2
        raise KeyboardInterrupt


def _answer_in_pieces(server: socket.socket) -> None:
    connection, _ = server.accept()
    with suppress(OSError):
        while connection.recv(65536):
            connection.sendall(CHUNKED[:-4])
            time.sleep(0.01)
            connection.sendall(CHUNKED[-4:])
