"""While `up` runs, rotates, compacts and removes the guard's records of arrivals every minute."""

import time

from millrace.flows.console import WarnOnce, first_line
from millrace.flows.triggers.watch import PollingThread
from millrace.models.common.installation import Installation
from millrace.serving.guard.arrivals_files import maintain_arrivals

KEEP_SECONDS = 60.0


class ArrivalsKeeper(PollingThread):
    """A thread that keeps the files within their limits; what fails is tried again the next time.

    Args:
        installation: has the files.
        pause: seconds between two times.
    """

    def __init__(self, installation: Installation, pause: float = KEEP_SECONDS) -> None:
        super().__init__("arrivals keeper", pause)
        self._installation, self._pause = installation, pause
        self._warning = WarnOnce("records of arrivals cannot be kept; retrying: %s")

    def check(self) -> float:
        """Do what is due; return seconds until the next time."""
        try:
            maintain_arrivals(self._installation, time.time())
        except Exception as error:  # a full disk must not end the thread
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
        return self._pause
