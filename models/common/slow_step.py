"""Reports a step that takes long, such as the start of a server, so that no command is silent."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

log = logging.getLogger("millrace")

LINE_SECONDS = 5.0


@contextmanager
def report_while(step: str) -> Iterator[None]:
    """Log a line every `LINE_SECONDS` while the block runs; none if the block is faster.

    Args:
        step: what is done, as the beginning of a sentence: `starting Ray`.
    """
    started = time.monotonic()

    def report() -> None:
        log.info("%s: %.0f s so far", step, time.monotonic() - started)

    with repeat_while(LINE_SECONDS, report):
        yield


@contextmanager
def repeat_while(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call a function every so many seconds, in a thread, while the block runs.

    Args:
        seconds: time before the first call, and between two.
        action: the function; it raises nothing.
    """
    ended = Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()

    thread = Thread(target=repeat, name="repeat_while", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
