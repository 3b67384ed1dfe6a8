"""Commands in processes that need not import everything anew.

A command spends six to eight CPU seconds on importing torch, MLflow, Ray, Prefect and the like.
Here one process imports them, and forks for each command of its test process. Nearly all of
Millrace is imported by the command. Ray and MLflow read some variables when they are imported: the
process has the values that Millrace sets. Prefect reads its settings again in the command. Commands
that are killed or interrupted are started as a user starts them, by `Home.start`.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from millrace.flows.settings import Settings
from millrace.flows.tool_variables import preferences
from millrace.models.ray.warm import WarmRay

LIBRARIES = (
    *("torch", "pandas", "scipy.stats", "sklearn.metrics", "sklearn.datasets", "pyarrow.dataset"),
    *("pyarrow.compute", "pyarrow.parquet", "onnx", "pydantic", "pydantic_settings", "fastapi"),
    *("httpx", "websockets", "requests", "jsonschema", "rich", "typer", "sqlalchemy", "alembic"),
    *("grpc", "fsspec", "matplotlib.pyplot", "opentelemetry.sdk.trace", "prometheus_client"),
    *("mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "prefect.flows", "markdown_it"),
    *("mlflow.store.model_registry.sqlalchemy_store", "ray.data", "ray.job_submission"),
    "ray.train",
)
"""Without deltalake and onnxruntime, whose threads a fork would lose, and without prefect.main,
which gives its handlers to Millrace's logger when it is imported."""
VARIABLES = preferences() | {
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "PREFECT_HOME": str(Path(sys.prefix) / ".prefect"),  # where no other user can write
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What a command with an embedded Ray sets; the first one is for a process that forks."""
SHARED_RAY = "TEST_SHARED_RAY"
"""In the environment of a home: the folder `run` of the Ray that its commands share."""
SETTINGS = ("MILLRACE_", "MLFLOW_", "PREFECT_", "RAY_")
Request = tuple[list[str], dict[str, str], str, str]
"""Arguments, environment, folder, and the code that runs first."""
MESSAGE_BYTES = 1 << 17
_lock = threading.Lock()
_connection: socket.socket | None = None


def can_run(environment: Mapping[str, str]) -> bool:
    """Whether a command can be forked: Python and Ray read their own variables when they start."""
    own = [name for name in environment if name.startswith("PYTHON")]
    is_as_here = all(environment[name] == os.environ.get(name) for name in own)
    has_ray_settings = any(name.startswith("RAY_") for name in environment)
    return sys.platform == "linux" and is_as_here and not has_ray_settings


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the settings of Millrace, MLflow, Prefect and Ray."""
    return {name: value for name, value in environment.items() if not name.startswith(SETTINGS)}


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,
    first: str = "",
) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr.

    Args:
        arguments: of the command.
        environment: of the command.
        folder: in which it runs.
        timeout: in seconds.
        first: Python code that its process runs first.

    Raises:
        subprocess.TimeoutExpired: it took longer; it is killed.
    """
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    status, status_end = os.pipe()
    request = json.dumps([list(arguments), dict(environment), str(folder), first]).encode()
    ends = [out_end, err_end, status_end]
    try:
        socket.send_fds(_connect(), [request], ends)
    finally:
        for end in ends:
            os.close(end)
    texts: dict[int, bytes] = {}

    def read(descriptor: int) -> None:
        with open(descriptor, "rb") as opened:
            texts[descriptor] = opened.read()

    readers = [threading.Thread(target=read, args=(each,), daemon=True) for each in (out, err)]
    for reader in readers:
        reader.start()
    with open(status) as lines:
        pid = int(lines.readline())
        is_late = threading.Event()
        killer = threading.Timer(timeout, _kill, [pid, is_late])
        killer.start()
        code = int(lines.readline())
        killer.cancel()
    if is_late.is_set():
        raise subprocess.TimeoutExpired(list(arguments), timeout)
    for reader in readers:
        reader.join()
    return code, *(texts[each].decode(errors="replace") for each in (out, err))


def _kill(pid: int, is_late: threading.Event) -> None:
    is_late.set()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _connect() -> socket.socket:
    """Return the connection to the server of this process, which ends with it."""
    global _connection
    with _lock:
        if _connection is None:
            _connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-P", __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=without_settings(os.environ) | VARIABLES,
                )
        return _connection


def _serve(connection: socket.socket) -> None:
    """Fork for each request, until the other end is closed."""
    for library in LIBRARIES:
        import_module(library)
    import sqlalchemy.orm

    sqlalchemy.orm.configure_mappers()  # 0.2 s in each command that opens a store
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the test process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
        if not request:
            return
        if os.fork() == 0:
            connection.close()
            _watch(json.loads(request), *descriptors)
        for each in descriptors:
            os.close(each)


def _watch(request: Request, out: int, err: int, status: int) -> None:
    """Run a command in a child, and tell its process and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(status)
        _become(request, out, err)
    os.write(status, f"{child}\n".encode())
    os.close(out)
    os.close(err)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, f"{code}\n".encode())
    os._exit(0)


def _become(request: Request, out: int, err: int) -> None:
    """Become the command: its environment, its folder, its arguments."""
    arguments, environment, folder, first = request
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for given, taken in ((out, 1), (err, 2)):
        os.dup2(given, taken)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    try:
        import numpy as np

        from millrace.flows import tool_variables
        from millrace.flows.cli.main import main

        np.random.seed()
        tool_variables.apply = _and_prefect(tool_variables.apply)
        if SHARED_RAY in environment:
            _share_ray(Path(environment[SHARED_RAY]))
        exec(first, {})  # noqa: S102  (a test's own code)
        main()  # ends the process
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(70)


def _share_ray(run: Path) -> None:
    """Have this command use the Ray of `shared_ray`, with its token, if its home runs no `up`."""
    from millrace.flows import tool_variables

    of_up, apply = Settings.warm_ray, tool_variables.apply

    def warm_ray(settings: Settings) -> WarmRay | None:
        return of_up(settings) or (WarmRay(run, lambda: False) if settings.keeps_ray else None)

    def applied(settings: Settings) -> Settings:
        chosen = apply(settings)
        if of_up(settings) is None:
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(run / "ray.token")
        return chosen

    Settings.warm_ray = warm_ray  # type: ignore[method-assign]
    tool_variables.apply = applied


def _and_prefect(apply: Callable[[Settings], Settings]) -> Callable[[Settings], Settings]:
    """Return `tool_variables.apply` followed by what an import of Prefect does after it."""

    def applied(settings: Settings) -> Settings:
        from prefect.context import refresh_global_settings_context

        chosen = apply(settings)
        refresh_global_settings_context()
        return chosen

    return applied


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
