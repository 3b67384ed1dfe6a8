"""What the replicas of Triton serve, and how much load they have."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.models.common.installation import Installation
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.profile.record import bounds_of
from millrace.serving.release.joining import State, look_at
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import derive_state
from millrace.serving.replicas.files import Fleet
from millrace.serving.replicas.load import Capacity, Load, TrafficMeter, mix_load
from millrace.tasks.release import MlflowRegistry, observer_of

PROFILE_SECONDS = 30.0
"""How long it is remembered what is live, and what its serving profile says."""


@dataclass
class ReplicaLook:
    """Tells whether a replica serves everything that clients should get.

    Attributes:
        installation: returns the current installation.
    """

    installation: Callable[[], Installation]
    _registry: MlflowRegistry | None = field(default=None, init=False)

    def at(self, number: int) -> State:
        """Return what a replica serves."""
        installation = self.installation()
        if self._registry is None or self._registry.installation != installation:
            self._registry = MlflowRegistry(installation)
        endpoint = replica_endpoint(installation.triton[0], number)
        return look_at(observer_of(installation, self._registry), endpoint)


@dataclass
class ReplicaLoad:
    """Measures the load of the replicas, beside what their serving profiles say.

    Attributes:
        installation: returns the current installation.
        spec: how many replicas are allowed.
        clock: a monotonic clock, in seconds.
    """

    installation: Callable[[], Installation]
    spec: ReplicasSpec
    clock: Callable[[], float] = time.monotonic
    _meter: TrafficMeter = field(default_factory=TrafficMeter, init=False)
    _capacities: list[Capacity] = field(default_factory=list, init=False)
    _read_at: float = field(default=-math.inf, init=False)

    def measure(self, fleet: Fleet) -> Load | None:
        """Return the load; None if no live version has a serving profile that holds here."""
        installation, now = self.installation(), self.clock()
        if now - self._read_at >= PROFILE_SECONDS:
            self._capacities = capacities_of(installation)
            self._read_at = now
        if not self._capacities:
            return None
        guard = installation.triton[0]
        serving = [each.number for each in fleet.replicas if each.state == "serving"]
        traffic = self._meter.measure(replica_endpoint(guard, number) for number in serving)
        return mix_load(self.spec, self._capacities, traffic)


def capacities_of(installation: Installation) -> list[Capacity]:
    """Return the capacity of each live version that has a serving profile for this machine."""
    registry, found = MlflowRegistry(installation), []
    for model, releases in ledger_of(installation).by_model().items():
        version = derive_state(releases).live_version
        profile = None if version is None else registry.profile(model, version)
        if profile is not None:
            bound = max(bounds_of(profile.goal).values())
            found.append(Capacity(model, max(profile.capacity, profile.rate), bound))
    return found
