"""Lets a replica of Triton get requests once it serves everything that clients should get.

A replica starts without models. The joiner requests a release for it, looks until the replica
serves all live models, and then marks it ready; the supervisor lists it in the guard.
"""

from collections.abc import Callable
from pathlib import Path

from millrace.flows.console import WarnOnce, first_line, log
from millrace.flows.triggers.watch import PollingThread
from millrace.serving.release.joining import State
from millrace.serving.replicas.files import RunningReplica, mark_ready, read_fleet

LOOK_SECONDS = 1.0


class ReplicaJoiner(PollingThread):
    """A thread that looks at the replicas which get no requests yet.

    Args:
        run: the home's folder `run`.
        look_at: a function that returns what a replica serves, by its number.
        request: a function that requests a release of all models, with the reason.
    """

    def __init__(
        self, run: Path, look_at: Callable[[int], State], request: Callable[[str], None]
    ) -> None:
        super().__init__("replica joiner", LOOK_SECONDS)
        self._run, self._look_at, self._request = run, look_at, request
        self._requested: set[tuple[int, int | None]] = set()
        self._warning = WarnOnce("cannot see what the replicas serve; retrying: %s")

    def check(self) -> float:
        """Look once; return seconds until the next look."""
        fleet = read_fleet(self._run)
        try:
            for replica in fleet.replicas if fleet else ():
                if replica.state == "loading" and replica.pid is not None:
                    self._join(replica, replica.pid)
        except Exception as error:  # a service that does not answer now is asked again
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
        return LOOK_SECONDS

    def _join(self, replica: RunningReplica, pid: int) -> None:
        """Mark a replica ready if it serves all models; else request a release, once."""
        state, key = self._look_at(replica.number), (replica.number, pid)
        if state == "serving":
            mark_ready(self._run, replica.number, pid)
            self._requested.discard(key)
            log.info("replica %d of Triton gets requests", replica.number)
        elif state == "loading" and key not in self._requested:
            self._requested.add(key)
            self._request(f"replica {replica.number} of Triton has started")
