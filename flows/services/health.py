"""Which service no longer answers though its process is alive, so that it is to be started anew.

A process may be stopped by a signal, or wait for a lock that nobody gives back; the kernel says
that it runs. Under heavy load a server answers late as well, and must not be killed for it: so an
answer has ten seconds, and every look of two minutes must have failed.
"""

from dataclasses import dataclass, replace

LOOK_SECONDS = 5.0
ANSWER_SECONDS = 10.0
FEWEST_LOOKS = 5
"""That must have failed, however long ago the first did: this process may have stood still too."""
FIRST_SECONDS = 60.0
"""After its start, in which a process is left alone."""


@dataclass(frozen=True)
class Looks:
    """What the looks at one process have found.

    Attributes:
        pid: the process; None before the first look.
        well_once: whether it has said that it is well.
        failed: looks that count, in a row, up to the last one, in which it did not.
        failing_since: when the first of these ended, in seconds.
    """

    pid: int | None = None
    well_once: bool = False
    failed: int = 0
    failing_since: float = 0.0

    def is_well(self, pid: int | None) -> bool:
        """Return whether the last look was at this process, and found it well."""
        return self.pid == pid and self.well_once and not self.failed

    def after(self, pid: int, *, well: bool, now: float, excused: bool = False) -> "Looks":
        """Return this with one look more; another process begins anew.

        Args:
            pid: the process that was looked at.
            well: whether it said so.
            now: seconds.
            excused: a failure does not count: what the service waits for is not well itself.
        """
        before = self if self.pid == pid else Looks(pid)
        if well or excused:
            return Looks(pid, well_once=well or before.well_once)
        since = before.failing_since if before.failed else now
        return replace(before, failed=before.failed + 1, failing_since=since)


def is_frozen(looks: Looks, pid: int, *, ran: float, now: float, patience: float) -> bool:
    """Return whether a process was well once and has failed every look for too long.

    Args:
        looks: at the service.
        pid: its present process.
        ran: seconds since its start.
        now: seconds, of the clock of the looks.
        patience: seconds for which it may fail.
    """
    if looks.pid != pid or not looks.well_once or ran < FIRST_SECONDS:
        return False
    return looks.failed >= FEWEST_LOOKS and now - looks.failing_since >= patience
