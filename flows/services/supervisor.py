"""The supervisor behind `millrace up`: starts each service, and starts it again when it dies.

honcho's manager ends every process when one ends, which is right for development and wrong for a
server that must come back by itself; so the loop is ours, and `infra/Procfile` holds the same
commands for honcho. A process that is alive and answers no more is killed, and so comes back
too. What to do is decided by pure functions; `Supervisor` does it.

Each service leads a session of its own and writes to its log itself, so that it neither dies nor
blocks with the supervisor.
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

from millrace.flows import run_state
from millrace.flows.environment import apply
from millrace.flows.run_state import RunRecord, ServiceRecord
from millrace.flows.services import processes
from millrace.flows.services.health import ANSWER_SECONDS, LOOK_SECONDS, Looks, is_frozen
from millrace.flows.services.service_specs import Service, environment, healthy, local
from millrace.flows.settings import MARK, Settings, load
from millrace.models.common.errors import WorkError

POLL_SECONDS = 0.2
STEADY_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
STRAY_SECONDS = 10.0
AFTER_SECONDS = 60.0
"""A first start waits no longer than this for the services that it comes after."""
LOG_BYTES = 10 * 2**20

log = logging.getLogger("millrace.supervise")


def restart_delay(failures: int) -> float:
    """Return how many seconds to wait before the start after the n-th failure in a row."""
    return float(min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), LONGEST_DELAY_SECONDS))


def failures_in_a_row(before: int, ran_seconds: float) -> int:
    """Count a death: one after a steady run starts the count anew."""
    return 1 if ran_seconds >= STEADY_SECONDS else before + 1


@dataclass
class Child:
    """A service and its present process, or the time at which it is to be started."""

    service: Service
    record: ServiceRecord
    process: "subprocess.Popen[bytes] | None" = None
    failures: int = 0
    start_at: float = 0.0
    started: float = 0.0
    looks: Looks = Looks()


class Supervisor:
    """Keeps services alive until it is told to stop.

    Args:
        settings: whose home the record and the logs go to.
        services: what to run; started in this order, stopped in the other.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        services: tuple[Service, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.stopping = False
        self.started_at = time.time()
        self.patient_until = clock() + AFTER_SECONDS
        self.children = [
            Child(service, ServiceRecord(service.name, service.address, str(service.log)))
            for service in services
        ]

    def run(self) -> None:
        """Keep the services alive until `stop`, then stop them all."""
        self.publish()
        for child in self.children:
            threading.Thread(target=self.keep_looking, args=(child,), daemon=True).start()
        try:
            while not self.stopping:
                for child in self.children:
                    self.tend(child)
                time.sleep(POLL_SECONDS)
        finally:
            self.stop_all()
            run_state.forget(self.settings.run)

    def stop(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Ask `run` to end; may be called by a signal."""
        self.stopping = True

    def tend(self, child: Child) -> None:
        """Start the child if it is time, or note that it has died."""
        if child.process is None:
            if self.clock() >= child.start_at and not self.waits(child):
                self.start(child)
            return
        status = child.process.poll()
        if status is None:
            self.end_if_frozen(child, child.process.pid)
            return
        ran = time.time() - (child.record.started_at or 0.0)
        child.failures = failures_in_a_row(child.failures, ran)
        child.start_at = self.clock() + restart_delay(child.failures)
        if not child.service.keeps_children:
            _signal_group(child.process.pid, signal.SIGKILL)
        child.process = None
        child.record = replace(
            child.record, pid=None, restarts=child.record.restarts + 1, last_exit=status
        )
        self.publish()

    def end_if_frozen(self, child: Child, pid: int) -> None:
        """Kill a process that is alive and answers no more; its death is then noted like any."""
        service, now = child.service, self.clock()
        if not is_frozen(
            child.looks, pid, ran=now - child.started, now=now, patience=service.patience
        ):
            return
        log.warning(
            "%s (pid %d) is alive and has failed %d looks at its health: it is started anew",
            *(service.name, pid, child.looks.failed),
        )
        child.looks = Looks()
        os.kill(pid, signal.SIGKILL)

    def look(self, child: Child) -> None:
        """Look once at the health of the child's process, if there is one."""
        pid = child.record.pid
        if pid is not None:
            well = healthy(child.service, pid, ANSWER_SECONDS)
            before = (each for each in self.children if each.service.name in child.service.after)
            excused = not all(each.looks.is_well(each.record.pid) for each in before)
            child.looks = child.looks.after(pid, well=well, now=self.clock(), excused=excused)

    def keep_looking(self, child: Child) -> None:
        """Look every few seconds, in a thread, so that a slow answer holds nothing up."""
        while not self.stopping:
            time.sleep(LOOK_SECONDS)
            self.look(child)

    def waits(self, child: Child) -> bool:
        """Return whether a first start is still to wait for a service that is not well yet."""
        if child.record.started_at is not None or self.clock() >= self.patient_until:
            return False
        before = (each for each in self.children if each.service.name in child.service.after)
        return not all(healthy(each.service, each.record.pid) for each in before)

    def start(self, child: Child) -> None:
        """Start the child's process and write it into the record."""
        service = child.service
        service.clean_up()
        with suppress(FileNotFoundError):
            if service.log.stat().st_size > LOG_BYTES:
                service.log.replace(service.log.with_suffix(".log.1"))
        descriptor = os.open(service.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            child.process = subprocess.Popen(
                service.argv,
                env=environment(self.settings, service),
                cwd=self.settings.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child.started = self.clock()
        child.record = replace(child.record, pid=child.process.pid, started_at=time.time())
        self.publish()

    def stop_all(self) -> None:
        """Stop the services, the last one first: the scheduled runs still need the servers."""
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
        """End what outlived the process that started it, while the servers can still be told."""
        kept = {process.pid for child in self.children for process in _tree(child.process)}
        marked = processes.marked(MARK, str(self.settings.home))
        processes.end([stray for stray in marked if stray.pid not in kept], STRAY_SECONDS)

    def publish(self) -> None:
        """Write the record of what runs."""
        services = tuple(child.record for child in self.children)
        run_state.write(self.settings.run, RunRecord(os.getpid(), self.started_at, services))


def _tree(process: "subprocess.Popen[bytes] | None") -> list[psutil.Process]:
    root = processes.find(process.pid) if process else None
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
    settings.places().prepared()
    lock = run_state.hold_lock(settings.run)
    if lock is None:
        raise WorkError("another supervisor runs for this home", seen=settings.home)
    with lock:
        supervisor = Supervisor(settings, local(settings))
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGINT, supervisor.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        supervisor.publish()
        apply(settings)
        supervisor.run()


if __name__ == "__main__":
    main()
