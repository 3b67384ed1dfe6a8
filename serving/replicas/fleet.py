"""Which replicas start, drain and stop: a function of what runs, what is wanted, and the clock.

- A replica gets requests once its process was found to serve all models (`ready_pid`), until it is
  no longer wanted or its process ends. A process that is started anew must be found so again.
- A replica that is no longer wanted drains: it gets no new requests, and stops when it has worked
  on none for `QUIET_SECONDS`, or after `DRAIN_SECONDS`, since a stream may stay open for ever.
- The last replica that gets requests does not drain while another one is wanted but not ready.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.serving.guard.envoy_replicas import Members

QUIET_SECONDS = 0.6
"""Envoy's threads learn of the drain one after the other, so a single look does not suffice."""
DRAIN_SECONDS = 120.0


@dataclass(frozen=True)
class Slot:
    """One replica, which may run or not.

    Attributes:
        number: its number, from 1.
        pid: its process; None if none runs.
        ready_pid: the process that was found to serve all models; None if none was.
        drains_since: when it began to drain, in seconds; None if it does not.
        quiet_since: since when it has worked on no request while it drained.
        is_stopping: whether its process was told to end.
    """

    number: int
    pid: int | None = None
    ready_pid: int | None = None
    drains_since: float | None = None
    quiet_since: float | None = None
    is_stopping: bool = False

    @property
    def is_serving(self) -> bool:
        """Whether it may get requests."""
        return self.pid is not None and self.ready_pid == self.pid and self.drains_since is None

    @property
    def state(self) -> str:
        """What it does, in a word."""
        if self.pid is None:
            return "stopped"
        if self.is_stopping:
            return "stopping"
        if self.drains_since is not None:
            return "draining"
        return "serving" if self.is_serving else "loading"


def members_of(slots: Iterable[Slot]) -> Members:
    """Return which replicas get requests, and which only end those that they have."""
    running = [slot for slot in slots if slot.pid is not None]
    return Members(
        [slot.number for slot in running if slot.is_serving],
        [slot.number for slot in running if slot.state == "draining"],
    )


def change_drains(slots: Iterable[Slot], wanted: int, now: float) -> tuple[Slot, ...]:
    """Return the replicas after those begin to drain that are not wanted, and others end it.

    A replica that is wanted again was told of no release meanwhile, so it must be found ready anew.

    Args:
        slots: the replicas.
        wanted: how many should run: those with the numbers up to this.
        now: seconds of a clock that only goes forward.
    """
    found = tuple(slots)
    stays = any(slot.is_serving for slot in found if slot.number <= wanted)
    return tuple(_change_drain(slot, wanted, now, stays=stays) for slot in found)


def _change_drain(slot: Slot, wanted: int, now: float, *, stays: bool) -> Slot:
    if slot.pid is None:
        return Slot(slot.number)
    if slot.number <= wanted:
        is_back = slot.drains_since is not None and not slot.is_stopping
        return Slot(slot.number, slot.pid) if is_back else slot
    may_go = stays or not slot.is_serving
    if slot.drains_since is None and may_go:
        return replace(slot, drains_since=now, quiet_since=None)
    return slot


def note_requests(
    slots: Iterable[Slot], in_flight: Mapping[int, int] | None, now: float
) -> tuple[Slot, ...]:
    """Return the replicas with when those that drain became quiet.

    Args:
        slots: the replicas.
        in_flight: the requests that each works on; None if that is not known.
        now: seconds of the same clock.
    """
    return tuple(
        replace(slot, quiet_since=_quiet_since(slot, in_flight, now))
        if slot.drains_since is not None
        else slot
        for slot in slots
    )


def _quiet_since(slot: Slot, in_flight: Mapping[int, int] | None, now: float) -> float | None:
    if in_flight is None or in_flight.get(slot.number, 0):
        return None
    return now if slot.quiet_since is None else slot.quiet_since


def has_drained(slot: Slot, now: float) -> bool:
    """Return whether a replica's process may end now."""
    if slot.drains_since is None or slot.is_stopping:
        return False
    is_quiet = slot.quiet_since is not None and now - slot.quiet_since >= QUIET_SECONDS
    return is_quiet or now - slot.drains_since >= DRAIN_SECONDS


def fault_of_memory(number: int, need: int, free: int) -> str:
    """Return why a replica does not fit into the machine's memory; empty if it does.

    Args:
        number: the replica.
        need: bytes of the largest replica that runs; 0 if none does.
        free: bytes that the machine has available.
    """
    if need <= free:
        return ""
    return (
        f"replica {number} does not start, because it does not fit into the memory: it needs about "
        f"{need / 2**30:.1f} GiB, as another replica has, and {free / 2**30:.1f} GiB are free"
    )
