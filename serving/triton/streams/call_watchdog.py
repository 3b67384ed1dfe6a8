"""A watchdog that ends calls which receive nothing because the backend process has died.

Triton never answers a request that was in a backend process when the process died. Millrace's
backend sends a keep-alive to each stream every second, between two steps of its engine. If a call
receives nothing, the watchdog sends the model a health check, because a long step may only delay
the call. `millrace up` replaces a dead process within seconds. If a model that sends keep-alives
passes the health check and a call still receives nothing, the call was in the old process.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

SILENCE_SECONDS = 10.0
LOOK_SECONDS = 0.5


class Pulse(IntEnum):
    """The result of a health check.

    The value is the number of intervals without a response (see `Watchdog`) that end a call.
    """

    DEAD = 1
    BEATING = 2
    """The model answers, and sends keep-alives to its streams."""
    QUIET = 12
    """The model answers, but its streams may be silent for a long time, as with vLLM."""


Target = tuple[str, int | None]
"""A model and its version; None: the live version."""


class Call(Protocol):
    """A gRPC call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


@dataclass
class PendingCall:
    """The state of a call that a client waits for: model, start, and time of the last check."""

    target: Target
    since: float
    checked: float


class Watchdog:
    """Watches calls while clients wait for responses. It uses one thread.

    Args:
        seconds: seconds without a response after which the model gets a health check.
        pulse: runs the health check of a model.
    """

    def __init__(self, seconds: float, pulse: Callable[[Target], Pulse]) -> None:
        self.seconds, self._pulse = seconds, pulse
        self._lock = threading.Lock()
        self._pending: dict[Call, PendingCall] = {}
        self._ended: set[Call] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, call: Call, target: Target) -> Iterator[None]:
        """Watch a call for the length of the block, which waits for a response."""
        now = time.monotonic()
        with self._lock:
            self._pending[call] = PendingCall(target, now, now)
        try:
            yield
        finally:
            with self._lock:
                self._pending.pop(call, None)

    def was_ended(self, call: Call) -> bool:
        """Return whether the watchdog ended a call, and forget the call."""
        with self._lock:
            was_ended = call in self._ended
            self._ended.discard(call)
            return was_ended

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(LOOK_SECONDS, self.seconds / 4)):
            now = time.monotonic()
            with self._lock:
                pending = list(self._pending.items())
            silent = {call: wait for call, wait in pending if wait.checked < now - self.seconds}
            targets = {wait.target for wait in silent.values()}
            pulses = {target: self._check_pulse(target) for target in targets}
            for call, wait in silent.items():
                wait.checked = time.monotonic()
                if wait.since < now - pulses[wait.target] * self.seconds:
                    self._end(call, wait)

    def _check_pulse(self, target: Target) -> Pulse:
        return Pulse.QUIET if self._closed.is_set() else self._pulse(target)

    def _end(self, call: Call, wait: PendingCall) -> None:
        """Cancel a call, unless it has received a response meanwhile."""
        with self._lock:
            if self._pending.get(call) is not wait:
                return
            self._ended.add(call)
        call.cancel()
