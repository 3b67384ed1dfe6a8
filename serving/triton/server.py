"""Start the embedded Triton server: its command line, and a context manager that runs it.

Triton listens on Unix sockets in MILLRACE_HOME, which other users cannot open. The guard, the proxy
in `millrace.serving.guard`, listens on the public ports. All calls that change the server require a
token.
"""

import hashlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.log_files import hold_log
from millrace.serving.guard import envoy_process, sockets
from millrace.serving.guard.token_names import TOKEN_HEADER
from millrace.serving.triton.backend_directory import (
    find_server,
    prepare_backends,
    python_environment,
)
from millrace.serving.triton.private_process import ENDS_WITH_PARENT

if TYPE_CHECKING:
    from millrace.serving.triton.client import TritonClient

SHARED_MEMORY = Path("/dev/shm")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.05
LAUNCHER = Path(__file__).with_name("private_process.py")
TOKEN_VARIABLE = "MILLRACE_TRITON_GRPC_RULE"
OPEN_TOKEN_VARIABLE = "MILLRACE_TRITON_HTTP_RULE"
RESTRICTED = "model-repository,shared-memory,trace,logging"
"""Triton's names of the protocols that change the server, such as loading a model with code."""


def command(
    installation: Installation,
    endpoint: Endpoint,
    *,
    guarded: bool = True,
    flags: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a server, for a supervisor that starts it.

    The server starts without models; a release loads the champions. The environment is complete and
    has none of the caller's variables, so the only secret that reaches the server is the endpoint's
    token. Triton accepts the token only as an argument, which `private_process` hides from other
    users. Clients with the token may change what is served; requests, metadata, health and
    statistics need no token.

    Args:
        installation: a prepared home folder.
        endpoint: the public address and ports.
        guarded: whether the guard listens on the public ports; if False, Triton listens there
            itself.
        flags: more of Triton's arguments.

    Raises:
        InputError: the endpoint is not on loopback. This Triton is old and must not be public.
        WorkError: Triton is not installed.
    """
    _require_loopback(endpoint)
    prefix = _shared_memory_prefix(installation, endpoint)
    socket_paths = {
        "http": sockets.http_socket(endpoint),
        "grpc": sockets.grpc_address(endpoint),
        "metrics": sockets.metrics_socket(endpoint),
    }
    addresses = {
        f"{name}-address": f"unix:{path}" if guarded else endpoint.host
        for name, path in socket_paths.items()
    }
    options = {
        "model-repository": installation.model_repository,
        "backend-directory": prepare_backends(installation.home),
        "model-control-mode": "explicit",
        "strict-readiness": "false",
        "exit-timeout-secs": 10,
        **addresses,
        "http-port": endpoint.http_port,
        "grpc-port": endpoint.grpc_port,
        "metrics-port": endpoint.metrics_port,
        "backend-config": f"python,shm-region-prefix-name={prefix}",
        "log-file": log_file(installation, endpoint),
        "log-format": "ISO8601",
    }
    given = (f"--{key}={value}" for key, value in options.items())
    program = [str(find_server().binary), "--disable-auto-complete-config", *given, *flags]
    secrets = {} if not endpoint.token else _token_flags(endpoint.token, guarded=guarded)
    argv = [*_launch(installation), *program, *(f"@{name}" for name in secrets)]
    return argv, python_environment() | secrets


def _launch(installation: Installation) -> list[str]:
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(installation.home)]


def _token_flags(token: str, *, guarded: bool) -> dict[str, str]:
    """Return the flags that make Triton require the token, by environment variable."""
    rule = f"{RESTRICTED}:{TOKEN_HEADER}={token}"
    rules = {TOKEN_VARIABLE: f"--grpc-restricted-protocol={rule}"}
    return rules if guarded else rules | {OPEN_TOKEN_VARIABLE: f"--http-restricted-api={rule}"}


def log_file(installation: Installation, endpoint: Endpoint) -> Path:
    """Return the path of a server's log file."""
    return installation.logs / f"triton-{sockets.server_name(endpoint)}.log"


@contextmanager
def running(
    installation: Installation,
    endpoint: Endpoint,
    *,
    deadline: float = START_SECONDS,
    guarded: bool = True,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    ends_with_parent: bool = False,
    stop_seconds: float = STOP_SECONDS,
) -> Iterator["TritonClient"]:
    """Run a server and its guard for the length of the block, and yield a client of the server.

    Afterwards the server, its stub processes, its shared memory and the guard are gone.

    Args:
        installation: a prepared home folder.
        endpoint: the public address and ports.
        deadline: seconds within which the server must be ready.
        guarded: whether to run the guard in front of Triton; see `command`.
        flags: more of Triton's arguments.
        environment: more environment variables of Triton.
        ends_with_parent: whether the kernel kills server and guard when this process is killed.
        stop_seconds: how long the server may take to end, before it is killed.

    Raises:
        InputError: the endpoint is not on loopback.
        WorkError: Triton is not installed, a port is in use, or the server did not become ready.
    """
    from millrace.serving.triton.client import TritonClient  # 25 MB, which a supervisor saves

    argv, needed = command(installation, endpoint, guarded=guarded, flags=flags)
    own = {ENDS_WITH_PARENT: "1"} if ends_with_parent else {}
    _require_free_ports(endpoint)
    clean_up(installation, endpoint)
    log = log_file(installation, endpoint)
    with log.open("ab") as output:
        log.chmod(0o600)
        hold_log(output.fileno())
        process = subprocess.Popen(
            argv,
            env={**environment, **needed, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the server
        )
    try:
        with TritonClient(endpoint) as client, ExitStack() as stack:
            if guarded:
                own_http = installation.home / sockets.http_socket(endpoint)
                _wait_until(lambda: _is_socket_ready(own_http), process, log, deadline)
                launch = _launch(installation)
                guard = envoy_process.running(
                    installation, endpoint, launch=launch, environment=own
                )
                stack.enter_context(guard)
            _wait_until(lambda: _is_ready(client), process, log, deadline)
            yield client
    finally:
        _stop(process, stop_seconds)
        clean_up(installation, endpoint)


def clean_up(installation: Installation, endpoint: Endpoint) -> None:
    """Remove a killed server's shared memory and sockets; no server may run at `endpoint`."""
    for path in (
        sockets.http_socket(endpoint),
        sockets.grpc_socket(endpoint),
        sockets.metrics_socket(endpoint),
    ):
        (installation.home / path).unlink(missing_ok=True)
    _remove_shared_memory(_shared_memory_prefix(installation, endpoint))


def remove_shared_memory(home: Path) -> None:
    """Remove the shared memory of all servers of a home folder; none of them may run."""
    _remove_shared_memory(_home_prefix(home))


def _remove_shared_memory(prefix: str) -> None:
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def _shared_memory_prefix(installation: Installation, endpoint: Endpoint) -> str:
    """Return a prefix that is unique per server, and the same after a restart."""
    return f"{_home_prefix(installation.home)}{sockets.server_name(endpoint)}_"


def _home_prefix(home: Path) -> str:
    return f"millrace_{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}_"


def _require_loopback(endpoint: Endpoint) -> None:
    try:
        loopback = ipaddress.ip_address(endpoint.host).is_loopback
    except ValueError:
        loopback = endpoint.host == "localhost"
    if not loopback:
        raise InputError(
            "the embedded Triton can only listen on this machine's loopback address",
            seen=endpoint.host,
            valid="127.0.0.1",
            hint="for another host, run NVIDIA's container there and set MILLRACE_TRITON to it",
        )


def _require_free_ports(endpoint: Endpoint) -> None:
    ports = {
        "MILLRACE_TRITON_HTTP_PORT": endpoint.http_port,
        "MILLRACE_TRITON_GRPC_PORT": endpoint.grpc_port,
        "MILLRACE_TRITON_METRICS_PORT": endpoint.metrics_port,
    }
    for setting, port in ports.items():
        family, kind, _, _, address = socket.getaddrinfo(
            endpoint.host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise WorkError(
                    f"Triton cannot listen on port {port} of {endpoint.host}",
                    seen=error.strerror,
                    valid="a free port",
                    hint=f"stop the process that listens there, or set {setting} to another port",
                ) from error


def _wait_until(
    is_ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise WorkError(
                f"Triton ended with status {process.returncode} while starting"
                if ended
                else f"Triton was not ready after {seconds:g} s",
                seen="\n".join(log.read_text(errors="replace").splitlines()[-8:]),
                hint=f"read the whole log: {log}",
            )
        time.sleep(POLL_SECONDS)


def _is_socket_ready(http_socket: Path) -> bool:
    """Whether Triton is ready behind its sockets; it opens the one of HTTP after that of gRPC."""
    return sockets.socket_answers(http_socket, "/v2/health/ready")


def _is_ready(client: "TritonClient") -> bool:
    """Whether the public ports answer; Triton opens HTTP after gRPC."""
    endpoint = client.endpoint
    # the port is tried first because gRPC waits a second after a refused connection
    return (
        _is_port_open(endpoint, endpoint.grpc_port)
        and client.is_ready()
        and _is_port_open(endpoint, endpoint.http_port)
    )


def _is_port_open(endpoint: Endpoint, port: int) -> bool:
    try:
        with socket.create_connection((endpoint.host, port), timeout=1):
            return True
    except OSError:
        return False


def _stop(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Terminate the server; kill the server and its stub processes if they do not end in time."""
    stubs: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        stubs = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _, left = psutil.wait_procs(stubs, timeout=2)
    for stub in left:
        with suppress(psutil.NoSuchProcess):
            stub.kill()
