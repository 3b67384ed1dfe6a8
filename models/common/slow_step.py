"""Reports a step that takes long, such as the start of a server, so that no command is silent."""

import logging
import time
from collections.abc import Iterator
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
    ended, started = Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(LINE_SECONDS):
            log.info("%s: %.0f s so far", step, time.monotonic() - started)

    thread = Thread(target=report, name="report_while", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
