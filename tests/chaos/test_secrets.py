"""A password in an address is told to nobody: not in `ps`, a log, a database or an error."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import Home, make_home
from tests.integration.mlflow_home import running_mlflow

POSTGRES = Path("/usr/lib/postgresql")
BIN = next(iter(sorted(POSTGRES.glob("*/bin"), reverse=True)), None)
pytestmark = pytest.mark.skipif(
    BIN is None or sys.platform != "linux" or os.getuid() != 0, reason="needs PostgreSQL and root"
)

MARK = "s3cr3tm4rk"
ROWS = "id,a,b,y\n" + "\n".join(
    f"{n},{n % 7},{n % 5},{'no' if n % 2 else 'yes'}" for n in range(80)
)
PIPELINE = """
name: tiny
dataset: {source: tiny.csv, target: y, key: [id]}
model: {params: {hidden: [4]}}
training: {epochs: 1, num_workers: 1}
export: {candidates: [onnx-fp32]}
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real PostgreSQL, with its password."""
    assert BIN is not None
    folder = Path(tempfile.gettempdir()) / f"millrace-pg-{os.getpid()}"
    folder.mkdir(mode=0o700)
    shutil.chown(folder, "nobody")
    password = folder / "password"
    password.write_text(MARK)
    password.chmod(0o644)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plain = {"user": "nobody", "cwd": folder, "check": True, "capture_output": True}
    options = ["-A", "scram-sha-256", "-U", "millrace", f"--pwfile={password}", "--no-sync"]
    subprocess.run([BIN / "initdb", "-D", folder / "data", *options], **plain)  # type: ignore[call-overload]
    server = subprocess.Popen(
        [BIN / "postgres", "-D", folder / "data", "-p", str(port), "-k", folder, "-F"],
        user="nobody",
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"postgresql://millrace:{MARK}@127.0.0.1:{port}/postgres"
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


def arguments() -> list[str]:
    """Return what every process of the machine says of itself."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def files_with(mark: str, folder: Path) -> list[str]:
    plain = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return [str(each) for each in plain if mark.encode() in each.read_bytes()]


def test_the_address_of_the_database_is_in_no_argument(database: str, tmp_path: Path) -> None:
    with running_mlflow(tmp_path / "home", MLFLOW_TRACKING_URI=database) as server:
        assert not [line for line in arguments() if MARK in line]
        assert files_with(MARK, server.home.path) == []


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.csv").write_text(f"id,a,b,y\n{ROWS}")
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    return tmp_path / "tiny.yaml"


def home_with(path: Path, prefect_api: str | None = None, **environment: str) -> Home:
    made = make_home(path, prefect_api)
    return Home(path, made.environment | environment)


def test_a_run_with_it_leaves_it_nowhere(database: str, tiny: Path, tmp_path: Path) -> None:
    home = home_with(tmp_path / "home", MLFLOW_TRACKING_URI=database)
    done = home.run("run", str(tiny), "--json", timeout=500)
    assert done.code == 0, done.err
    assert MARK not in done.out + done.err
    assert files_with(MARK, home.path) == []


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://millrace:{MARK}@127.0.0.1:1/mlflow",
        f"postgresql://millrace:{MARK}/x@127.0.0.1:1/mlflow",
        f"http://millrace:{MARK}@127.0.0.1:1",
        f"nonsense://millrace:{MARK}@127.0.0.1:1",
    ],
    ids=["postgresql", "slash", "http", "nonsense"],
)
def test_an_error_does_not_tell_it(
    address: str, tiny: Path, tmp_path: Path, prefect_api: str
) -> None:
    home = home_with(tmp_path / "home", prefect_api, MLFLOW_TRACKING_URI=address)
    done = home.run("run", str(tiny), timeout=500)
    assert done.code in (1, 2)
    assert "Traceback" not in done.err
    assert MARK not in done.out + done.err
    assert files_with(MARK, home.path) == []


@pytest.mark.parametrize("command", [["status", "--json"], ["release"], ["history", "tiny"]])
def test_nor_do_other_commands(command: list[str], tmp_path: Path) -> None:
    home = home_with(
        tmp_path / "home",
        MLFLOW_TRACKING_URI=f"http://millrace:{MARK}@127.0.0.1:1",
        PREFECT_API_URL=f"http://millrace:{MARK}@127.0.0.1:1/api",
    )
    done = home.run(*command, timeout=200)
    assert MARK not in done.out + done.err
    assert files_with(MARK, home.path) == []
