"""The file by which the driver of a job has its actors, which run on its machine, stand still."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STALE_SECONDS = 20.0
"""A driver that lives writes the file more often, also where a busy server takes seconds to tell
its metrics; the file of a dead one stops nobody."""
CHECK_SECONDS = 0.05

Wait = Callable[[], None]
"""What a worker calls before each step of its model; it returns when the worker may go on."""


def go_on() -> None:
    """Return at once: the worker yields to nobody."""


@dataclass
class PauseFile:
    """A file that exists while the actors of a job stand still.

    Attributes:
        path: the file.
        waited: seconds that this process stood still.
    """

    path: Path
    waited: float = 0.0

    def pause(self) -> None:
        """Have the actors stand still; said again and again, while it is so."""
        self.path.touch(mode=0o600)

    def resume(self) -> None:
        """Let the actors go on."""
        self.path.unlink(missing_ok=True)

    def wait(self) -> None:
        """Return when the job may go on; at once, if it is not paused.

        An actor calls it before each call of its model.
        """
        if not self._is_set():
            return
        began = time.monotonic()
        while self._is_set():
            time.sleep(CHECK_SECONDS)
        self.waited += time.monotonic() - began

    def _is_set(self) -> bool:
        try:
            return time.time() - self.path.stat().st_mtime < STALE_SECONDS
        except FileNotFoundError:
            return False
