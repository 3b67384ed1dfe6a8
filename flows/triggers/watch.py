"""A look every few seconds at whether a release would do anything: then it asks for one.

Aliases announce themselves by a webhook, but MLflow tells only once, and what dies does not tell
at all: a Triton that came back with nothing loaded, a backend whose process was killed; nor does a
step of a rollout that is over, or the minute that a model is served without its alias. So all of
that is found here, and nothing is done where nothing is due.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from millrace.flows.triggers.release_worker import one_line
from millrace.tasks.progress import log

LOOK_SECONDS = 5.0
LATE_SECONDS = 60.0
"""A look that is not over so long after it was due means that the watch looks no more."""
MOST_OF_A_CORE = 0.05
"""Looking may take this share of one core; where it takes more, it is done less often."""
AGAIN_SECONDS, LONGEST_SECONDS = 60.0, 300.0
"""Between two tries of the same thing, twice as long after each that did not help."""
AT_ONCE = 3
"""Releases that ended well and left the same thing due, before the next one waits as well."""


@dataclass(frozen=True)
class Asked:
    """What was asked for, of one model.

    Attributes:
        why: what was due.
        at: when it was asked for last.
        tries: how often.
        released: whether a release has ended well since.
    """

    why: str
    at: float
    tries: int = 1
    released: bool = False

    def is_time(self, now: float) -> bool:
        """Return whether to ask for the same once more."""
        if self.released and self.tries < AT_ONCE:
            return True
        pause: float = min(AGAIN_SECONDS * 2 ** (self.tries - 1), LONGEST_SECONDS)
        return now - self.at >= pause


class DueReleases:
    """Decides what to ask for: what is due, at once; the same thing once more, after a while."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}

    def of(self, found: Mapping[str, str], now: float) -> dict[str, str]:
        """Return what to ask for now.

        Args:
            found: what is due, by model.
            now: seconds, monotonic.
        """
        asked: dict[str, Asked] = {}
        wanted: dict[str, str] = {}
        for model, why in found.items():
            before = self._asked.get(model)
            if before is None or before.why != why:
                asked[model] = Asked(why, now)
            elif before.is_time(now):
                asked[model] = Asked(why, now, before.tries + 1)
            else:
                asked[model] = before
                continue
            wanted[model] = why
        self._asked = asked
        return wanted

    def released(self, models: Collection[str] | None) -> None:
        """Take note that a release of models, or of all, ended well."""
        self._asked = {
            model: replace(each, released=True) if models is None or model in models else each
            for model, each in self._asked.items()
        }


class Watch:
    """A thread that looks, and asks for what it finds.

    Args:
        due: returns what is to be done, by model, where no release is under way.
        want: asks for a release: of which model, and why.
        look_seconds: time between two looks.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        due: Callable[[], Mapping[str, str]],
        want: Callable[[str, str], None],
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._due, self._want, self._look_seconds = due, want, look_seconds
        self._clock = clock
        self._wishes = DueReleases()
        self._told = ""
        self._due_at = clock() + look_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._due_at = self._clock() + self._look_seconds
        self._thread.start()

    def released(self, models: Collection[str] | None) -> None:
        """Take note that a release of models, or of all, ended well: what is due now is news."""
        self._wishes.released(models)

    def end(self) -> None:
        """Look no more; does not wait."""
        self._ended.set()

    @property
    def looks(self) -> bool:
        """Whether it does: the look that was due is over, or has not been due for long."""
        return self._clock() - self._due_at <= LATE_SECONDS

    def look(self) -> float:
        """Look once; return seconds until the next look."""
        began = time.thread_time()
        try:
            found = self._due()
        except Exception as error:  # whatever is away now is looked at again
            self._tell(one_line(error))
        else:
            self._tell("")
            for model, why in self._wishes.of(found, self._clock()).items():
                self._want(model, f"watch: {why}")
        pause = max(self._look_seconds, (time.thread_time() - began) / MOST_OF_A_CORE)
        self._due_at = self._clock() + pause
        return pause

    def _work(self) -> None:
        pause = self._look_seconds
        while not self._ended.wait(pause):
            pause = self.look()

    def _tell(self, reason: str) -> None:
        """Say once why it cannot look."""
        if reason and reason != self._told:
            log.warning("cannot look whether a release is due; it goes on trying: %s", reason)
        self._told = reason
