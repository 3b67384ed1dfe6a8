"""While `up` runs, brings logged requests into their tables every minute."""

from millrace.flows.console import WarnOnce, first_line, log
from millrace.flows.triggers.watch import PollingThread
from millrace.models.common.installation import Installation

COLLECT_SECONDS = 60.0


class RequestCollector(PollingThread):
    """A thread that collects; what fails is tried again the next time.

    Args:
        installation: has the files and the tables.
        pause: seconds between two times.
    """

    def __init__(self, installation: Installation, pause: float = COLLECT_SECONDS) -> None:
        super().__init__("request collector", pause)
        self._installation, self._pause = installation, pause
        self._warning = WarnOnce("logged requests cannot be collected; retrying: %s")

    def check(self) -> float:
        """Collect once; return seconds until the next time."""
        from millrace.tasks.collect_requests import collect_all

        try:
            for model, collected in collect_all(self._installation):
                if collected.unreadable:
                    log.warning("%d logged lines of %s are no rows", collected.unreadable, model)
        except Exception as error:  # a full disk or another store must not end the thread
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
        return self._pause
