"""`millrace up`, `down` and `status`: start, stop and inspect the services of this machine."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.flows import run_state
from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.deployment_specs import plan_deployments
from millrace.flows.deployments.schedule_state import Schedules
from millrace.flows.services import processes
from millrace.flows.services.health import is_service_healthy
from millrace.flows.services.logins import prefect_login_file
from millrace.flows.services.replica_bounds import (
    NEEDS_GUARD,
    ReplicasStatus,
    allowed_replicas,
    clean_up_replicas,
    replicas_status,
)
from millrace.flows.services.service_specs import Service, local_services
from millrace.flows.settings import MARK, Settings
from millrace.flows.tool_variables import child_environment
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.common.log_files import hold_log
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.replicas.files import read_bounds, write_bounds

HEALTHY_SECONDS = 120.0
SCHEDULED_SECONDS = 60.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.2
FATAL_RESTARTS = 2
TAIL_LINES = 15
NO_GUARD = (
    "MILLRACE_GUARD=off: no proxy checks requests to Triton's HTTP ports, so one request from "
    "another process or from a web page can end Triton"
)
NOT_USED = "starts with the first use"
NOT_NEEDED = "starts with more load"
REQUESTED_EXITS = (0, -signal.SIGTERM)

Report = Callable[[str], None]
LiveVersions = Callable[[Installation], Mapping[str, object]]
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class ServiceStatus:
    """The present state of one service.

    Attributes:
        name: `mlflow`, `prefect`, `triton`, `guard`, `ray`, `deployments`, `webhook` or `openai`;
            `triton-2` and so on for further replicas.
        running: whether its process exists.
        healthy: whether its health check succeeds, or whether it waits for its first use.
        address: the address for users and clients; empty if it listens nowhere.
        pid: its process id.
        uptime_seconds: the seconds since its last start.
        restarts: the number of starts after the first.
        log: the path of its log file.
        grpc: the `host:port` where it serves gRPC too; empty if it does not.
        use: whether it is used, of a service that starts with its first use; else empty.
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
    use: str = ""


@dataclass(frozen=True)
class Status:
    """The present state of the services of one home.

    Attributes:
        running: whether a supervisor is alive.
        home: the home folder.
        pid: the supervisor's process id.
        uptime_seconds: the seconds since `millrace up`.
        services: the services; empty when nothing runs.
        live_versions: what the function `live_versions` returned; None if it was not called.
        orphans: the number of running processes that a killed supervisor left.
        schedules: the schedules; None before the first check of Prefect.
        prefect_login: the file with the password for Prefect's UI; empty if the user chose the
            Prefect server.
        replicas: the replicas of Triton; None where one runs alone.
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
    replicas: ReplicasStatus | None = None

    @property
    def healthy(self) -> bool:
        """Whether the supervisor runs and every service is healthy."""
        return self.running and all(service.healthy for service in self.services)


@dataclass(frozen=True)
class DownResult:
    """What `down` did.

    Attributes:
        was_running: whether a supervisor was alive.
        ended: descriptions of the ended processes that had outlived their supervisor.
    """

    was_running: bool
    ended: tuple[str, ...] = ()


def up(settings: Settings, *, detach: bool = True, report: Report = lambda line: None) -> Status:
    """Start every service of this machine, and return when all of them are healthy.

    Args:
        settings: what to start, and where.
        detach: whether to return and leave the services running. If not, stay until the supervisor
            ends, or until Ctrl-C or SIGTERM, and then stop the services.
        report: a function that receives progress lines.

    Raises:
        InputError: a pipeline file to schedule cannot be read.
        WorkError: a port is taken, or a service did not become healthy. Without `detach` also: the
            supervisor ended by itself. Nothing is left running.
    """
    plan_deployments(settings.pipeline_files(), settings.deployments)
    settings.installation().prepared()
    with _sigterm_as_interrupt():
        supervisor = _start_if_down(settings, report)
        if supervisor is not None and not detach:
            _stay_until_end(settings, supervisor, report)
    return status(settings)


def _start_if_down(settings: Settings, report: Report) -> Process | None:
    """Start the supervisor and its services; return None if a supervisor runs already."""
    lock = run_state.take_lock(settings.run, run_state.STARTING, 2 * HEALTHY_SECONDS)
    if lock is None:
        raise WorkError(
            "another `millrace up` is starting the services of this Millrace home folder",
            seen=settings.home,
            hint="wait until it has ended, then try again",
        )
    with lock:
        if run_state.is_supervisor_alive(settings.run):
            report(f"already up for {settings.home}")
            _update_schedules(settings, report)
            if allowed_replicas(settings) != read_bounds(settings.run):
                report("serving.replicas has changed: it counts after `down` and `up`")
            if not status(settings).healthy:
                where = f"`millrace status` and the logs in {settings.installation().logs}"
                report(f"some services are not healthy; see {where}")
            return None
        return _start(settings, report)


def _start(settings: Settings, report: Report) -> Process:
    """Start the supervisor and wait until its services are healthy; on failure stop everything."""
    _end_leftovers(settings, report)
    _allow_replicas(settings, report)
    services = local_services(settings)
    _require_free_ports(services)
    schedule_state.write_patterns(settings.run, settings.pipeline_patterns())
    if settings.triton is None and not settings.guard:
        report(NO_GUARD)
    supervisor = _start_supervisor(settings)
    try:
        _wait_until_healthy(settings, services, supervisor, report)
    except BaseException:
        down(settings)
        raise
    return supervisor


def _allow_replicas(settings: Settings, report: Report) -> None:
    """Write down how many Tritons the services may have."""
    bounds = allowed_replicas(settings)
    if bounds.max > 1 and not settings.guard:
        report(NEEDS_GUARD)
        bounds = ReplicasSpec()
    write_bounds(settings.run, bounds)


def _update_schedules(settings: Settings, report: Report) -> None:
    """Have the running services schedule the chosen pipeline files, and wait until they do.

    Does nothing if the user has not chosen pipeline files.

    Raises:
        WorkError: the schedules were not in Prefect in time.
    """
    if "pipelines" not in settings.model_fields_set:
        return
    patterns = settings.pipeline_patterns()
    if schedule_state.read_patterns(settings.run, ()) != patterns:
        report("the running services now schedule the pipeline files of MILLRACE_PIPELINES")
    schedule_state.write_patterns(settings.run, patterns)
    deadline = time.monotonic() + SCHEDULED_SECONDS
    while not _is_scheduled(settings, patterns):
        if time.monotonic() > deadline:
            log = settings.installation().logs / "deployments.log"
            raise WorkError(
                f"the schedules were not in Prefect within {SCHEDULED_SECONDS:.0f} s",
                seen=f"the end of {log}\n{_read_tail(log)}",
                hint="the earlier schedules still apply; `millrace status` shows them",
            )
        time.sleep(POLL_SECONDS)


def _is_scheduled(settings: Settings, patterns: tuple[str, ...]) -> bool:
    schedules = schedule_state.read(settings.run)
    return schedules is not None and schedules.settled and schedules.patterns == patterns


def _stay_until_end(settings: Settings, supervisor: Process, report: Report) -> None:
    """Stay until Ctrl-C or until the supervisor ends, and leave nothing running.

    Raises:
        WorkError: the supervisor ended without being stopped.
    """
    try:
        report("running; Ctrl-C stops the services")
        exit_status = supervisor.wait()
    except KeyboardInterrupt:
        return
    finally:
        down(settings, report=report)
    if exit_status not in REQUESTED_EXITS:
        log = settings.installation().logs / "supervisor.log"
        raise WorkError(
            f"the supervisor of the services ended with status {exit_status}; all services are "
            "stopped",
            hint=f"read {log}; status -9 often means that the kernel killed the process because "
            "memory ran out",
        )


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, by KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def down(settings: Settings, *, report: Report = lambda line: None) -> DownResult:
    """Stop everything that `up` started for this home, if anything runs.

    Raises:
        WorkError: a process could not be ended.
    """
    record = run_state.read_live(settings.run)
    if record is not None:
        report(f"stopping {', '.join(service.name for service in record.services)}")
        supervisor = processes.find_process(record.pid)
        if supervisor is not None:
            processes.end_processes([supervisor], STOP_SECONDS)
    ended = _end_leftovers(settings, report)
    return DownResult(was_running=record is not None, ended=ended)


def status(settings: Settings, *, live_versions: LiveVersions | None = None) -> Status:
    """Return the state of this home's services.

    Args:
        settings: the home's settings.
        live_versions: a function that returns what Triton serves; called if Triton is healthy.
    """
    record = run_state.read_live(settings.run)
    if record is None:
        orphans = len(processes.find_marked(MARK, str(settings.home)))
        live = live_versions(settings.installation()) if live_versions and orphans else None
        return Status(False, str(settings.home), live_versions=live, orphans=orphans)
    known = {service.name: service for service in local_services(settings)}
    services = tuple(_service_status(each, known.get(each.name)) for each in record.services)
    is_serving = settings.triton is not None or any(
        service.name == "triton" and service.healthy for service in services
    )
    return Status(
        running=True,
        home=str(settings.home),
        pid=record.pid,
        uptime_seconds=time.time() - record.started_at,
        services=services,
        live_versions=live_versions(settings.installation())
        if live_versions and is_serving
        else None,
        schedules=schedule_state.read(settings.run),
        prefect_login="" if settings.prefect_api_url else str(prefect_login_file(settings.run)),
        replicas=replicas_status(settings),
    )


def _service_status(record: run_state.ServiceRecord, service: Service | None) -> ServiceStatus:
    is_running, started_at = record.pid is not None, record.started_at
    is_on_demand = service is not None and _is_on_demand(service)
    is_healthy = is_running and service is not None and is_service_healthy(service, record.pid)
    return ServiceStatus(
        name=record.name,
        running=is_running,
        healthy=is_healthy or (is_on_demand and not is_running),
        address=record.address,
        pid=record.pid,
        uptime_seconds=time.time() - started_at if is_running and started_at else None,
        restarts=record.restarts,
        log=record.log,
        grpc=service.grpc if service is not None else "",
        use=_describe_use(service, is_running=is_running) if service is not None else "",
    )


def _is_on_demand(service: Service) -> bool:
    return service.request is not None or service.is_optional


def _describe_use(service: Service, *, is_running: bool) -> str:
    if is_running:
        return service.describe_use()
    if service.is_optional:
        return NOT_NEEDED
    return NOT_USED if service.request is not None else ""


def _require_free_ports(services: tuple[Service, ...]) -> None:
    for service in services:
        for setting, port in service.ports.items():
            if not processes.is_port_free(port):
                raise WorkError(
                    f"the service {service.name} cannot listen on port {port}: the port is taken",
                    seen=processes.describe_listener(port) or "a process of another user",
                    valid="a free port",
                    hint=f"stop that process, or set {setting} to another port",
                )


def _start_supervisor(settings: Settings) -> Process:
    log = settings.installation().logs / "supervisor.log"
    with log.open("ab") as output:
        log.chmod(0o600)
        hold_log(output.fileno())
        return subprocess.Popen(
            (sys.executable, "-P", "-m", "millrace.flows.services.supervisor"),
            env=child_environment(settings) | {MARK: str(settings.home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_healthy(
    settings: Settings, services: tuple[Service, ...], supervisor: Process, report: Report
) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS
    waiting = {each.name: each for each in services if not _is_on_demand(each)}
    report(f"starting {', '.join(waiting)}; logs in {settings.installation().logs}")
    while waiting:
        if supervisor.poll() is not None:
            raise _start_error("the supervisor", settings.installation().logs / "supervisor.log")
        run_record = run_state.read_live(settings.run)
        for service in list(waiting.values()):
            record = run_record.service(service.name) if run_record else None
            if record and record.restarts >= FATAL_RESTARTS:
                raise _start_error(service.name, service.log, record.last_exit)
            if record and record.pid and is_service_healthy(service, record.pid):
                where = f"{service.address}, gRPC {service.grpc}".removesuffix(", gRPC ")
                report(f"{service.name} is up {where}".rstrip())
                del waiting[service.name]
        if waiting and time.monotonic() > deadline:
            late = next(iter(waiting.values()))
            raise _start_error(late.name, late.log)
        time.sleep(POLL_SECONDS)


def _start_error(name: str, log: Path, status: int | None = None) -> WorkError:
    what = "did not become healthy in time" if status is None else f"ended with status {status}"
    return WorkError(
        f"{name} {what}; everything is stopped again",
        seen=f"the end of {log}\n{_read_tail(log)}",
        hint=f"read {log}",
    )


def _read_tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except OSError:
        return "(no log)"


def _end_leftovers(settings: Settings, report: Report) -> tuple[str, ...]:
    """End the processes of this home's services that a crash or a killed supervisor left."""
    left = processes.find_marked(MARK, str(settings.home))
    descriptions = (processes.describe_process(process.pid) for process in left)
    described = tuple(filter(None, descriptions))
    for line in described:
        report(f"ending {line}")
    survivors = processes.end_processes(left, 10.0)
    if survivors:
        raise WorkError(
            f"some processes of the services of {settings.home} could not be ended",
            seen=", ".join(f"pid {process.pid}" for process in survivors),
            hint="end them with `kill -9 PID`",
        )
    run_state.delete(settings.run)
    clean_up_replicas(settings)
    return described
