"""What the integration tests share: homes of their own, and the command line."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from millrace.flows.services.service_specs import prefect_service
from millrace.flows.settings import Settings
from millrace.models.common.installation import Installation
from millrace.serving.triton import server
from tests.integration import command_server, shared_ray
from tests.integration.asked import Line
from tests.integration.ports import free_endpoint, service_ports

CLI = "from millrace.flows.cli.main import main; main()"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def _environment_as_it_was() -> Iterator[None]:
    """Undo what a module's tests left in the environment: MLflow writes its addresses there, and
    the services that another module starts would inherit them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except json.JSONDecodeError as error:
            raise AssertionError(f"no JSON, but {self}") from error


@dataclass(frozen=True)
class Home:
    """A home folder with an environment of its own, and commands that run in it."""

    path: Path
    environment: dict[str, str]

    def start(self, *arguments: str, first: str = "", **options: Any) -> "subprocess.Popen[str]":
        """Start a command as a user does."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"{first}\n{CLI}", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | options.pop("env", {}),
            **options,
        )

    def run(self, *arguments: str, timeout: float = 240, first: str = "", **options: Any) -> Done:
        """Run a command to its end, in a process that has imported the libraries before.

        Args:
            arguments: of the command.
            timeout: in seconds.
            first: Python code that runs before the command, in its process.
            options: of `subprocess.Popen`.
        """
        environment = self.environment | options.get("env", {})
        if not options.keys() - {"env", "cwd"} and command_server.can_run(environment):
            folder = Path(options.get("cwd", Path.cwd()))
            words = [*map(str, arguments)]
            return Done(*command_server.run(words, environment, folder, timeout, first))
        process = self.start(*arguments, first=first, **options)
        out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err)


def make_home(path: Path, prefect_api: str | None = None, ray: Path | None = None) -> Home:
    ports = {f"MILLRACE_{name.upper()}": str(port) for name, port in service_ports().items()}
    clean = command_server.without_settings(os.environ)
    environment = {**clean, **ports, "MILLRACE_HOME": str(path)}
    if prefect_api:
        environment["PREFECT_API_URL"] = prefect_api
    if ray:
        shared_ray.wait(ray)
        environment[command_server.SHARED_RAY] = str(ray)
    return Home(path, environment)


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the API of the run's one Prefect server: a command that starts its own is slower.

    The chaos tests have this fixture too, and so does every worker of the run. The server may
    outlive the worker that started it; `tests/reaper.py` ends it.
    """
    with _folder_of_the_run(tmp_path_factory, "prefect-server") as folder:
        address = folder / "address"
        if not address.exists():
            address.write_text(start_prefect(folder)[0])
    return address.read_text()


@pytest.fixture(scope="session")
def ray_of_commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder `run` of the one Ray that the commands of `Home.run` share.

    It starts while others start the Prefect server; `make_home` waits for it.
    """
    with _folder_of_the_run(tmp_path_factory, "ray") as folder:
        if not (folder / "log").exists():
            shared_ray.begin(folder)
    return folder / "run"


@contextmanager
def _folder_of_the_run(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Make a folder that all workers of the run share, and keep the others out of the block."""
    folder = factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """Run a Prefect server; gives the address of its API."""
    api, process = start_prefect(folder)
    try:
        yield api
    finally:
        process.terminate()
        process.wait(30)


def start_prefect(folder: Path) -> "tuple[str, subprocess.Popen[bytes]]":
    """Start the Prefect server of `up`, without a login; return its API, which answers, and it.

    It takes half of the CPU time of `prefect server start` to start, and a third of it at rest.
    """
    home = make_home(folder)
    port = home.environment["MILLRACE_PREFECT_PORT"]
    command = [sys.executable, "-P", "-m", "millrace.flows.services.prefect_server"]
    environment = home.environment | {
        **prefect_service(Settings(home=folder, prefect_port=int(port))).environment,
        "PREFECT_HOME": str(home.path),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    api = f"http://127.0.0.1:{port}/api"
    try:
        _wait_for(f"{api}/health", process)
    except BaseException:
        process.kill()
        raise
    return api, process


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    import time
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer")


@pytest.fixture
def new_home(tmp_path: Path, ray_of_commands: Path, prefect_api: str) -> Home:
    return make_home(tmp_path / "home", prefect_api, ray_of_commands)


@pytest.fixture(scope="session")
def make(ray_of_commands: Path, prefect_api: str) -> Callable[[Path], Home]:
    return lambda path: make_home(path, prefect_api, ray_of_commands)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A registry and a Triton server."""
    home, endpoint = tmp_path_factory.mktemp("home"), free_endpoint()
    uri = f"sqlite:///{home}/mlflow.db"
    installation = Installation(home, uri, str(home / "tables"), triton=(endpoint,)).prepared()
    with server.running(installation, endpoint) as client:
        yield Line(installation, client)


@pytest.fixture(scope="session")
def examples() -> Path:
    return EXAMPLES


@dataclass(frozen=True)
class Demo:
    """A reader's folder, after `make demo`.

    Attributes:
        home: the home, in the folder.
        folder: it holds the examples.
        done: the command.
    """

    home: Home
    folder: Path
    done: Done


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], Home]) -> Demo:
    """The demo, run once: `SHARED` in tests/conftest.py names the files that have it."""
    folder = tmp_path_factory.mktemp("reader")
    copytree(EXAMPLES, folder / "examples")
    home = make(folder / ".millrace")
    done = home.run("demo", cwd=folder, timeout=400)
    assert done.code == 0, done.err
    return Demo(home, folder, done)


__all__ = ["EXAMPLES", "Demo", "Done", "Home", "make_home"]
