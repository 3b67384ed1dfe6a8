"""Watches the online models of a machine while a batch job runs on it, and pauses the job."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any, Self

import psutil

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.batch.beside_online.pressure import (
    Pressure,
    Standing,
    decide,
    largest_pressure,
)
from millrace.serving.triton.served_load import Change, Look, Samples, model_loads, read_metrics

EVERY = 0.5
"""Seconds between two looks."""

log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Moment:
    """What a look found.

    Attributes:
        seconds: since the start of the watch.
        others: cores that were busy since the look before with anything but the job.
        is_paused: whether the job stood still since then.
    """

    seconds: float
    others: float
    is_paused: bool


@dataclass
class OnlineWatch:
    """A thread that looks at the online models, while the block runs.

    Attributes:
        goals: the goals of the live models; without any, nothing is looked at.
        servers: returns the Tritons to look at.
        pause: the file by which the job is paused.
        read: returns the metrics of one.
        moments: what each look found.
        began: the moment of the start, of the monotonic clock.
    """

    goals: Mapping[str, SloSpec]
    servers: Callable[[], Sequence[Endpoint]]
    pause: PauseFile
    read: Callable[[Endpoint], Samples] = partial(read_metrics, with_guard=False)
    moments: list[Moment] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic, init=False)
    _looks: dict[Endpoint, Look] = field(default_factory=dict, init=False)
    _standing: Standing = field(default_factory=Standing, init=False)
    _done: Event = field(default_factory=Event, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        """Begin to look."""
        self.began = time.monotonic()
        if self.goals:
            self.pause.resume()  # of a driver that died
            self._thread = Thread(target=self._watch, name="online watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the job go on, and say for how long it stood still."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self.pause.resume()
        if (paused := self.paused_seconds) >= 1:
            log.info("the job stood still for %.0f s, for the latency of online requests", paused)

    @property
    def paused_seconds(self) -> float:
        """How long the job stood still so far."""
        times = [0.0, *(each.seconds for each in self.moments)]
        waits = zip(times, self.moments, strict=False)
        return sum(each.seconds - before for before, each in waits if each.is_paused)

    def _watch(self) -> None:
        busy, last = _busy_seconds(), time.monotonic()
        while not self._done.wait(EVERY):
            was_paused = self._standing.is_paused
            try:
                self._follow(self._look())
            except OSError as error:  # the disk is full: the job goes on, as no file stops it
                log.warning("the job cannot be paused for online requests: %s", error)
                return
            now, used = time.monotonic(), _busy_seconds()
            self.moments.append(Moment(now - self.began, (used - busy) / (now - last), was_paused))
            busy, last = used, now

    def _look(self) -> Pressure | float | None:
        """Return the largest pressure; 0 without requests, None if it is not known."""
        try:
            servers = self.servers()
            after = {each: Look(time.monotonic(), self.read(each)) for each in servers}
        except TransientError:
            self._looks = {}
            return None
        pairs = [(self._looks[each], look) for each, look in after.items() if each in self._looks]
        self._looks = after
        loads = [load for pair in pairs for load in model_loads(Change(*pair))]
        return largest_pressure(self.goals, loads) or 0.0

    def _follow(self, seen: Pressure | float | None) -> None:
        share = seen.share if isinstance(seen, Pressure) else seen
        before, self._standing = (
            self._standing,
            decide(self._standing, time.monotonic(), share),
        )
        if self._standing.is_paused:
            self.pause.pause()
        elif before.is_paused:
            self.pause.resume()
            log.debug("the job goes on")
        if self._standing.is_paused and not before.is_paused:
            first = before.resumed < 0
            log.log(logging.INFO if first else logging.DEBUG, "the job stands still: %s", seen)


def _busy_seconds() -> float:
    """Return the seconds that the cores worked on processes of a normal priority, all together.

    Ray gives its workers a lower one, and those are the job's.
    """
    times: Any = psutil.cpu_times()
    names = ("user", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)
