"""MLflow as `up` runs it, alone, and what its database holds."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.flows.services.health import is_url_healthy
from tests.integration.conftest import Home, make_home

START_SECONDS = 120.0


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
        return rows_of(self.home.path)

    def files(self) -> Mapping[str, bytes]:
        artifacts = self.home.path / "artifacts"
        return {str(each): each.read_bytes() for each in artifacts.rglob("*") if each.is_file()}


def rows_of(home: Path) -> Mapping[str, Any]:
    """Return every row of every table of the database of a home."""
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: sorted(map(repr, database.execute(f"SELECT * FROM {name}")))  # noqa: S608
            for (name,) in names.fetchall()
        }


@contextmanager
def running_mlflow(path: Path, **environment: str) -> Iterator[Mlflow]:
    home = make_home(path)
    home = Home(path, home.environment | environment)
    path.mkdir(mode=0o700)
    with (path / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.flows.services.service_specs", "mlflow"],
            env=home.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{home.environment['MILLRACE_MLFLOW_PORT']}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_url_healthy(f"{address}/health"):
            assert process.poll() is None, (path / "mlflow.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield Mlflow(home, address, process.pid)
    finally:
        process.terminate()
        process.wait(30)
