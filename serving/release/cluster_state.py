"""The desired and the actual state at one moment, from which a release is planned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Endpoint
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.rollout.rollout import Move, Split
from millrace.serving.triton.server_index import LoadedModel, live_version, ready_versions


@dataclass(frozen=True)
class Replica:
    """The state of one Triton server.

    Attributes:
        endpoint: the server's address.
        index: the models that the server has loaded; None if it does not answer.
        unresponsive: models that the index lists as ready but that do not answer, because Triton
            2.51 does not restart the process of a Python-based backend that was killed.
        profiles: digest of the serving profile that each live model is configured by, by model;
            empty for the settings of its pipeline file.
    """

    endpoint: Endpoint
    index: tuple[LoadedModel, ...] | None = ()
    unresponsive: frozenset[str] = frozenset()
    profiles: Mapping[str, str] = field(default_factory=dict)

    def live_version(self, model: str) -> int | None:
        """Return the version that answers requests without a version number; None if none does."""
        return live_version(self.index or (), model)

    def ready_versions(self, model: str) -> tuple[int, ...]:
        """Return the versions that answer requests, ascending."""
        return ready_versions(self.index or (), model)


@dataclass(frozen=True)
class Policy:
    """How one model is released.

    Attributes:
        quorum: number of replicas that must answer before any replica switches; None: all.
        keep_versions: number of versions that stay on disk; the live version and the one before it
            always stay.
    """

    quorum: int | None = 1
    keep_versions: int = 3


@dataclass(frozen=True)
class ClusterState:
    """The state from which a release is planned.

    Attributes:
        desired_versions: the champion of each model.
        states: the state that follows from the release events, by model.
        replicas: every Triton server.
        staged: the versions of each model that are complete on disk, with their digests.
        profiles: digest of the serving profile that the desired version of each model was staged
            with, by model; empty for the settings of its pipeline file.
        columns: the staged versions that can be asked by the names of their columns, by model.
        refused_fronts: the version whose front step a server refused, by model.
        foreign: models whose champion another tool registered; their loaded versions stay.
        policies: how each model is released, by model. Models without an entry have the default
            policy.
        tags: the tags that were read, by model and version; None for a deleted version.
        rollouts: the rollout settings of each model whose new version gets traffic in steps.
        splits: the running step of a rollout, by model.
        moves: the decision of the rollout's judge about the running step, by model.
        now: seconds since 1970.
        retry_refused_before: versions refused before this moment are tried again; None: no version.
        faults: why a model could not be observed, by model; such a model is left as it is.
        registry_error: why the registry does not answer; None if it does. Without the registry the
            desired versions are unknown, and the live versions stay.
    """

    desired_versions: Mapping[str, DesiredVersion]
    states: Mapping[str, ReleaseState]
    replicas: tuple[Replica, ...]
    staged: Mapping[str, Mapping[int, str]]
    profiles: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Collection[int]] = field(default_factory=dict)
    refused_fronts: Mapping[str, int] = field(default_factory=dict)
    foreign: Collection[str] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    tags: Mapping[tuple[str, int], Mapping[str, str] | None] = field(default_factory=dict)
    rollouts: Mapping[str, RolloutSpec] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)
    now: float = 0.0
    retry_refused_before: datetime | None = None
    faults: Mapping[str, MillraceError] = field(default_factory=dict)
    registry_error: MillraceError | None = None

    def state(self, model: str) -> ReleaseState:
        """Return the state of a model."""
        return self.states.get(model, ReleaseState())

    def policy(self, model: str) -> Policy:
        """Return how a model is released."""
        return self.policies.get(model, Policy())

    @property
    def reachable(self) -> tuple[Replica, ...]:
        """The replicas that answer."""
        return tuple(replica for replica in self.replicas if replica.index is not None)
