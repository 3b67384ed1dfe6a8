"""A pool of daemon threads that accepts a job only if a thread is free.

Python joins the threads of `concurrent.futures` at exit, so a hanging call would keep the process
of an unloaded model alive forever.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Job = Callable[[], Any]


class DaemonPool:
    """Daemon threads that run jobs.

    Args:
        size: the number of threads.
    """

    def __init__(self, size: int) -> None:
        self._free = threading.Semaphore(size)
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, *, wait: bool) -> "Future[Any] | None":
        """Run a job in a thread.

        Args:
            job: the function to call.
            wait: whether to wait for a free thread if all are busy.

        Returns:
            The future result of the job; None if all threads are busy and `wait` is false.
        """
        if not self._free.acquire(blocking=wait):
            return None
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` for the submitted jobs, and end the idle threads."""
        deadline = time.monotonic() + seconds
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                result = job()
            except Exception as error:
                self._free.release()
                future.set_exception(error)
            else:
                self._free.release()
                future.set_result(result)
