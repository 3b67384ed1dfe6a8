"""The repository index of a Triton server as plain values, and the names of helper models.

Millrace puts a helper model into the model repository for a while, to validate a version or to
split traffic. Clients do not know the names of helper models, except that of the step which takes
the columns of a model by their names.
"""

from collections.abc import Iterable
from dataclasses import dataclass

READY = "READY"
UNHEALTHY = "is not healthy"
"""Part of Triton's error message for a Python-based backend whose process has died."""
ARMS = ".arms"
"""Suffix of the model that has both versions of a rollout loaded."""
COLUMNS = ".columns"
"""Suffix of the step in front of a model that takes its columns by their names."""
TRIAL = ".trial-"
"""Part of the name of a model that is loaded only to validate a version."""


@dataclass(frozen=True)
class LoadedModel:
    """One entry of a server's repository index.

    Attributes:
        name: the model's name.
        version: the version; None for a model on disk that was never loaded.
        state: READY, LOADING, UNLOADING, UNAVAILABLE or UNKNOWN.
        reason: why the version is not ready, in Triton's words.
    """

    name: str
    version: int | None
    state: str
    reason: str = ""

    @property
    def is_loaded(self) -> bool:
        """Whether the version uses memory. Triton also lists versions that it has unloaded."""
        return self.version is not None and self.state in (READY, "LOADING", "UNLOADING")


def ready_versions(index: Iterable[LoadedModel], model: str) -> tuple[int, ...]:
    """Return the versions of a model that answer requests, in ascending order."""
    return tuple(
        sorted(
            entry.version
            for entry in index
            if entry.name == model and entry.state == READY and entry.version is not None
        )
    )


def live_version(index: Iterable[LoadedModel], model: str) -> int | None:
    """Return the highest ready version, which answers requests without a version number."""
    return max(ready_versions(index, model), default=None)


def is_helper_model(name: str) -> bool:
    """Whether `name` is the name of a helper model."""
    return TRIAL in name or name.endswith((ARMS, COLUMNS))


def owner_of(name: str) -> str:
    """Return the model that a helper model belongs to; any other name is returned unchanged."""
    return name.partition(TRIAL)[0].removesuffix(ARMS).removesuffix(COLUMNS)
