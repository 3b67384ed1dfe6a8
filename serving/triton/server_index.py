"""The repository index of a Triton server as plain values, and the names of helper models.

A helper model is one that Millrace puts into the model repository for a while, to validate a
version or to split traffic. No client knows its name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

READY = "READY"
UNHEALTHY = "is not healthy"
"""In Triton's reason for a model of a Python-based backend whose process is gone."""
ARMS = ".arms"
"""Suffix of the model that has both versions of a rollout loaded."""
TRIAL = ".trial-"
"""In the name of a model that is loaded only to validate a version."""


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
        """Whether it takes memory: Triton also lists models that it has unloaded."""
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


def is_helper_model(name: str) -> bool:
    """Whether a name is that of a helper model."""
    return TRIAL in name or name.endswith(ARMS)


def owner_of(name: str) -> str:
    """Return the model that a helper model belongs to; any other name is returned as it is."""
    return name.partition(TRIAL)[0].removesuffix(ARMS)
