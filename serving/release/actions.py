"""The actions of a release on model repository, servers, registry and release table.

`millrace.serving.release.plan` returns them in order, and `millrace.serving.release.apply` carries
them out.
"""

import re
from dataclasses import dataclass

from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.release_state import DesiredVersion, Kind
from millrace.serving.release.version_tags import Tags
from millrace.serving.rollout.rollout import Split


@dataclass(frozen=True)
class Action:
    """One action on a model."""

    model: str


@dataclass(frozen=True)
class VersionAction(Action):
    """One action on a version of a model."""

    version: int


@dataclass(frozen=True)
class Stage(VersionAction):
    """Fetch a version, check its digest, and publish its folder in the model repository."""


@dataclass(frozen=True)
class Verify(VersionAction):
    """Check a version against its pipeline's requirements for a champion."""

    previous: int | None


@dataclass(frozen=True)
class Validate(VersionAction):
    """Load a version under a name that no client knows, and check its answers and its latency."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Switch(VersionAction):
    """Make a version live: it answers the requests that name no version.

    Attributes:
        model: the model.
        version: the new live version.
        endpoint: the replica.
        keep: lower versions to keep loaded beside it.
        previous: the version that is live before the switch; None if no version is live.
        force_reload: whether to load the version even if the server's index lists it as loaded.
    """

    endpoint: Endpoint
    keep: tuple[int, ...] = ()
    previous: int | None = None
    force_reload: bool = False


@dataclass(frozen=True)
class StartSplit(VersionAction):
    """Split the requests between the live version and another.

    Attributes:
        model: the model.
        version: the candidate.
        split: the step of the rollout.
        endpoint: the replica.
        force_reload: whether to load both versions even if the server's index lists them as loaded.
    """

    split: Split
    endpoint: Endpoint
    force_reload: bool = False


@dataclass(frozen=True)
class StopSplit(Action):
    """Unload the helper model of a split, on a replica that serves one version directly again."""

    endpoint: Endpoint


@dataclass(frozen=True)
class StartFront(VersionAction):
    """Serve a version by the names of its columns, beside its tensors.

    Attributes:
        model: the model.
        version: the version, which is loaded.
        endpoint: the replica.
        force_reload: whether to load it even if the server's index lists it as loaded.
    """

    endpoint: Endpoint
    force_reload: bool = False


@dataclass(frozen=True)
class StopFront(Action):
    """Stop serving a model by the names of its columns, on a replica."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Unload(Action):
    """Stop serving a model on a replica."""

    endpoint: Endpoint
    previous: int


@dataclass(frozen=True)
class CleanUp(Action):
    """Remove a helper model that an interrupted trial or a rollout left behind.

    Attributes:
        model: the model that the helper model belongs to.
        name: name of the helper model.
        endpoints: the replicas that have it loaded.
    """

    name: str
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True)
class Record(Action):
    """Append an event about a version to the release table."""

    kind: Kind
    desired: DesiredVersion
    previous: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Retire(VersionAction):
    """Remove from the model repository a version that no replica has loaded."""


@dataclass(frozen=True)
class Tag(VersionAction):
    """Set tags of a version in the registry; a value of None removes the tag."""

    tags: Tags


def describe_action(action: Action) -> str:
    """Return a short description of an action; equal actions have equal descriptions."""
    step = f"{action.split.weight_percent:g}%" if isinstance(action, StartSplit) else None
    version = f"version {action.version}" if isinstance(action, VersionAction) else None
    verb = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(action).__name__).lower()
    words = (verb, action.model, version, step)
    return one_line(" ".join(word for word in words if word))
