"""What a release asks of the registry: who is wanted, what it must answer, and where to write."""

from collections.abc import Mapping
from typing import Protocol

from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.release_state import DesiredVersion, Release
from millrace.serving.release.version_check import Expected
from millrace.serving.release.version_tags import Tags
from millrace.serving.triton.version_folder import Artifact


class ModelRegistry(Protocol):
    """The registry's side of a release."""

    def wishes(self, model: str | None = None) -> Mapping[str, DesiredVersion]:
        """Return the champion of each model or of one; without a digest if we did not register it.

        Raises:
            TransientError: the registry does not answer.
        """
        ...

    def tags(self, model: str, version: int) -> Mapping[str, str] | None:
        """Return the tags of a version; None if it was deleted."""
        ...

    def fetch(self, model: str, version: int) -> Artifact:
        """Bring a version to this machine, its digest checked."""
        ...

    def verify(self, model: str, version: int, previous: int | None) -> None:
        """Raise unless the version is what its pipeline requires of a champion."""
        ...

    def expected(self, model: str, version: int) -> Expected:
        """Return what the version must answer."""
        ...

    def rollout(self, model: str, version: int) -> RolloutSpec:
        """Return how the version comes to all traffic."""
        ...

    def write(self, model: str, version: int, tags: Tags) -> None:
        """Set tags of a version; None removes one."""
        ...

    def tell(self, release: Release) -> None:
        """Keep the evidence of an event where people look for it."""
        ...
