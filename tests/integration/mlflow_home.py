"""MLflow as `up` runs it, alone, and somebody of another user who sends requests to it."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.services import answers
from tests.integration.conftest import Home, make_home

START_SECONDS = 120.0
STRANGER = """
import json, sys, urllib.request, urllib.error
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for line in sys.stdin:
    asked = json.loads(line)
    body = asked["body"].encode() if asked["body"] is not None else None
    request = urllib.request.Request(asked["url"], body, asked["headers"], method=asked["method"])
    try:
        with opener.open(request, timeout=60) as response:
            status, text = response.status, response.read(100_000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read(100_000).decode(errors="replace")
    except OSError as error:
        status, text = 0, str(error)
    print(json.dumps([status, text]), flush=True)
"""


@dataclass(frozen=True)
class Mlflow:
    """A running MLflow.

    Attributes:
        home: its home.
        address: where it is.
        pid: its process.
    """

    home: Home
    address: str
    pid: int

    @property
    def password(self) -> str:
        return (self.home.path / "mlflow_admin.password").read_text()

    def objects(self) -> Mapping[str, Any]:
        """Return every row of every table of its database."""
        with closing(sqlite3.connect(self.home.path / "mlflow.db")) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {
                name: sorted(map(repr, database.execute(f"SELECT * FROM {name}")))  # noqa: S608
                for (name,) in names.fetchall()
            }

    def files(self) -> Mapping[str, bytes]:
        artifacts = self.home.path / "artifacts"
        return {str(each): each.read_bytes() for each in artifacts.rglob("*") if each.is_file()}


@dataclass(frozen=True)
class Ask:
    """A request."""

    method: str
    path: str
    body: str | None = None
    headers: Mapping[str, str] | None = None


def as_stranger(address: str, asked: Sequence[Ask]) -> list[tuple[int, str]]:
    """Send requests as the user `nobody`, and return status and text of each."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    assert python is not None
    lines = [
        json.dumps(
            {
                "url": address + each.path,
                "method": each.method,
                "body": each.body,
                "headers": dict(each.headers or {}),
            }
        )
        for each in asked
    ]
    done = subprocess.run(
        [python, "-c", STRANGER],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        user="nobody" if os.getuid() == 0 else None,
        cwd="/",
        env={},
        timeout=500,
        check=True,
    )
    return [(status, text) for status, text in map(json.loads, done.stdout.splitlines())]


@contextmanager
def running_mlflow(path: Path, **environment: str) -> Iterator[Mlflow]:
    home = make_home(path)
    home = Home(path, home.environment | environment)
    path.mkdir(mode=0o700)
    with (path / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.services", "mlflow"],
            env=home.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{home.environment['MILLRACE_MLFLOW_PORT']}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"{address}/health"):
            assert process.poll() is None, (path / "mlflow.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield Mlflow(home, address, process.pid)
    finally:
        process.terminate()
        process.wait(30)
