"""Any number of wishes for a release, one release at a time.

A release makes everything right, so the wishes that come while one is under way need only one
more, which sees the last of them.
"""

import threading
from collections.abc import Callable, Sequence

from models.errors import MillraceError
from tasks.progress import log

RETRY_SECONDS = (2.0, 5.0, 10.0, 20.0)
"""How long to wait after each failure that may pass; then the schedule, every minute, has it."""


class ReleaseWorker:
    """A thread that releases as long as somebody wants it.

    Args:
        release: carries out one release; given who asks for it.
        retry_seconds: how long to wait after each failure in a row that may pass.
    """

    def __init__(
        self, release: Callable[[str], None], retry_seconds: Sequence[float] = RETRY_SECONDS
    ) -> None:
        self._release, self._retry_seconds = release, retry_seconds
        self._wanted: dict[str, str] = {}
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="releases", daemon=True)

    def start(self) -> None:
        """Begin to release."""
        self._thread.start()

    def want(self, about: str, why: str) -> None:
        """Ask for a release; a newer wish about the same replaces one that still waits."""
        with self._changed:
            self._wanted[about] = why
            self._changed.notify()

    def end(self, seconds: float) -> None:
        """Begin no further release, and wait for the one under way."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        wishes: dict[str, str] = {}
        failures = 0
        while (new := self._taken(failures)) is not None:
            wishes |= new
            failures = failures + 1 if self._fails_for_now(wishes) else 0
            if not 0 < failures <= len(self._retry_seconds):
                wishes, failures = {}, 0

    def _taken(self, failures: int) -> dict[str, str] | None:
        """Wait for wishes, after a failure only so long; None tells to end."""
        timeout = self._retry_seconds[failures - 1] if failures else None
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ending, timeout)
            taken, self._wanted = self._wanted, {}
            return None if self._ending else taken

    def _fails_for_now(self, wishes: dict[str, str]) -> bool:
        asked_by = ", ".join(wishes.values())
        try:
            self._release(asked_by)
        except BaseException as error:  # Prefect's signals too: this thread must live
            log.error("the release failed (%s): %s", asked_by, one_line(error))
            return may_pass(error)
        return False


def may_pass(error: BaseException) -> bool:
    """Return whether a release that failed is worth another try before the schedule's."""
    return not isinstance(error, MillraceError) or error.transient


def one_line(error: BaseException) -> str:
    """Return the first line of what an error says, for a log."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
