"""What is wanted and what is there, as one look saw it: all that a plan is made from."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Endpoint
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.release_state import DesiredVersion, ReleaseState
from millrace.serving.rollout.rollout import Move, Split
from millrace.serving.triton.server_index import LoadedModel


@dataclass(frozen=True)
class Replica:
    """One Triton server as it was seen.

    Attributes:
        endpoint: where it is.
        index: what it has loaded; None when it does not answer.
        unwell: models that it says are ready, and that do not answer: Triton 2.51 does not start
            the process of a Python-based backend again when it was killed.
    """

    endpoint: Endpoint
    index: tuple[LoadedModel, ...] | None = ()
    unwell: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Policy:
    """How one model is released.

    Attributes:
        quorum: replicas that must be there before any of them switches; None for all.
        keep_versions: versions that stay on disk, the live one and the one before it always.
    """

    quorum: int | None = 1
    keep_versions: int = 3


@dataclass(frozen=True)
class ClusterState:
    """All that the plan is made from.

    Attributes:
        wishes: the champion of each model.
        standings: what the release events say, by model.
        replicas: every Triton server.
        staged: the versions of each model that are whole on disk, and their digests.
        left_alone: models whose champion is not ours to load; what is loaded of them stays.
        policies: how each model is released, where it differs from the default.
        tags: the tags of versions that were read, by model and version; None of a version that
            was deleted, to which nothing can be written.
        rollouts: how a new version of a model comes to all traffic, where it does so in steps.
        splits: the step of a rollout that is on, by model.
        moves: what the judge says of it.
        now: seconds since 1970.
        again_from: refusals before this moment are tried again; None keeps to them.
        faults: why a model could not be looked at, by model: it is left as it is.
        registry_away: why the registry does not answer, where it does not: nothing is known of
            what is wanted, and what was live is what is to serve.
    """

    wishes: Mapping[str, DesiredVersion]
    standings: Mapping[str, ReleaseState]
    replicas: tuple[Replica, ...]
    staged: Mapping[str, Mapping[int, str]]
    left_alone: Collection[str] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    tags: Mapping[tuple[str, int], Mapping[str, str] | None] = field(default_factory=dict)
    rollouts: Mapping[str, RolloutSpec] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)
    now: float = 0.0
    again_from: datetime | None = None
    faults: Mapping[str, MillraceError] = field(default_factory=dict)
    registry_away: MillraceError | None = None

    def standing(self, model: str) -> ReleaseState:
        """Return where a model stands."""
        return self.standings.get(model, ReleaseState())

    def policy(self, model: str) -> Policy:
        """Return how a model is released."""
        return self.policies.get(model, Policy())

    @property
    def reachable(self) -> tuple[Replica, ...]:
        """The replicas that answer."""
        return tuple(replica for replica in self.replicas if replica.index is not None)
