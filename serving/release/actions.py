"""What a release can do to the model repository, the servers, the registry and its own table.

`millrace.serving.release.plan` returns them in order, `millrace.serving.release.reconcile` carries
them out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.release_state import DesiredVersion, Kind
from millrace.serving.release.version_tags import Tags
from millrace.serving.rollout.rollout import Split


@dataclass(frozen=True)
class Stage:
    """Fetch a version, check its digest, and publish its folder in the model repository."""

    model: str
    version: int


@dataclass(frozen=True)
class Verify:
    """Check a version against what its pipeline requires of a champion."""

    model: str
    version: int
    previous: int | None


@dataclass(frozen=True)
class Validate:
    """Load a version where no client reaches it, and compare its answers with its certificate."""

    model: str
    version: int
    endpoint: Endpoint


@dataclass(frozen=True)
class Switch:
    """Make `version` the one that answers requests which name none.

    Attributes:
        model: the model.
        version: the version wanted.
        endpoint: the replica.
        keep: versions to keep loaded beside it, all of them lower.
        previous: the version that answers now, or None.
        anew: whether to load it even if the server thinks that it has it.
    """

    model: str
    version: int
    endpoint: Endpoint
    keep: tuple[int, ...] = ()
    previous: int | None = None
    anew: bool = False


@dataclass(frozen=True)
class StartSplit:
    """Let the splitter share requests out between the live version and another.

    Attributes:
        model: the model.
        version: the version on trial.
        split: the step.
        endpoint: the replica.
        anew: whether to load both versions even if the server thinks that it has them.
    """

    model: str
    version: int
    split: Split
    endpoint: Endpoint
    anew: bool = False


@dataclass(frozen=True)
class StopSplit:
    """Unload what the splitter called, on a replica that serves a version directly again."""

    model: str
    endpoint: Endpoint


@dataclass(frozen=True)
class Unload:
    """Stop serving a model on a replica."""

    model: str
    endpoint: Endpoint
    previous: int


@dataclass(frozen=True)
class CleanUp:
    """Remove what an interrupted trial or a rollout left: on replicas, and its folder on disk.

    Attributes:
        model: the model that was tried.
        name: under which it was.
        endpoints: the replicas that have it loaded.
    """

    model: str
    name: str
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True)
class Record:
    """Write an event into the release table."""

    model: str
    kind: Kind
    wish: DesiredVersion
    previous: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Retire:
    """Remove a version from the model repository that no replica has loaded."""

    model: str
    version: int


@dataclass(frozen=True)
class Tag:
    """Write what is real into the registry: these tags of a version; None removes one."""

    model: str
    version: int
    tags: Tags


Action = (
    Stage
    | Verify
    | Validate
    | Switch
    | StartSplit
    | StopSplit
    | Unload
    | CleanUp
    | Record
    | Retire
    | Tag
)


def of_model(actions: Sequence[Action], model: str) -> tuple[Action, ...]:
    """Return the actions of one model."""
    return tuple(action for action in actions if action.model == model)


def in_words(action: Action) -> str:
    """Return an action in a few words, the same for the same thing to do."""
    version = getattr(action, "version", None)
    step = f"{action.split.weight_percent:g}%" if isinstance(action, StartSplit) else None
    verb = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(action).__name__).lower()
    words = (verb, action.model, version and f"version {version}", step)
    return one_line(" ".join(word for word in words if word))
