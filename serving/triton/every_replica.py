"""The same work on several things, beside each other."""

import contextvars
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST = 4
LAST_SECONDS = 5.0
"""How long work that is told to stop has for it; then it dies with the process."""


def abreast(work: Callable[[str, threading.Event], T], names: Sequence[str]) -> dict[str, T]:
    """Do the work of every name, a few at a time, and return what each gave.

    One alone is done in this thread. What interrupts this thread sets the event that the work was
    given, so that it begins nothing more.

    Args:
        work: does it for one name; from several threads.
        names: the names.

    Raises:
        BaseException: the first that any work raised, when all others are done.
    """
    stop = threading.Event()
    if len(names) <= 1:
        return {name: work(name, stop) for name in names}
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    done: dict[str, T] = {}
    failed: list[BaseException] = []

    def take() -> None:
        while not (stop.is_set() or waiting.empty()):
            try:
                name = waiting.get_nowait()
                done[name] = work(name, stop)
            except queue.Empty:
                return
            except BaseException as error:
                failed.append(error)

    _run([take] * min(MOST, len(names)), stop)
    if failed:
        raise failed[0]
    return {name: done[name] for name in names}


def _run(takers: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Run each in a thread, which sees what this one's context holds, and wait for all."""
    # daemons: an interrupted process ends though one of them hangs
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(take,), daemon=True)
        for take in takers
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        for thread in threads:
            thread.join(LAST_SECONDS / len(threads))
        raise
