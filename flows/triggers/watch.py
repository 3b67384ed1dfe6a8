"""Checks every few seconds whether a release is due, and requests one if so.

A webhook announces a changed alias, but a lost event is not sent again. No event announces a Triton
that restarted without models, a backend whose process was killed, or the end of a rollout's step.
Nor does an event announce that a minute has passed since an alias was removed, after which the
model is unloaded. The watch finds all of these, and requests nothing when no release is due.

`Watch` is a thread of the webhook's receiver; `watch_releases` is `millrace release --watch`.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from millrace.flows.console import WarnOnce, first_line, log
from millrace.models.common.errors import MillraceError
from millrace.serving.release.outcome import Outcome

CHECK_SECONDS = 5.0
LATE_SECONDS = 60.0
"""A watch whose check is overdue by more than this counts as stalled."""
MAX_CORE_SHARE = 0.05
"""Checks may use this share of one core; if they use more, they run less often."""
REPEAT_SECONDS, MAX_REPEAT_SECONDS = 60.0, 300.0
"""The pause between two requests for the same reason: at first `REPEAT_SECONDS`.

The pause doubles each time, up to `MAX_REPEAT_SECONDS`.
"""
IMMEDIATE_REPEATS = 3
"""If a release succeeds but is still due for the same reason, it is requested again at once, until
there were this many requests. Further requests wait for the pause above."""


@dataclass(frozen=True)
class Request:
    """The last request for one model.

    Attributes:
        reason: why a release was due.
        requested_at: the time of the last request, in seconds.
        attempts: how often the release was requested for this reason.
        is_released: whether a release has succeeded since the request.
    """

    reason: str
    requested_at: float
    attempts: int = 1
    is_released: bool = False

    def is_repeat_due(self, now: float) -> bool:
        """Return whether to request the release for the same reason again."""
        if self.is_released and self.attempts < IMMEDIATE_REPEATS:
            return True
        pause: float = min(REPEAT_SECONDS * 2 ** (self.attempts - 1), MAX_REPEAT_SECONDS)
        return now - self.requested_at >= pause


class RequestThrottle:
    """Selects the releases to request: a new reason at once, the same reason after a pause."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def select(self, due: Mapping[str, str], now: float) -> dict[str, str]:
        """Return the models to release now, each with the reason.

        Args:
            due: the reason why a release is due, by model.
            now: the time in seconds of a monotonic clock.
        """
        before, self._requests = self._requests, {}
        for model, reason in due.items():
            last = before.get(model)
            if last is None or last.reason != reason:
                self._requests[model] = Request(reason, now)
            elif last.is_repeat_due(now):
                self._requests[model] = Request(reason, now, last.attempts + 1)
            else:
                self._requests[model] = last
        new = {model for model, each in self._requests.items() if each is not before.get(model)}
        return {model: reason for model, reason in due.items() if model in new}

    def note_release(self, models: Collection[str] | None) -> None:
        """Record that a release of `models` (None: all models) succeeded."""
        self._requests = {
            model: replace(each, is_released=True) if models is None or model in models else each
            for model, each in self._requests.items()
        }


class PollingThread(threading.Thread):
    """A daemon thread that calls `check` until `stop`.

    Args:
        name: the thread's name.
        first_pause: seconds before the first check.
    """

    def __init__(self, name: str, first_pause: float) -> None:
        super().__init__(name=name, daemon=True)
        self._first_pause = first_pause
        self._stopped = threading.Event()

    def check(self) -> float:
        """Check once; return seconds until the next check."""
        raise NotImplementedError

    def run(self) -> None:
        """Check until `stop`."""
        pause = self._first_pause
        while not self._stopped.wait(pause):
            pause = self.check()

    def stop(self) -> None:
        """Stop checking; does not wait for a check that runs."""
        self._stopped.set()


class Watch(PollingThread):
    """A thread that checks which releases are due, and requests them.

    Args:
        find_due: a function that returns why a release is due, by model. It leaves out models that
            are being released.
        request: a function that requests a release, with the model and the reason.
        check_seconds: the seconds between two checks.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        find_due: Callable[[], Mapping[str, str]],
        request: Callable[[str, str], None],
        check_seconds: float = CHECK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("watch", check_seconds)
        self._find_due, self._request, self._check_seconds = find_due, request, check_seconds
        self._clock = clock
        self._throttle = RequestThrottle()
        self._warning = WarnOnce("cannot check whether a release is due; retrying: %s")
        self._next_at = clock() + check_seconds

    def start(self) -> None:
        """Start checking."""
        self._next_at = self._clock() + self._check_seconds
        super().start()

    def note_release(self, models: Collection[str] | None) -> None:
        """Record that a release of `models` (None: all models) succeeded."""
        self._throttle.note_release(models)

    @property
    def is_checking(self) -> bool:
        """Whether the watch works: its next check is not overdue."""
        return self._clock() - self._next_at <= LATE_SECONDS

    def check(self) -> float:
        """Check once; return seconds until the next check."""
        began = time.thread_time()
        try:
            due = self._find_due()
        except Exception as error:  # a service that does not answer now is checked again
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
            for model, reason in self._throttle.select(due, self._clock()).items():
                self._request(model, f"watch: {reason}")
        pause = max(self._check_seconds, (time.thread_time() - began) / MAX_CORE_SHARE)
        self._next_at = self._clock() + pause
        return pause


def watch_releases(
    interval: float,
    print_outcomes: Callable[[tuple[Outcome, ...]], None],
    find_due: Callable[[], Mapping[str, str]],
    release: Callable[..., tuple[Outcome, ...]],
) -> None:
    """Check every `interval` seconds until Ctrl-C, and release when something is due.

    If a server fails, the error is logged and the release retried after a minute or more. A bug in
    Millrace ends the loop, because a retry would only meet the same bug.

    Args:
        interval: the seconds between two checks.
        print_outcomes: a function that is called with the outcomes of a release that changed
            something.
        find_due: a function that returns why a release is due, by model.
        release: a function that releases the models in its argument `models`.
    """
    throttle = RequestThrottle()
    while True:
        try:
            models = throttle.select(find_due(), time.monotonic())
            if models:
                outcomes = release(models=list(models))
                throttle.note_release(models)
                if any(outcome.changed for outcome in outcomes):
                    print_outcomes(outcomes)
        except Exception as error:
            if not _is_server_failure(error):
                raise
            log.error("the release failed and will be retried: %s", error)
        time.sleep(interval)


def _is_server_failure(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a failure of a server.

    These are Millrace's own errors, and the errors of MLflow's and Prefect's clients while their
    server restarts; Prefect's client wraps some of them in a plain RuntimeError.
    """
    import httpx
    from mlflow.exceptions import MlflowException

    known = (MillraceError, MlflowException, httpx.HTTPError, OSError)
    return error is not None and (isinstance(error, known) or _is_server_failure(error.__cause__))
