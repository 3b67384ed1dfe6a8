"""Training events, sent live from Ray Train's controller to the driver.

Ray Train calls `UserCallback`s in its controller process. The driver, which the user watches and
which is connected to MLflow, is another process. An actor between the two stores the events until
the driver fetches them. So workers need neither MLflow nor its credentials.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Event, Thread
from typing import Any

import ray
import ray.train

from millrace.models.training.event_log import EventLog, Reported, TrainEvent, WorkersFailed

_POLL_SECONDS, _TOLD_SECONDS = 0.2, 10.0


class TellDriver(ray.train.UserCallback):
    """Callback of Ray Train that sends every report and failure to the event log.

    It waits until the log has stored the event, because the driver reads the log for the last time
    when training ends, and a late report would be lost.
    """

    def __init__(self, log: Any) -> None:
        self.log = log

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        """Send what the workers reported to the event log."""
        self._send(Reported(dict(metrics[0])))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Send the failed workers and their errors to the event log."""
        causes = {
            rank: f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            for rank, error in worker_exceptions.items()
        }
        self._send(WorkersFailed(causes))

    def _send(self, event: TrainEvent) -> None:
        # If the log is unreachable, the driver learns of a failure from Ray Train itself.
        with suppress(ray.exceptions.RayError, TimeoutError):
            self.log.add.remote(event).future().result(_TOLD_SECONDS)


@contextmanager
def events_of_workers(on_event: Callable[[TrainEvent], None]) -> Iterator[TellDriver]:
    """Yield a callback for Ray Train; `on_event` gets its events in a thread of the driver."""
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
        except Exception as error:  # raised below, in the caller's thread
            failures.append(error)

    # In the caller's context, so that Prefect assigns the log lines to the right run.
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
