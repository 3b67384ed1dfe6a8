"""`millrace up`, `down` and `status`: start, stop and look at what runs on this machine."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from millrace.flows import run_state
from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.deployment_specs import plan
from millrace.flows.deployments.schedule_state import Schedules
from millrace.flows.environment import child_environment
from millrace.flows.run_state import RunRecord
from millrace.flows.services import processes
from millrace.flows.services.logins import login_file
from millrace.flows.services.service_specs import Service, healthy, local
from millrace.flows.settings import MARK, Settings
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation

HEALTHY_SECONDS = 120.0
HANDED_SECONDS = 60.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.2
HOPELESS_RESTARTS = 2
TAIL_LINES = 15
NO_GUARD = (
    "MILLRACE_GUARD=off: Triton's HTTP is open as it is; one request of another process, or of a "
    "web page, can end the server"
)
TOLD_TO_END = (0, -signal.SIGTERM)

Say = Callable[[str], None]
LiveVersions = Callable[[Installation], Mapping[str, object]]


@dataclass(frozen=True)
class ServiceStatus:
    """One service, as seen now.

    Attributes:
        name: `mlflow`, `prefect`, `triton`, `guard`, `deployments`, `webhook` or `openai`.
        running: whether its process is there.
        healthy: whether it says that it is well.
        address: where to reach it; empty when it listens nowhere.
        pid: its process.
        uptime_seconds: since its last start.
        restarts: starts after the first.
        log: its log file.
        grpc: the `host:port` where it takes gRPC too; empty if it does not.
    """

    name: str
    running: bool
    healthy: bool
    address: str
    pid: int | None
    uptime_seconds: float | None
    restarts: int
    log: str
    grpc: str = ""


@dataclass(frozen=True)
class Status:
    """What runs for one home.

    Attributes:
        running: whether a supervisor is alive.
        home: the home folder.
        pid: the supervisor's process.
        uptime_seconds: since `millrace up`.
        services: empty when nothing runs.
        live_versions: what the hook that was given returned.
        orphans: processes that a supervisor which was killed has left.
        schedules: what is scheduled; None before Prefect was looked at.
        prefect_login: the file of the password that Prefect's pages ask for; empty where the
            server is not ours.
    """

    running: bool
    home: str
    pid: int | None = None
    uptime_seconds: float | None = None
    services: tuple[ServiceStatus, ...] = ()
    live_versions: Mapping[str, object] | None = None
    orphans: int = 0
    schedules: Schedules | None = None
    prefect_login: str = ""

    @property
    def healthy(self) -> bool:
        """Whether everything that should run is well."""
        return self.running and all(service.healthy for service in self.services)


@dataclass(frozen=True)
class Stopped:
    """What `down` did.

    Attributes:
        was_running: whether a supervisor was alive.
        ended: processes that had outlived their supervisor.
    """

    was_running: bool
    ended: tuple[str, ...] = ()


def _silent(line: str) -> None:
    """Say nothing."""


def up(settings: Settings, *, detach: bool = True, say: Say = _silent) -> Status:
    """Start everything that runs on this machine, and return when all of it is well.

    Args:
        settings: what to start, and where.
        detach: leave it running; else stay until it ends, Ctrl-C or SIGTERM, and stop it.
        say: takes progress lines.

    Raises:
        InputError: a pipeline file to schedule cannot be read.
        WorkError: a port is taken, a service did not become well, or, unless detached, the
            supervisor ended by itself; nothing is left running.
    """
    plan(settings.pipeline_files(), settings.deployments)
    settings.places().prepared()
    with _sigterm_as_ctrl_c():
        supervisor = _start_once(settings, say)
        if supervisor is not None and not detach:
            _stay(settings, supervisor, say)
    return status(settings)


def _start_once(settings: Settings, say: Say) -> "subprocess.Popen[bytes] | None":
    """Start the supervisor and its services, or return None if there is one already."""
    starting = run_state.hold_lock(settings.run, run_state.STARTING, 2 * HEALTHY_SECONDS)
    if starting is None:
        raise WorkError("another `millrace up` is at work on this home", seen=settings.home)
    with starting:
        if run_state.supervisor_alive(settings.run):
            say(f"already up for {settings.home}")
            _hand_over(settings, say)
            if not status(settings).healthy:
                say("not everything is healthy; `millrace status` looks again, logs are in logs/")
            return None
        return _start(settings, say)


def _start(settings: Settings, say: Say) -> "subprocess.Popen[bytes]":
    """Start the supervisor and wait until its services are well; else stop everything."""
    _sweep(settings, say)
    services = local(settings)
    _ports_must_be_free(services)
    schedule_state.ask(settings.run, settings.pipeline_patterns())
    if settings.triton is None and not settings.guard:
        say(NO_GUARD)
    supervisor = _start_supervisor(settings)
    try:
        _wait_until_well(settings, services, supervisor, say)
    except BaseException:
        down(settings)
        raise
    return supervisor


def _hand_over(settings: Settings, say: Say) -> None:
    """Have the running services schedule these files, if any were chosen, and wait for it.

    Raises:
        WorkError: Prefect does not have them in time.
    """
    if "pipelines" not in settings.model_fields_set:
        return
    patterns = settings.pipeline_patterns()
    if schedule_state.asked(settings.run, ()) != patterns:
        say("scheduling other pipeline files")
    schedule_state.ask(settings.run, patterns)
    deadline = time.monotonic() + HANDED_SECONDS
    while not _is_scheduled(settings, patterns):
        if time.monotonic() > deadline:
            log = settings.places().logs / "deployments.log"
            raise WorkError(
                f"Prefect did not take the schedules within {HANDED_SECONDS:.0f} s",
                seen=f"the end of {log}\n{tail(log)}",
                hint="`millrace status` tells when it has; what was scheduled before still is",
            )
        time.sleep(POLL_SECONDS)


def _is_scheduled(settings: Settings, patterns: tuple[str, ...]) -> bool:
    found = schedule_state.read(settings.run)
    return found is not None and found.settled and found.patterns == patterns


def _stay(settings: Settings, supervisor: "subprocess.Popen[bytes]", say: Say) -> None:
    """Stay until Ctrl-C or until the supervisor ends, and leave nothing running.

    Raises:
        WorkError: nobody told the supervisor to end.
    """
    try:
        say("running; Ctrl-C stops it")
        ended = supervisor.wait()
    except KeyboardInterrupt:
        return
    finally:
        down(settings, say=say)
    if ended not in TOLD_TO_END:
        log = settings.places().logs / "supervisor.log"
        raise WorkError(
            f"the supervisor ended with status {ended}; everything is stopped",
            hint=f"read {log}; status -9 is often the kernel's, out of memory",
        )


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def down(settings: Settings, *, say: Say = _silent) -> Stopped:
    """Stop everything that `up` started for this home; nothing to stop is no error.

    Raises:
        WorkError: a process could not be ended.
    """
    record = run_state.live(settings.run)
    if record is not None:
        say(f"stopping {', '.join(service.name for service in record.services)}")
        _stop_supervisor(settings, record)
    ended = _sweep(settings, say)
    return Stopped(was_running=record is not None, ended=ended)


def status(settings: Settings, *, live_versions: LiveVersions | None = None) -> Status:
    """Look at what runs for this home.

    Args:
        settings: whose home to look at.
        live_versions: asked for what Triton serves, if Triton is well.
    """
    record = run_state.live(settings.run)
    if record is None:
        orphans = len(processes.marked(MARK, str(settings.home)))
        live = live_versions(settings.places()) if live_versions and orphans else None
        return Status(False, str(settings.home), live_versions=live, orphans=orphans)
    known = {service.name: service for service in local(settings)}
    services = tuple(_service_status(each, known.get(each.name)) for each in record.services)
    serving = any(service.name == "triton" and service.healthy for service in services)
    serving = serving or settings.triton is not None
    return Status(
        running=True,
        home=str(settings.home),
        pid=record.pid,
        uptime_seconds=time.time() - record.started_at,
        services=services,
        live_versions=live_versions(settings.places()) if live_versions and serving else None,
        schedules=schedule_state.read(settings.run),
        prefect_login="" if settings.prefect_api_url else str(login_file(settings.run)),
    )


def _service_status(record: run_state.ServiceRecord, service: Service | None) -> ServiceStatus:
    running = record.pid is not None
    return ServiceStatus(
        name=record.name,
        running=running,
        healthy=running and service is not None and healthy(service, record.pid),
        address=record.address,
        pid=record.pid,
        uptime_seconds=time.time() - record.started_at if running and record.started_at else None,
        restarts=record.restarts,
        log=record.log,
        grpc=service.grpc if service is not None else "",
    )


def _ports_must_be_free(services: tuple[Service, ...]) -> None:
    for service in services:
        for port in service.ports:
            if not processes.port_is_free(port.number):
                raise WorkError(
                    f"{service.name} cannot listen on port {port.number}: it is taken",
                    seen=processes.listener(port.number) or "a process of another user",
                    valid="a free port",
                    hint=f"stop that process, or set {port.setting} to another port",
                )


def _start_supervisor(settings: Settings) -> "subprocess.Popen[bytes]":
    log = settings.places().logs / "supervisor.log"
    with log.open("ab") as output:
        log.chmod(0o600)
        return subprocess.Popen(
            (sys.executable, "-P", "-m", "millrace.flows.services.supervisor"),
            env=child_environment(settings) | {MARK: str(settings.home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_well(
    settings: Settings,
    services: tuple[Service, ...],
    supervisor: "subprocess.Popen[bytes]",
    say: Say,
) -> None:
    began = time.monotonic()
    waiting = {service.name: service for service in services}
    say(f"starting {', '.join(waiting)}; logs in {settings.places().logs}")
    while waiting:
        if supervisor.poll() is not None:
            raise _failed("the supervisor", settings.places().logs / "supervisor.log")
        record = run_state.live(settings.run)
        for service in list(waiting.values()):
            seen = record.service(service.name) if record else None
            if seen and seen.restarts >= HOPELESS_RESTARTS:
                raise _failed(service.name, service.log, seen.last_exit)
            if seen and seen.pid and healthy(service, seen.pid):
                where = f"{service.address}, gRPC {service.grpc}".removesuffix(", gRPC ")
                say(f"{service.name} is up {where}".rstrip())
                del waiting[service.name]
        if waiting and time.monotonic() - began > HEALTHY_SECONDS:
            late = next(iter(waiting.values()))
            raise _failed(late.name, late.log)
        time.sleep(POLL_SECONDS)


def _failed(name: str, log: Path, status: int | None = None) -> WorkError:
    what = "did not become well in time" if status is None else f"ended with status {status}"
    return WorkError(
        f"{name} {what}; everything is stopped again",
        seen=f"the end of {log}\n{tail(log)}",
        hint=f"read {log}",
    )


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def _stop_supervisor(settings: Settings, record: RunRecord) -> None:
    supervisor = processes.find(record.pid)
    if supervisor is not None:
        supervisor.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while run_state.supervisor_alive(settings.run) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if supervisor is not None:
        processes.end([supervisor], 1.0)


def _sweep(settings: Settings, say: Say) -> tuple[str, ...]:
    """End what carries this home's mark: what a killed supervisor or a crash left running."""
    left = processes.marked(MARK, str(settings.home))
    described = tuple(filter(None, (processes.describe(process.pid) for process in left)))
    for line in described:
        say(f"ending {line}")
    survivors = processes.end(left, 10.0)
    if survivors:
        raise WorkError(
            "some processes could not be ended",
            seen=", ".join(str(process.pid) for process in survivors),
            hint="end them by hand",
        )
    run_state.forget(settings.run)
    return described
