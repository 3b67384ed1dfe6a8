"""A look every few seconds at whether a release would do anything: then it asks for one.

Aliases announce themselves by a webhook. What dies does not: a Triton that came back with nothing
loaded, a backend whose process was killed; nor does a step of a rollout that is over.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping

from flows.release_worker import one_line
from tasks.progress import log

LOOK_SECONDS = 5.0
MOST_OF_A_CORE = 0.05
"""Looking may take this share of one core; where it takes more, it is done less often."""


class Watch:
    """A thread that looks, and asks once for each thing that it finds.

    What it asked for and no release mended is left to the schedule.

    Args:
        due: returns what is to be done, by model, where no release is under way.
        want: asks for a release: of which model, and why.
        look_seconds: time between two looks.
    """

    def __init__(
        self,
        due: Callable[[], Mapping[str, str]],
        want: Callable[[str, str], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._due, self._want, self._look_seconds = due, want, look_seconds
        self._asked: dict[str, str] = {}
        self._told = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def released(self, models: Collection[str] | None) -> None:
        """Take note that a release of models, or of all, ended well: what is due now is news."""
        self._asked = {
            k: why for k, why in self._asked.items() if models is not None and k not in models
        }

    def end(self) -> None:
        """Look no more; does not wait."""
        self._ended.set()

    def look(self) -> float:
        """Look once; return seconds until the next look."""
        began = time.thread_time()
        try:
            found = self._due()
        except Exception as error:  # whatever is away now is looked at again
            self._tell(one_line(error))
        else:
            self._tell("")
            self._ask(found)
        return max(self._look_seconds, (time.thread_time() - began) / MOST_OF_A_CORE)

    def _ask(self, found: Mapping[str, str]) -> None:
        for model, why in found.items():
            if self._asked.get(model) != why:
                self._want(model, f"watch: {why}")
        self._asked = dict(found)

    def _work(self) -> None:
        pause = self._look_seconds
        while not self._ended.wait(pause):
            pause = self.look()

    def _tell(self, reason: str) -> None:
        """Say once why it cannot look."""
        if reason and reason != self._told:
            log.warning("cannot look whether a release is due; the schedule does: %s", reason)
        self._told = reason
