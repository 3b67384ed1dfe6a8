"""Requests that come at once are let in together.

The engine holds Python's lock for a whole step, so nothing reads a request meanwhile, and reading
one takes the lock several times. Of 32 requests that come at once a step would let in one or two,
and a batch that fills up so slowly costs a fifth of its speed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NEXT_SECONDS = 0.0005
"""For which another request is waited for behind one that has just come."""
MOST_SECONDS = 0.01
"""For which answers that are under way wait, however many come."""


class Arrivals:
    """Counts the requests that are being read, for the thread that steps the engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = self._come = self._known = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be in this while a request is read."""
        with self._changed:
            self._reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._come += 1
                self._changed.notify()

    def gather(self) -> None:
        """Wait for those that come now; where none does, only give others the lock once."""
        time.sleep(0)
        deadline = time.monotonic() + MOST_SECONDS
        with self._changed:
            while self._reading or self._come != self._known:
                self._known = self._come
                more = self._changed.wait_for(self._has_come, NEXT_SECONDS)
                if not (more or self._reading) or time.monotonic() > deadline:
                    return

    def _has_come(self) -> bool:
        return self._come != self._known
