"""Ends calls that hear nothing and whose backend is dead.

Triton never answers a request that was in a backend process when that died. Our backend lets every
stream hear of it each second between two steps of its engine. So when a call hears nothing, its
model is asked whether it lives; a step may take long, and then it is only late. `millrace up` has a
process that died replaced within seconds: where one that lets its streams hear answers, and a call
still hears nothing, the call was in the one before.
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
    """What a model was found to be; the number of silences after which its calls are ended."""

    DEAD = 1
    BEATS = 2
    """It answers, and lets those who wait hear of it."""
    QUIET = 12
    """It answers, and those who wait may hear nothing for long, as of vLLM."""


Target = tuple[str, int | None]
"""A model and its version, None for the one that serves."""


class Call(Protocol):
    """A call that can be ended."""

    def cancel(self) -> object:
        """End it."""


@dataclass
class Wait:
    """Somebody waits for a call: for whose answer, since when, and when that was last asked."""

    target: Target
    since: float
    asked: float


class Silence:
    """Watches calls while somebody waits for them, by one thread.

    Args:
        seconds: of waiting after which the model is asked whether it lives.
        pulse: asks it.
    """

    def __init__(self, seconds: float, pulse: Callable[[Target], Pulse]) -> None:
        self.seconds, self._pulse = seconds, pulse
        self._lock = threading.Lock()
        self._waits: dict[Call, Wait] = {}
        self._ended: set[Call] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, call: Call, target: Target) -> Iterator[None]:
        """Watch a call while the block waits for it."""
        now = time.monotonic()
        with self._lock:
            self._waits[call] = Wait(target, now, now)
        try:
            yield
        finally:
            with self._lock:
                self._waits.pop(call, None)

    def ended(self, call: Call) -> bool:
        """Tell, once, whether a call was ended for its silence."""
        with self._lock:
            was_ended = call in self._ended
            self._ended.discard(call)
            return was_ended

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(LOOK_SECONDS, self.seconds / 4)):
            now = time.monotonic()
            with self._lock:
                silent = {
                    call: wait
                    for call, wait in self._waits.items()
                    if wait.asked < now - self.seconds
                }
            pulses = {target: self._of(target) for target in {w.target for w in silent.values()}}
            for call, wait in silent.items():
                wait.asked = time.monotonic()
                if wait.since < now - pulses[wait.target] * self.seconds:
                    self._end(call, wait)

    def _of(self, target: Target) -> Pulse:
        return Pulse.QUIET if self._closed.is_set() else self._pulse(target)

    def _end(self, call: Call, wait: Wait) -> None:
        """End a call, unless it was heard of meanwhile."""
        with self._lock:
            if self._waits.get(call) is not wait:
                return
            self._ended.add(call)
        call.cancel()
