"""Events of training, reported live to the driver.

Ray Train calls `UserCallback`s in its controller, another process than the one that the user
watches and that holds the connection to MLflow. An actor in between keeps the events until the
driver takes them; so workers need neither MLflow nor its credentials.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import ray
import ray.train

_POLL_SECONDS, _TOLD_SECONDS = 0.2, 10.0


@dataclass(frozen=True)
class Reported:
    """Every worker reported; `metrics` are the same on all ranks."""

    metrics: dict[str, Any]


@dataclass(frozen=True)
class WorkersFailed:
    """Workers died or raised; `causes` by rank. Ray Train restarts the group if it may."""

    causes: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resumed:
    """After a failure training resumed; so many epochs or steps were done, 0 is from the start."""

    done: int


TrainEvent = Reported | WorkersFailed | Resumed


class EventLog:
    """Actor: events wait here between Ray Train's controller and the driver."""

    def __init__(self) -> None:
        self.waiting: list[TrainEvent] = []

    def add(self, event: TrainEvent) -> None:
        """Keep an event."""
        self.waiting.append(event)

    def take(self) -> list[TrainEvent]:
        """Return the events since the last call."""
        taken, self.waiting = self.waiting, []
        return taken


class TellDriver(ray.train.UserCallback):
    """Sends every report and failure to the event log.

    Until the log has it, nothing goes on: once training is over nobody looks there any more, and
    the last report would be lost.
    """

    def __init__(self, log: Any) -> None:
        self.log = log

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        """Tell what the workers reported."""
        self._tell(Reported(dict(metrics[0])))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Report which workers failed, and why."""
        causes = {
            rank: f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            for rank, error in worker_exceptions.items()
        }
        self._tell(WorkersFailed(causes))

    def _tell(self, event: TrainEvent) -> None:
        with suppress(ray.exceptions.RayError, TimeoutError):  # the driver hears of it by itself
            self.log.add.remote(event).future().result(_TOLD_SECONDS)


@contextmanager
def events_of_workers(on_event: Callable[[TrainEvent], None]) -> Iterator[TellDriver]:
    """Give a callback for Ray Train whose events reach `on_event` in a thread of the driver."""
    log: Any = ray.remote(num_cpus=0)(EventLog).remote()
    finished = Event()
    failures: list[Exception] = []

    def drain() -> None:
        for event in ray.get(log.take.remote()):
            on_event(event)

    def pump() -> None:
        try:
            while not finished.wait(_POLL_SECONDS):
                drain()
            drain()
        except Exception as error:  # a thread: kept, and raised where the caller can see it
            failures.append(error)

    # In the caller's context, so that Prefect knows which run the lines of its log belong to.
    context = copy_context()
    thread = Thread(target=context.run, args=(pump,), name="train-events", daemon=True)
    thread.start()
    try:
        yield TellDriver(log)
    finally:
        finished.set()
        thread.join()
        ray.kill(log)
    if failures:
        raise failures[0]
