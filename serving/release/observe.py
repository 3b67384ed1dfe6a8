"""Observe the registry, the release table, the disk and every server."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from millrace.serving.release.release_state import DesiredVersion, ReleaseState, derive_state
from millrace.serving.rollout import splitting
from millrace.serving.rollout.judge import Counts
from millrace.serving.rollout.rollout import Split, decide_move
from millrace.serving.rollout.split_metrics import count_step, read_counters
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.column_front import is_answering, refused_fronts
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import (
    COLUMNS,
    LoadedModel,
    live_version,
    owner_of,
    ready_versions,
)
from millrace.serving.triton.version_config import PROFILE

log = logging.getLogger("millrace")

ANSWER_SECONDS = 5.0
INDEX_SECONDS = 3.0
"""Timeout of reading a server's index: a frozen server delays each round of a release by this."""


@dataclass(frozen=True)
class Observer:
    """Observes the state that a plan is made from.

    Attributes:
        registry: the model registry.
        ledger: the release table.
        repository: the model repository that the servers read.
        endpoints: returns every server that runs now; replicas may come and go during a release.
        retry_refused_before: versions refused before this moment are tried again; None: no version.
        traces: folder for the traces of unexpected errors; None: write no traces.
    """

    registry: ModelRegistry
    ledger: Ledger
    repository: Repository
    endpoints: Callable[[], Sequence[Endpoint]]
    retry_refused_before: datetime | None = None
    traces: Path | None = None

    def observe(self, model: str | None = None) -> ClusterState:
        """Observe the registry, the release table, the disk and every replica.

        An error that concerns one model becomes a fault of that model, and affects no other.

        Args:
            model: observe only this model and its helper models; None: all models.

        Raises:
            TransientError: the release table cannot be read.
        """
        faults: dict[str, MillraceError] = {}
        events = self.ledger.by_model(model)
        states = {name: derive_state(releases) for name, releases in events.items()}
        champions, registry_error = self._fetch_champions(model)
        # another tool may have registered a model that we never served
        foreign = {m for m, desired in champions.items() if not desired.digest and m not in states}
        desired_versions = {m: desired for m, desired in champions.items() if m not in foreign}
        staged = self.repository.digests(model)
        replicas = tuple(
            self._observe_replica(endpoint, states, model, faults, desired_versions)
            for endpoint in self.endpoints()
        )
        now = time.time()
        policies: dict[str, Policy] = {}
        profiles: dict[str, str] = {}
        rollouts: dict[str, RolloutSpec] = {}
        for name, desired in desired_versions.items():
            if desired.version in staged.get(name, ()):
                with _record_fault(name, faults, self.traces):
                    policies[name] = self._policy(name, desired)
                    profiles[name] = self.repository.artifact(name, desired.version).profile
                    spec = self.registry.rollout(name, desired.version)
                    if spec.kind != "direct":
                        rollouts[name] = spec
        tags: dict[tuple[str, int], Mapping[str, str] | None] = {}
        if registry_error is None:
            for name in desired_versions.keys() | states.keys():
                with _record_fault(name, faults, self.traces):
                    tags |= self._tags(name, desired_versions.get(name), states.get(name))
        splits = dict(self._splits(staged))
        moves = {
            name: decide_move(split, rollouts[name], _count_split(split, replicas), now)
            for name, split in splits.items()
            if name in rollouts
        }
        return ClusterState(
            desired_versions=desired_versions,
            states=states,
            replicas=replicas,
            staged=staged,
            profiles=profiles,
            columns={name: self._named(name, staged[name]) for name in staged},
            refused_fronts=refused_fronts(self.repository, staged),
            foreign=foreign,
            policies=policies,
            tags=tags,
            rollouts=rollouts,
            splits=splits,
            moves=moves,
            now=now,
            retry_refused_before=self.retry_refused_before,
            faults=faults,
            registry_error=registry_error,
        )

    def _fetch_champions(
        self, model: str | None
    ) -> tuple[Mapping[str, DesiredVersion], WorkError | None]:
        """Return the champions, or why the registry does not answer."""
        try:
            return self.registry.desired_versions(model), None
        except WorkError as error:
            return {}, error

    def _observe_replica(
        self,
        endpoint: Endpoint,
        states: Mapping[str, ReleaseState],
        model: str | None,
        faults: dict[str, MillraceError],
        desired: Mapping[str, DesiredVersion],
    ) -> Replica:
        """Read the index of a replica, and send a probe to each version that should be live."""
        with TritonClient(endpoint, checks=True) as client:
            try:
                loaded = client.index(INDEX_SECONDS)
            except TransientError:
                return Replica(endpoint, None)
            index = tuple(each for each in loaded if model in (None, owner_of(each.name)))
            unresponsive = set()
            profiles = dict(_read_profiles(client, index, desired))
            for name, state in states.items():
                version = state.live_version
                if version is None or live_version(index, name) != version:
                    continue
                with _record_fault(name, faults, self.traces):
                    if not self._is_answering(client, name, version):
                        unresponsive.add(name)
                    if not self._has_live_front(
                        client, name, ready_versions(index, name + COLUMNS)
                    ):
                        unresponsive.add(name + COLUMNS)
        return Replica(endpoint, index, frozenset(unresponsive), profiles)

    def _is_answering(self, client: TritonClient, model: str, version: int) -> bool:
        try:
            artifact = self.repository.artifact(model, version)
            check = self.registry.version_check(model, version)
        except MillraceError:
            return True  # its files are gone, so there is no probe
        try:
            check.ping(client, model, artifact, version, ANSWER_SECONDS)
        except MillraceError as error:
            log.warning("%s version %s does not answer: %s", model, version, error.seen)
            return False
        return True

    def _has_live_front(self, client: TritonClient, model: str, fronts: tuple[int, ...]) -> bool:
        """Return whether the front step of a model answers, or there is none."""
        if not fronts:
            return True
        try:
            columns = self.repository.artifact(model + COLUMNS, max(fronts)).columns
        except WorkError:
            return False  # its files are gone or damaged, and are linked anew
        return is_answering(model, json.loads(str(columns))["rows"], client)

    def _named(self, model: str, versions: Iterable[int]) -> frozenset[int]:
        """Return the versions that can be asked by the names of their columns."""
        found = set()
        for version in versions:
            with suppress(WorkError):
                if self.repository.artifact(model, version).columns is not None:
                    found.add(version)
        return frozenset(found)

    def _policy(self, model: str, desired: DesiredVersion) -> Policy:
        serving = self.repository.artifact(model, desired.version).serving
        quorum = None if serving.quorum == "all" else serving.quorum
        return Policy(quorum, serving.keep_versions)

    def _splits(self, staged: Iterable[str]) -> Iterator[tuple[str, Split]]:
        for model in staged:
            with suppress(MillraceError):  # a damaged configuration is replaced
                if (split := splitting.current(self.repository, model)) is not None:
                    yield model, split

    def _tags(
        self, model: str, desired: DesiredVersion | None, state: ReleaseState | None
    ) -> Mapping[tuple[str, int], Mapping[str, str] | None]:
        """Return the tags of each version of a model that a release may change."""
        state = state or ReleaseState()
        withdrawn = state.withdrawn.version if state.withdrawn else None
        tags: dict[tuple[str, int], Mapping[str, str] | None] = {}
        if desired is not None:
            tags[model, desired.version] = desired.tags
        for version in {state.live_version, state.superseded, withdrawn}:
            if version is not None and (model, version) not in tags:
                tags[model, version] = self.registry.tags(model, version)
        return tags


def _read_profiles(
    client: TritonClient, index: tuple[LoadedModel, ...], desired: Mapping[str, DesiredVersion]
) -> Iterator[tuple[str, str]]:
    """Yield each live model, and the digest of the serving profile that it is configured by."""
    for name, version in desired.items():
        if version.profile is not None and live_version(index, name) == version.version:
            with suppress(TransientError):  # it was unloaded meanwhile
                yield name, client.parameter(name, PROFILE)


@contextmanager
def _record_fault(
    model: str, faults: dict[str, MillraceError], traces: Path | None
) -> Iterator[None]:
    """Record an exception of the block as the fault of a model, unless it is transient.

    Raises:
        TransientError: a service went away, which is not the model's fault.
    """
    try:
        yield
    except TransientError:
        raise
    except Exception as error:
        faults[model] = unexpected_error(f"{one_line(model)} cannot be observed", error, traces)


def _count_split(split: Split, replicas: Iterable[Replica]) -> Counts:
    """Return the request counts of a rollout's step, added up over the replicas that answer."""
    counts = Counts()
    for replica in replicas:
        if replica.index is not None:
            with suppress(TransientError):
                counts += count_step(split, read_counters(replica.endpoint))
    return counts
