"""Any number of requests for releases, and never two releases of a model at a time.

A release makes everything right, so the wishes for a model that come while one is under way need
only one more, which sees the last of them. A model whose release takes long holds no other up.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from millrace.models.common.errors import MillraceError
from millrace.tasks.progress import log

RETRY_SECONDS = (2.0, 5.0, 10.0, 20.0)
"""How long to wait after each failure that may pass; then the watch has it, a minute later."""
MOST = 4
"""Releases at a time; what is wanted beyond goes into the next one together."""

DueReleases = Mapping[str | None, str]
"""Why a release of each model is wanted, and under None why one of all models is."""


class ReleaseWorker:
    """Releases what is wanted, in threads of its own.

    Args:
        release: carries out one release; given who asks for it and the models, None for all.
        retry_seconds: how long to wait after each failure in a row that may pass.
    """

    def __init__(
        self,
        release: Callable[[str, list[str] | None], None],
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self._release, self._retry_seconds = release, retry_seconds
        self._wanted: dict[str | None, str] = {}
        self._at_work: dict[threading.Thread, DueReleases] = {}
        self._changed = threading.Condition()
        self._ending = False

    def want(self, model: str | None, why: str) -> None:
        """Ask for a release of a model, or of all; a newer request replaces one that waits."""
        with self._changed:
            self._wanted[model] = why
            self._changed.notify_all()
            self._begin()

    def end(self, seconds: float) -> None:
        """Begin no further release, and wait for those under way."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            threads = list(self._at_work)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _begin(self) -> None:
        """Begin a release of what is wanted and not under way; the lock is held."""
        busy = {model for wishes in self._at_work.values() for model in wishes}
        free = {model: why for model, why in self._wanted.items() if model not in busy}
        if not free or self._ending or len(self._at_work) >= MOST:
            return
        self._wanted = {model: why for model, why in self._wanted.items() if model in busy}
        thread = threading.Thread(target=self._work, args=(free,), name="release", daemon=True)
        self._at_work[thread] = free
        thread.start()

    def _work(self, wishes: DueReleases) -> None:
        pauses = iter(self._retry_seconds)
        while self._fails_for_now(wishes) and (pause := next(pauses, None)) is not None:
            newer = self._newer(wishes, pause)
            if newer is None:
                break
            wishes = {**wishes, **newer}
        with self._changed:
            del self._at_work[threading.current_thread()]
            self._begin()

    def _newer(self, wishes: DueReleases, seconds: float) -> DueReleases | None:
        """Wait before another try, until there are newer requests for the same; None ends it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._wanted.keys() & wishes.keys() or self._ending, seconds
            )
            newer = {
                model: self._wanted.pop(model) for model in self._wanted.keys() & wishes.keys()
            }
            return None if self._ending else newer

    def _fails_for_now(self, wishes: DueReleases) -> bool:
        asked_by = ", ".join(wishes.values())
        models = None if None in wishes else [model for model in wishes if model is not None]
        try:
            self._release(asked_by, models)
        except BaseException as error:  # Prefect's signals too: this thread must live
            log.error("the release failed (%s): %s", asked_by, one_line(error))
            return may_pass(error)
        return False


def may_pass(error: BaseException) -> bool:
    """Return whether a release that failed is worth another try before the watch's."""
    return not isinstance(error, MillraceError) or error.transient


def one_line(error: BaseException) -> str:
    """Return the first line of what an error says, for a log."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
