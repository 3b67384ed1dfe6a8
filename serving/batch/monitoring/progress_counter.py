"""What the actors of jobs have done, added up while they work.

It imports neither Ray Data nor pyarrow: a process that only adds would take a second of a core to
begin, while the actors begin as well.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.serving.batch.monitoring.throughput import Work


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


class Adder:
    """Adds up what the actors of all runs of a driver tell; an actor of Ray itself."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Told]] = {}

    def opened(self, run: str, actor: str, seconds: float) -> None:
        """Take that an actor has opened its model."""
        self._of(run, actor).opened = seconds

    def add(self, run: str, actor: str, seconds: float, work: Work) -> None:
        """Take what an actor has done in one call."""
        told = self._of(run, actor)
        told.busy += seconds
        told.work += work

    def told(self, run: str) -> dict[str, Told]:
        """Return what each actor of a run has done."""
        return self._told.get(run, {})

    def forget(self, run: str) -> None:
        """Keep nothing of a run."""
        self._told.pop(run, None)

    def _of(self, run: str, actor: str) -> Told:
        return self._told.setdefault(run, {}).setdefault(actor, Told())


@dataclass(frozen=True)
class Meter:
    """The way of one run's actors, and of its driver, to the adder.

    Attributes:
        adder: the handle.
        run: its id.
    """

    adder: Any
    run: str

    def opened(self, actor: str, seconds: float) -> None:
        """Tell that an actor has opened its model."""
        self.adder.opened.remote(self.run, actor, seconds)

    def add(self, actor: str, seconds: float, work: Work) -> None:
        """Tell what an actor has done in one call."""
        self.adder.add.remote(self.run, actor, seconds, work)

    def told(self) -> dict[str, Told]:
        """Return what each actor has done.

        Raises:
            RayError: the adder does not answer.
        """
        told: dict[str, Told] = ray.get(self.adder.told.remote(self.run))
        return told

    def forget(self) -> None:
        """Keep nothing of the run."""
        self.adder.forget.remote(self.run)


_adders: dict[tuple[str, str], Any] = {}
"""The one of this driver, by its node and its job of Ray."""


def meter() -> Meter:
    """Return the meter of one run of a job.

    All runs of a driver have one adder: its process would begin while the actors begin, and on two
    cores one of those would wait for it. It takes no CPU of those that a job is given, and lives
    and dies with the node of the driver: what it has added up is nowhere else.
    """
    context = ray.get_runtime_context()
    node, driver = context.get_node_id(), context.get_job_id()
    if (node, driver) not in _adders:
        _adders.clear()  # of a Ray that this process was connected to before
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        _adders[node, driver] = ray.remote(Adder).options(**options).remote()
    return Meter(_adders[node, driver], uuid4().hex)
