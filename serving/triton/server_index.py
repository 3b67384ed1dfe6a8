"""What a Triton server says that it has loaded, as plain values."""

from collections.abc import Iterable
from dataclasses import dataclass

READY = "READY"
UNHEALTHY = "is not healthy"
"""What Triton says of a Python-based backend whose process is gone."""


@dataclass(frozen=True)
class LoadedModel:
    """One entry of a server's repository index.

    Attributes:
        name: the model.
        version: the version, or None for a model on disk that was never loaded.
        state: READY, LOADING, UNLOADING, UNAVAILABLE or UNKNOWN.
        reason: why it is not ready, in Triton's words.
    """

    name: str
    version: int | None
    state: str
    reason: str = ""

    @property
    def is_loaded(self) -> bool:
        """Whether it takes memory: Triton goes on listing what it has unloaded."""
        return self.version is not None and self.state in (READY, "LOADING", "UNLOADING")


def ready_versions(index: Iterable[LoadedModel], model: str) -> tuple[int, ...]:
    """Return the versions of a model that answer requests, ascending."""
    return tuple(
        sorted(
            entry.version
            for entry in index
            if entry.name == model and entry.state == READY and entry.version is not None
        )
    )


def live_version(index: Iterable[LoadedModel], model: str) -> int | None:
    """Return the version that answers a request which names none: the highest that is ready."""
    return max(ready_versions(index, model), default=None)
