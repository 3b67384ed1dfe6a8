"""A server that ticks rarely still answers, renews its clock and stops when it is told."""

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import uvicorn

from millrace.serving.http_server import TICK_SECONDS, IdleServer


async def _app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


def test_it_ticks_at_its_own_pace_until_it_must_stop(monkeypatch: Any) -> None:
    server = IdleServer(uvicorn.Config(_app))
    slept: list[float] = []
    seen: list[int] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def on_tick(counter: int) -> bool:
        seen.append(counter)
        return len(seen) > 4

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(server, "on_tick", on_tick)
    asyncio.run(server.main_loop())
    assert slept == [TICK_SECONDS] * 4
    assert seen == [0, 5, 10, 15, 20]


def test_it_stops_when_it_is_told() -> None:
    server = IdleServer(uvicorn.Config(_app, port=0, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    server.should_exit = True
    thread.join()
    assert not thread.is_alive()


def test_ctrl_c_ends_it_without_a_stack_trace() -> None:
    program = (
        "from millrace.serving.http_server import run_server\n"
        "async def app(*_): pass\n"
        "run_server(app, port=0, lifespan='off')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        while "Uvicorn running" not in it.stderr.readline():
            assert it.poll() is None
        it.send_signal(signal.SIGINT)
        said = it.stderr.read()
    assert it.returncode == 0
    assert "Traceback" not in said
