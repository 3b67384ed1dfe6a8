"""Look at the registry, the release table, the disk and every server, and say what is there."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from millrace.models.common.errors import MillraceError, TransientError, WorkError, unexpected_error
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.cluster_state import ClusterState, Policy, Replica
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.model_registry import ModelRegistry
from millrace.serving.release.release_state import DesiredVersion, ReleaseState, standing_of
from millrace.serving.rollout import splitting
from millrace.serving.rollout.judge import Counts
from millrace.serving.rollout.rollout import Split, move
from millrace.serving.rollout.split_metrics import counted, read
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.names import owner_of
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import live_version

log = logging.getLogger("millrace")

ANSWER_SECONDS = 5.0
INDEX_SECONDS = 3.0
"""A server that is frozen holds a release up by this much in every round."""


@dataclass(frozen=True)
class Observer:
    """Where to look.

    Attributes:
        desk: the registry's side.
        ledger: the release table.
        repository: the model repository that the servers read.
        endpoints: every server.
        again_from: refusals before this moment are tried again; None keeps to them.
        traces: folder for the traces of faults that nobody expected; None keeps none.
    """

    desk: ModelRegistry
    ledger: Ledger
    repository: Repository
    endpoints: tuple[Endpoint, ...]
    again_from: datetime | None = None
    traces: Path | None = None

    def world(self, model: str | None = None) -> ClusterState:
        """Look at the registry, the table, the disk and every replica.

        What cannot be read of one model is that model's fault, and nobody else's.

        Args:
            model: the model to look at, with what was made of it for a while; None for all.

        Raises:
            TransientError: the release table cannot be read.
        """
        faults: dict[str, MillraceError] = {}
        events = self.ledger.by_model(model)
        standings = {each: standing_of(events[each]) for each in events}
        try:
            champions, away = self.desk.wishes(model), None
        except WorkError as error:
            champions, away = {}, error
        # A model that we never served may be another tool's.
        foreign = {m for m, wish in champions.items() if not wish.digest and m not in standings}
        wishes = {model: wish for model, wish in champions.items() if model not in foreign}
        staged = self.repository.digests(model)
        replicas = tuple(
            self._seen(endpoint, standings, model, faults) for endpoint in self.endpoints
        )
        now = time.time()
        policies: dict[str, Policy] = {}
        rollouts: dict[str, RolloutSpec] = {}
        for name, wish in wishes.items():
            if wish.version in staged.get(name, ()):
                with _own_fault(name, faults, self.traces):
                    policies[name] = self._policy(name, wish)
                    if (spec := self.desk.rollout(name, wish.version)).kind != "direct":
                        rollouts[name] = spec
        tags: dict[tuple[str, int], Mapping[str, str] | None] = {}
        for name in (wishes.keys() | standings.keys()) if away is None else ():
            with _own_fault(name, faults, self.traces):
                tags |= self._tags(name, wishes, standings)
        splits = dict(self._splits(staged))
        moves = {
            model: move(split, rollouts[model], _counts(split, replicas), now)
            for model, split in splits.items()
            if model in rollouts
        }
        return ClusterState(
            wishes=wishes,
            standings=standings,
            replicas=replicas,
            staged=staged,
            left_alone=foreign,
            policies=policies,
            tags=tags,
            rollouts=rollouts,
            splits=splits,
            moves=moves,
            now=now,
            again_from=self.again_from,
            faults=faults,
            registry_away=away,
        )

    def _seen(
        self,
        endpoint: Endpoint,
        standings: Mapping[str, ReleaseState],
        model: str | None,
        faults: dict[str, MillraceError],
    ) -> Replica:
        """Look at a replica, and ask what should be live there for one golden row."""
        with TritonClient(endpoint) as client:
            try:
                loaded = client.index(INDEX_SECONDS)
            except TransientError:
                return Replica(endpoint, None)
            index = tuple(each for each in loaded if model in (None, owner_of(each.name)))
            live = {
                model: standing.live.version
                for model, standing in standings.items()
                if standing.live and live_version(index, model) == standing.live.version
            }
            unwell = set()
            for name, version in live.items():
                with _own_fault(name, faults, self.traces):
                    if not self._answers(client, name, version):
                        unwell.add(name)
        return Replica(endpoint, index, frozenset(unwell))

    def _answers(self, client: TritonClient, model: str, version: int) -> bool:
        try:
            artifact = self.repository.artifact(model, version)
            expected = self.desk.expected(model, version)
        except MillraceError:
            return True  # its files are gone: there is nothing to ask it
        try:
            expected.ping(client, model, artifact, version, ANSWER_SECONDS)
        except MillraceError as error:
            log.warning("%s version %s does not answer: %s", model, version, error.seen)
            return False
        return True

    def _policy(self, model: str, wish: DesiredVersion) -> Policy:
        serving = self.repository.artifact(model, wish.version).serving
        quorum = None if serving.quorum == "all" else serving.quorum
        return Policy(quorum, serving.keep_versions)

    def _splits(self, staged: Iterable[str]) -> Iterator[tuple[str, Split]]:
        for model in staged:
            with suppress(MillraceError):  # a damaged configuration is written anew
                if (split := splitting.current(self.repository, model)) is not None:
                    yield model, split

    def _tags(
        self,
        model: str,
        wishes: Mapping[str, DesiredVersion],
        standings: Mapping[str, ReleaseState],
    ) -> Mapping[tuple[str, int], Mapping[str, str] | None]:
        """Return the tags of each version of a model that is concerned."""
        standing = standings.get(model, ReleaseState())
        versions = {wishes[model].version} if model in wishes else set()
        if standing.live is not None:
            versions.add(standing.live.version)
        if standing.superseded is not None:
            versions.add(standing.superseded)
        if standing.withdrawn is not None:
            versions.add(standing.withdrawn.version)
        return {(model, version): self.desk.tags(model, version) for version in versions}


@contextmanager
def _own_fault(model: str, faults: dict[str, MillraceError], traces: Path | None) -> Iterator[None]:
    """Keep what the block raises as the fault of its model; what passes ends the whole look.

    Raises:
        TransientError: a service went away meanwhile, which is the fault of no model.
    """
    try:
        yield
    except TransientError:
        raise
    except Exception as error:
        faults[model] = unexpected_error(f"{one_line(model)} cannot be looked at", error, traces)


def _counts(split: Split, replicas: Iterable[Replica]) -> Counts:
    """Return what was counted in a step of a rollout, on all replicas that answer."""
    counts = Counts()
    for replica in replicas:
        if replica.index is not None:
            with suppress(TransientError):
                counts += counted(split, read(replica.endpoint))
    return counts
