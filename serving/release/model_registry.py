"""The methods of the model registry that a release needs, as a protocol."""

from collections.abc import Mapping
from typing import Protocol

from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.release_state import DesiredVersion, Release
from millrace.serving.release.version_check import VersionCheck
from millrace.serving.release.version_tags import Tags
from millrace.serving.triton.version_folder import Artifact


class ModelRegistry(Protocol):
    """The model registry, as a release uses it."""

    def desired_versions(self, model: str | None = None) -> Mapping[str, DesiredVersion]:
        """Return the champion version of every model, or of one model, with its tags.

        The digest is empty if another tool registered the version.

        Raises:
            TransientError: the registry does not answer.
        """

    def describe_promotion(self, model: str) -> str:
        """Return how a version of a model becomes champion: what a user does next."""

    def tags(self, model: str, version: int) -> Mapping[str, str] | None:
        """Return the tags of a version; None if it was deleted."""

    def fetch(self, model: str, version: int) -> Artifact:
        """Download a version, and check its digest."""

    def verify(self, model: str, version: int, previous: int | None) -> None:
        """Raise unless the version meets its pipeline's requirements for a champion."""

    def version_check(self, model: str, version: int) -> VersionCheck:
        """Return the check of the version's answers."""

    def rollout(self, model: str, version: int) -> RolloutSpec:
        """Return how the version is rolled out."""

    def write_tags(self, model: str, version: int, tags: Tags) -> None:
        """Set tags of a version; a value of None removes the tag."""

    def report(self, release: Release) -> None:
        """Show an event and its evidence in the registry."""
