"""Gathers requests that arrive at the same time, so that the engine admits them together.

The engine holds Python's GIL for a whole step, so no request is read meanwhile; and reading one
request needs the GIL several times. Without gathering, a step would admit one or two of 32
simultaneous requests, and a batch that fills so slowly loses a fifth of its speed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NEXT_SECONDS = 0.0005
"""How long to wait for another request after one has arrived."""
MAX_SECONDS = 0.01
"""How long running answers wait at most, even if more requests arrive."""


class Arrivals:
    """Counts the requests that are being read, for the thread that steps the engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = self._arrived = self._known = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a request as being read during the block."""
        with self._changed:
            self._reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._arrived += 1
                self._changed.notify()

    def gather(self) -> None:
        """Wait for the requests that are being read; without any, only release the GIL once."""
        time.sleep(0)
        deadline = time.monotonic() + MAX_SECONDS
        with self._changed:
            while self._reading or self._arrived != self._known:
                self._known = self._arrived
                more = self._changed.wait_for(lambda: self._arrived != self._known, NEXT_SECONDS)
                if not (more or self._reading) or time.monotonic() > deadline:
                    return
