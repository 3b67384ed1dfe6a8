"""The events of a training run, and the actor that stores them on their way to the driver.

The actor's process imports this module only: importing Ray Train would take it 2 s of a core.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reported:
    """All workers reported metrics, which are the same on all ranks."""

    metrics: dict[str, Any]


@dataclass(frozen=True)
class WorkersFailed:
    """Workers died or raised an error. Ray Train restarts them unless `max_failures` is reached.

    Attributes:
        causes: error message by rank.
    """

    causes: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resumed:
    """Training resumed after a failure.

    Attributes:
        done: number of epochs or steps in the checkpoint; 0 if training restarted from the
            beginning.
    """

    done: int


TrainEvent = Reported | WorkersFailed | Resumed


class EventLog:
    """Ray actor that stores events between Ray Train's controller and the driver."""

    def __init__(self) -> None:
        self.waiting: list[TrainEvent] = []

    def add(self, event: TrainEvent) -> None:
        """Store an event."""
        self.waiting.append(event)

    def take(self) -> list[TrainEvent]:
        """Return the events since the last call, and forget them."""
        taken, self.waiting = self.waiting, []
        return taken
