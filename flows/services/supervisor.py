"""The supervisor behind `millrace up`: starts each service, and restarts it when it dies.

honcho, a program that runs the commands of a Procfile, ends all of them when one ends. This suits
development, but not a server that must come back by itself. So the supervisor has its own loop;
`infra/Procfile` has the same commands for honcho. A process that is alive but frozen is killed and
restarted too.

Each service has its own session and writes to its log itself, so that it neither dies nor blocks
with the supervisor.
"""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

import psutil

from millrace.flows import run_state, tool_variables
from millrace.flows.run_state import RunRecord, ServiceRecord
from millrace.flows.services import processes
from millrace.flows.services.health import (
    ANSWER_SECONDS,
    CHECK_SECONDS,
    HealthHistory,
    is_service_healthy,
)
from millrace.flows.services.replica_owner import ReplicaOwner
from millrace.flows.services.service_specs import Service, local_services, service_environment
from millrace.flows.settings import MARK, Settings, load
from millrace.models.common.errors import WorkError
from millrace.models.common.log_files import hold_log
from millrace.serving.replicas.files import forget_fleet, read_bounds

POLL_SECONDS = 0.2
STEADY_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
STRAY_SECONDS = 10.0
AFTER_SECONDS = 60.0
"""Maximum time that a first start waits for the services in `Service.after`."""
LOG_BYTES = 10 * 2**20

log = logging.getLogger("millrace.supervise")


def restart_delay(failures: int) -> float:
    """Return the seconds to wait before a start, by the number of failures in a row."""
    return float(min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), LONGEST_DELAY_SECONDS))


def count_failures(before: int, uptime: float) -> int:
    """Return the number of failures in a row after a process has died once more.

    After an uptime of `STEADY_SECONDS` the count begins again at 1.
    """
    return 1 if uptime >= STEADY_SECONDS else before + 1


@dataclass
class Child:
    """A service with its present process, or with the time of its next start."""

    service: Service
    record: ServiceRecord
    process: "subprocess.Popen[bytes] | None" = None
    failures: int = 0
    start_at: float = 0.0
    started: float = 0.0
    history: HealthHistory = HealthHistory()
    kill_at: float | None = None
    """When its process is killed, if it was told to end and does not."""


class Supervisor:
    """Keeps services alive until it is stopped.

    Args:
        settings: the settings of the home, which has the record and the logs.
        services: the services; started in this order, stopped in the reverse order.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        services: tuple[Service, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.is_stopping = False
        self.started_at = time.time()
        self.wait_until = clock() + AFTER_SECONDS
        self.children = [
            Child(service, ServiceRecord(service.name, service.address, str(service.log)))
            for service in services
        ]
        self.replicas = (
            ReplicaOwner(settings, read_bounds(settings.run), clock)
            if any(service.replica is not None for service in services)
            else None
        )

    def run(self) -> None:
        """Keep the services alive until `stop`, then stop them all."""
        self.write_record()
        for child in self.children:
            if child.service.request is not None:  # an earlier supervisor may have been killed
                child.service.clean_up()
                child.service.request.unlink(missing_ok=True)
        for child in self.children:
            threading.Thread(target=self.check_repeatedly, args=(child,), daemon=True).start()
        try:
            while not self.is_stopping:
                self.update_replicas()
                for child in self.children:
                    self.update(child)
                time.sleep(POLL_SECONDS)
        finally:
            self.stop_all()
            run_state.delete(self.settings.run)
            forget_fleet(self.settings.run)

    def stop(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Ask `run` to end; may be called as a signal handler."""
        self.is_stopping = True

    def update_replicas(self) -> None:
        """Let the replicas' owner look, and tell those to end that it does not need."""
        if self.replicas is None:
            return
        own = {child.service.replica: child for child in self.children if child.service.replica}
        pids = {number: child.record.pid for number, child in own.items() if number is not None}
        for number in self.replicas.step(pids):
            child = own[number]
            if child.process is not None:
                child.kill_at = self.clock() + child.service.grace
                child.process.terminate()

    def update(self, child: Child) -> None:
        """Start the child's process if a start is due; else record its death, or kill it if frozen.

        A process is frozen if it is alive, but no longer answers.
        """
        if child.process is None:
            if self.is_due(child):
                self.start(child)
            return
        status = child.process.poll()
        if status is None:
            self.kill_if_needed(child, child.process.pid)
            return
        is_asked = child.kill_at is not None
        if not is_asked:
            uptime = time.time() - (child.record.started_at or 0.0)
            child.failures = count_failures(child.failures, uptime)
            child.start_at = self.clock() + restart_delay(child.failures)
        if not child.service.keeps_children:
            _signal_group(child.process.pid, signal.SIGKILL)
        child.process = child.kill_at = None
        is_failure = not is_asked and (child.service.request is None or status != 0)
        child.record = replace(
            child.record,
            pid=None,
            restarts=child.record.restarts + is_failure,
            last_exit=status,
        )
        if child.service.request is not None or is_asked:
            child.service.clean_up()
        self.write_record()

    def is_due(self, child: Child) -> bool:
        """Return whether a child without a process must be started now."""
        request = child.service.request
        if request is not None:
            return request.exists()
        number = child.service.replica
        if self.replicas and number is not None and not self.replicas.may_start(number):
            return False
        return self.clock() >= child.start_at and not self.must_wait(child)

    def kill_if_needed(self, child: Child, pid: int) -> None:
        """Kill a process that does not end although it was told to, or that is frozen."""
        if child.kill_at is None:
            self.kill_if_frozen(child, pid)
        elif self.clock() >= child.kill_at:
            _signal_group(pid, signal.SIGKILL)

    def kill_if_frozen(self, child: Child, pid: int) -> None:
        """Kill a process that is alive but no longer answers; `update` then restarts it."""
        service, history, now = child.service, child.history, self.clock()
        uptime = now - child.started
        if not history.is_frozen(pid, uptime=uptime, now=now, patience=service.patience):
            return
        log.warning(
            "the service %s (pid %d) is alive but failed %d health checks in a row; restarting it",
            *(service.name, pid, history.failures),
        )
        child.history = HealthHistory()
        os.kill(pid, signal.SIGKILL)

    def check_health(self, child: Child) -> None:
        """Check the health of the child's process once, if there is one."""
        pid = child.record.pid
        if pid is not None:
            is_healthy = is_service_healthy(child.service, pid, ANSWER_SECONDS)
            is_excused = not all(
                each.history.is_healthy(each.record.pid) for each in self.dependencies(child)
            )
            child.history = child.history.add_check(
                pid, is_healthy=is_healthy, now=self.clock(), is_excused=is_excused
            )

    def check_repeatedly(self, child: Child) -> None:
        """Check the child's health every few seconds until `stop`.

        Runs in its own thread, so that a slow answer delays nothing else.
        """
        while not self.is_stopping:
            time.sleep(CHECK_SECONDS)
            self.check_health(child)

    def dependencies(self, child: Child) -> list[Child]:
        """Return the children that a child's first start waits for."""
        return [each for each in self.children if each.service.name in child.service.after]

    def must_wait(self, child: Child) -> bool:
        """Return whether a first start must still wait for a service that is not healthy yet."""
        if child.record.started_at is not None or self.clock() >= self.wait_until:
            return False
        return not all(
            is_service_healthy(each.service, each.record.pid) for each in self.dependencies(child)
        )

    def start(self, child: Child) -> None:
        """Start the child's process and write it into the record."""
        service = child.service
        service.clean_up()
        with suppress(FileNotFoundError):
            if service.log.stat().st_size > LOG_BYTES:
                service.log.replace(service.log.with_suffix(".log.1"))
        descriptor = os.open(service.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as output:
            hold_log(descriptor)
            child.process = subprocess.Popen(
                service.argv,
                env=service_environment(self.settings, service),
                cwd=self.settings.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child.started = self.clock()
        child.record = replace(child.record, pid=child.process.pid, started_at=time.time())
        self.write_record()
        if service.request is not None:  # only now: a request without a process is answered
            service.request.unlink(missing_ok=True)

    def stop_all(self) -> None:
        """Stop the services, the last one first, because scheduled runs still need the servers."""
        for child in reversed(self.children):
            if child.process is None:
                continue
            child.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(child.service.grace)
            _signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.service.clean_up()
            child.process = None
            if child.service.keeps_children:
                self.end_strays()

    def end_strays(self) -> None:
        """End processes that outlived their parents, while MLflow and Prefect still run."""
        known = {process.pid for child in self.children for process in _process_tree(child.process)}
        marked = processes.find_marked(MARK, str(self.settings.home))
        strays = [process for process in marked if process.pid not in known]
        processes.end_processes(strays, STRAY_SECONDS)

    def write_record(self) -> None:
        """Write the record of the services."""
        services = tuple(child.record for child in self.children)
        run_state.write(self.settings.run, RunRecord(os.getpid(), self.started_at, services))


def _process_tree(process: "subprocess.Popen[bytes] | None") -> list[psutil.Process]:
    root = processes.find_process(process.pid) if process else None
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)] if root else []
    return []


def _signal_group(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def main() -> None:
    """Supervise the services of the settings in the environment until SIGTERM.

    Raises:
        WorkError: another supervisor runs for this home.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    settings = load()
    settings.installation().prepared()
    lock = run_state.take_lock(settings.run)
    if lock is None:
        raise WorkError("another supervisor runs for this Millrace home folder", seen=settings.home)
    with lock:
        supervisor = Supervisor(settings, local_services(settings))
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGINT, supervisor.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        supervisor.write_record()
        tool_variables.apply(settings)
        supervisor.run()


if __name__ == "__main__":
    main()
