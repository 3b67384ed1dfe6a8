"""The owner of the replicas of Triton: what the supervisor starts and stops, and the guard's lists.

`millrace.serving.replicas.fleet` decides; this module looks and acts. Nobody else writes the
guard's lists or starts a replica. It looks several times a second, so a list that was changed by
hand is restored, and a replica that died gets no more requests.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import psutil

from millrace.flows.console import WarnOnce
from millrace.flows.settings import Settings
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard import envoy_process, sockets
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.guard.in_flight import read_in_flight
from millrace.serving.replicas import files, fleet
from millrace.serving.replicas.fleet import Slot

FIT_SECONDS = 10.0
"""How long a replica that did not fit waits for the next try."""


class ReplicaOwner:
    """Decides with the supervisor which replicas run; the supervisor starts and ends processes.

    Args:
        settings: the home's settings.
        bounds: how many replicas are allowed.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        bounds: ReplicasSpec,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._bounds, self._clock = settings, bounds, clock
        self._installation, self._guard = settings.installation(), settings.local_triton
        self.slots = tuple(Slot(number) for number in range(1, bounds.max + 1))
        self.fault = ""
        self._fault_until = 0.0
        self._asked = bounds.min
        self._warning = WarnOnce("the lists of replicas cannot be written; retrying: %s")
        files.forget_fleet(settings.run)
        self._write()

    @property
    def wanted(self) -> int:
        """How many replicas should run: the last number that could be read.

        A file that is damaged or gone changes nothing until the scaler writes it anew.
        """
        wanted = files.read_wanted(self._settings.run)
        if wanted is not None:
            self._asked = wanted.replicas
        return min(max(self._asked, self._bounds.min), self._bounds.max)

    def step(self, pids: Mapping[int, int | None]) -> list[int]:
        """Look at the replicas, tell the guard, and return those whose processes are to end.

        Args:
            pids: the process of each replica; None where none runs.
        """
        now, run, wanted = self._clock(), self._settings.run, self.wanted
        seen = (
            replace(slot, pid=pids[slot.number], ready_pid=files.read_ready(run, slot.number))
            for slot in self.slots
        )
        slots = fleet.change_drains(seen, wanted, now)
        if all(slot.pid is not None for slot in slots[:wanted]):
            self.fault = ""
        for before, after in zip(self.slots, slots, strict=True):
            if before.drains_since is None and after.drains_since is not None:
                files.unmark_ready(run, after.number)
        if any(slot.drains_since is not None for slot in slots):
            slots = fleet.note_requests(slots, self._in_flight(), now)
        ending = [slot.number for slot in slots if fleet.has_drained(slot, now)]
        self.slots = tuple(replace(s, is_stopping=True) if s.number in ending else s for s in slots)
        self._write()
        return ending

    def may_start(self, number: int) -> bool:
        """Return whether a replica without a process should get one now."""
        if number > self.wanted:
            return False
        if self.fault and self._clock() < self._fault_until:
            return False
        pids = [slot.pid for slot in self.slots if slot.pid is not None]
        need = max(map(memory_of, pids), default=0)
        self.fault = fleet.fault_of_memory(number, need, psutil.virtual_memory().available)
        self._fault_until = self._clock() + FIT_SECONDS
        return not self.fault

    def _in_flight(self) -> Mapping[int, int] | None:
        by_socket = read_in_flight(self._settings.home, self._guard)
        if by_socket is None:
            return None
        return {
            slot.number: sum(by_socket.get(path, 0) for path in _sockets(self._guard, slot.number))
            for slot in self.slots
        }

    def _write(self) -> None:
        """Tell the guard which replicas get requests, and everybody else what runs.

        A full disk must not end the supervisor; the next look tries again.
        """
        wanted = self.wanted
        replicas = tuple(
            files.RunningReplica(slot.number, slot.pid, slot.state)
            for slot in self.slots
            if slot.number <= wanted or slot.pid is not None
        )
        port = self._guard.grpc_port
        try:
            members = fleet.members_of(self.slots)
            envoy_process.write_members(self._installation, self._guard, members)
            files.write_fleet(self._settings.run, files.Fleet(port, wanted, replicas, self.fault))
        except (WorkError, OSError) as error:
            self.fault = f"the lists of replicas cannot be written: {error}"
            self._warning.report(str(error))
        else:
            self._warning.report("")


def memory_of(pid: int) -> int:
    """Return the bytes that a server and its backends have in memory; 0 if it has ended."""
    try:
        server = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (server, *server.children(recursive=True)))
    except psutil.Error:
        return 0


def _sockets(guard: Endpoint, number: int) -> tuple[str, str]:
    own = replica_endpoint(guard, number)
    return sockets.http_socket(own), sockets.grpc_socket(own)
