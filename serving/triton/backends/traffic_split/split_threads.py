"""A few threads that do jobs, and never more of them at a time than there are threads.

`concurrent.futures` would join its threads when the interpreter ends, and a call that hangs would
keep an unloaded model's process for ever; these are daemons.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Job = Callable[[], Any]


class Crew:
    """Daemon threads that wait for jobs.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self._free = threading.Semaphore(size)
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def give(self, job: Job, *, wait: bool) -> "Future[Any] | None":
        """Have a job done.

        Args:
            job: what to call.
            wait: until a thread is free, when all are busy.

        Returns:
            Its result to come; None when all threads are busy and it was not to wait.
        """
        if not self._free.acquire(blocking=wait):
            return None
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def close(self, seconds: float) -> None:
        """Wait so long for the jobs that were given, and end the threads that are done."""
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
