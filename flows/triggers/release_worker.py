"""Runs requested releases in threads, and never two releases of one model at a time.

A release brings everything up to date, so the requests for a model that arrive during one need only
one more release, which covers the last of them. A model whose release takes long delays no other.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from millrace.flows.console import first_line, log
from millrace.models.common.errors import MillraceError

RETRY_SECONDS = (2.0, 5.0, 10.0, 20.0)
"""Pauses after transient failures in a row; after the last one the watch takes over."""
MAX_RELEASES = 4
"""Releases at a time; what is requested beyond waits, and is then released together."""

Requests = Mapping[str | None, str]
"""The reason for a release of each model; under None, for a release of all models."""


class ReleaseWorker:
    """Runs the requested releases in daemon threads.

    They are not a pool's threads, which Python joins at exit: a long release must not delay that.

    Args:
        release: runs one release; called with its reasons and the models, None for all.
        retry_seconds: the pauses after transient failures in a row.
    """

    def __init__(
        self,
        release: Callable[[str, list[str] | None], None],
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self._release, self._retry_seconds = release, retry_seconds
        self._waiting: dict[str | None, str] = {}
        self._running: dict[threading.Thread, Requests] = {}
        self._changed = threading.Condition()
        self._is_stopping = False

    def request(self, model: str | None, reason: str) -> None:
        """Request a release of a model, or of all; a newer request replaces a waiting one."""
        with self._changed:
            self._waiting[model] = reason
            self._changed.notify_all()
            self._start_next()

    def stop(self, seconds: float) -> None:
        """Start no further release, and wait for those that run."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            threads = list(self._running)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _start_next(self) -> None:
        """Start a release of the waiting models that no release works on; the lock is held."""
        busy = {model for requests in self._running.values() for model in requests}
        free = {model: reason for model, reason in self._waiting.items() if model not in busy}
        if not free or self._is_stopping or len(self._running) >= MAX_RELEASES:
            return
        self._waiting = {model: reason for model, reason in self._waiting.items() if model in busy}
        thread = threading.Thread(target=self._run, args=(free,), name="release", daemon=True)
        self._running[thread] = free
        thread.start()

    def _run(self, requests: Requests) -> None:
        pauses = iter(self._retry_seconds)
        while self._fails_transiently(requests) and (pause := next(pauses, None)) is not None:
            newer = self._wait_for_newer(requests, pause)
            if newer is None:
                break
            requests = {**requests, **newer}
        with self._changed:
            del self._running[threading.current_thread()]
            self._start_next()

    def _wait_for_newer(self, requests: Requests, seconds: float) -> Requests | None:
        """Pause until there are newer requests for the same models; return None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting.keys() & requests.keys() or self._is_stopping, seconds
            )
            models = self._waiting.keys() & requests.keys()
            newer = {model: self._waiting.pop(model) for model in models}
            return None if self._is_stopping else newer

    def _fails_transiently(self, requests: Requests) -> bool:
        """Release once; return whether it failed and is worth a retry before the watch's."""
        asked_by = ", ".join(requests.values())
        models = None if None in requests else [model for model in requests if model is not None]
        try:
            self._release(asked_by, models)
        except BaseException as error:  # Prefect's signals too: this thread must live
            log.error("the release failed (%s): %s", asked_by, first_line(error))
            return not isinstance(error, MillraceError) or error.transient
        return False
