"""Says every few seconds how many replicas of Triton the load needs; the supervisor follows.

The decision is `millrace.serving.profile.scaler`: a function of the load, the capacity of the
serving profiles, the time in the queue and the clock. What a person writes into the file of the
wanted number meanwhile is kept for a quarter of an hour.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millrace.flows.console import WarnOnce, first_line, log
from millrace.flows.triggers.watch import PollingThread
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.profile.scaler import Decision, Memory, Seen, decide
from millrace.serving.replicas.files import Fleet, Wanted, read_fleet, read_wanted, write_wanted
from millrace.serving.replicas.load import Load

EVERY = 5.0
NO_PROFILE = (
    "no live version has a serving profile that holds on this machine, so nobody knows what a "
    "replica can take; `millrace profile FILE` makes one"
)


class ReplicaScaler(PollingThread):
    """A thread that decides how many replicas run.

    Args:
        run: the home's folder `run`.
        spec: how many are allowed, and whether to log only.
        measure: returns the load of the replicas; None if no live version has a profile.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        run: Path,
        spec: ReplicasSpec,
        measure: Callable[[Fleet], Load | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("replica scaler", EVERY)
        self._run, self._spec, self._measure, self._clock = run, spec, measure, clock
        self._memory = Memory()
        self._said: int | None = None
        self._warning = WarnOnce("cannot say how many replicas the load needs; retrying: %s")

    def check(self) -> float:
        """Decide once; return seconds until the next decision."""
        fleet = read_fleet(self._run)
        if fleet is None:
            return EVERY
        try:
            load = self._measure(fleet)
            self._write(self._decide(fleet, load), fleet)
        except Exception as error:  # the number stays as it is
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
        return EVERY

    def _decide(self, fleet: Fleet, load: Load | None) -> Decision:
        if load is None:
            self._memory = Memory()
            return Decision(self._spec.min, NO_PROFILE, self._memory)
        ready = sum(each.state == "serving" for each in fleet.replicas)
        seen = Seen(self._clock(), self._number(fleet), ready, load.rate, load.queue_ms)
        return decide(load.bounds, seen, self._memory)

    def _number(self, fleet: Fleet) -> int:
        """Return the wanted number; where nobody can read it, it is still the last one."""
        wanted = read_wanted(self._run)  # the supervisor may not have followed yet
        if wanted is not None:
            return wanted.replicas
        return fleet.wanted if self._memory.wanted is None else self._memory.wanted

    def _write(self, decision: Decision, fleet: Fleet) -> None:
        """Tell the supervisor; a dry run only says what it would tell."""
        self._memory = decision.memory
        number, needed = decision.replicas, None
        if self._spec.dry_run:
            number, needed = self._spec.min, decision.replicas
            self._memory = replace(decision.memory, wanted=number)
        if decision.replicas not in (fleet.wanted, self._said):
            what = "would run" if self._spec.dry_run else "run"
            log.info("%d replicas of Triton %s: %s", decision.replicas, what, decision.reason)
        self._said = decision.replicas
        write_wanted(self._run, Wanted(number, decision.reason, needed))
