"""What the actors of a job have done, added up while they work.

It imports neither Ray Data nor pyarrow: a process that only adds would take a second of a core to
begin, while the actors begin as well.
"""

from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serving.batch.throughput import Work


@dataclass
class Told:
    """What one actor has done.

    Attributes:
        opened: seconds to open the model.
        busy: seconds in the model.
        work: what it answered.
    """

    opened: float = 0.0
    busy: float = 0.0
    work: Work = field(default_factory=Work)


class Meter:
    """Adds up what the actors tell; an actor of Ray itself."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}

    def opened(self, actor: str, seconds: float) -> None:
        """Take that an actor has opened its model."""
        self._told.setdefault(actor, Told()).opened = seconds

    def add(self, actor: str, seconds: float, work: Work) -> None:
        """Take what an actor has done in one call."""
        told = self._told.setdefault(actor, Told())
        told.busy += seconds
        told.work += work

    def told(self) -> dict[str, Told]:
        """Return what each actor has done."""
        return self._told


def meter() -> Any:
    """Start a meter, which takes no CPU of those that the job is given.

    It lives and dies with the node of the driver: what it has added up is nowhere else.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Meter).options(num_cpus=0, scheduling_strategy=here).remote()
