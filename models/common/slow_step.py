"""Reports a step that takes long, such as the start of a server, so that no command is silent."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

log = logging.getLogger("millrace")

LINE_SECONDS = 5.0
LOOK_SECONDS = 0.25


class _Silence(logging.Filter):
    """Knows when the last line was logged: several steps of 4 s are a silence too."""

    def __init__(self) -> None:
        super().__init__()
        self._since = time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record, and the time of it."""
        if record.levelno >= logging.INFO:
            self._since = time.monotonic()
        return True

    @property
    def seconds(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._since


_silence = _Silence()
log.addFilter(_silence)


@contextmanager
def report_while(step: str) -> Iterator[None]:
    """Log a line whenever nothing was logged for `LINE_SECONDS` while the block runs.

    Args:
        step: what is done, as the beginning of a sentence: `starting Ray`.
    """
    started = time.monotonic()

    def report() -> None:
        if _silence.seconds >= LINE_SECONDS:
            log.info("%s: %.0f s so far", step, time.monotonic() - started)

    with repeat_while(LOOK_SECONDS, report):
        yield


@contextmanager
def repeat_while(
    seconds: float, action: Callable[[], None], what: str = "a step in the background"
) -> Iterator[None]:
    """Call a function every so many seconds, in a thread, while the block runs.

    A call that fails is logged, and the next one comes all the same.

    Args:
        seconds: time before the first call, and between two.
        action: the function.
        what: what the function does, as the beginning of a sentence.
    """
    ended = Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            try:
                action()
            except Exception as error:
                log.warning("%s failed; it is tried again in %g s: %s", what, seconds, error)

    thread = Thread(target=repeat, name="repeat_while", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
