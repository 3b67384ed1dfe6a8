"""What the replicas of Triton serve, and how much load they have."""

from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.models.common.installation import Installation
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.release.joining import State, look_at
from millrace.tasks.release import MlflowRegistry, observer_of


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
