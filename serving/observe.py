"""Look at the registry, the release table, the disk and every server, and say what is there."""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from models.errors import MillraceError, TransientError
from models.places import Endpoint
from models.specs.rollout import RolloutSpec
from serving import splitting
from serving.client import TritonClient
from serving.desk import Desk
from serving.index import live_version
from serving.judge import Counts
from serving.ledger import Ledger
from serving.names import owner_of
from serving.repository import Repository
from serving.rollout import Split, move
from serving.split_metrics import counted, read
from serving.standing import Standing, Wish, standing_of
from serving.world import Policy, Replica, World

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
    """

    desk: Desk
    ledger: Ledger
    repository: Repository
    endpoints: tuple[Endpoint, ...]
    again_from: datetime | None = None

    def world(self, model: str | None = None) -> World:
        """Look at the registry, the table, the disk and every replica.

        Args:
            model: the model to look at, with what was made of it for a while; None for all.
        """
        events = self.ledger.by_model(model)
        standings = {each: standing_of(events[each]) for each in events}
        try:
            champions, away = self.desk.wishes(model), None
        except TransientError as error:
            champions, away = {}, error
        # A model that we never served may be another tool's.
        foreign = {m for m, wish in champions.items() if not wish.digest and m not in standings}
        wishes = {model: wish for model, wish in champions.items() if model not in foreign}
        staged = self.repository.digests(model)
        replicas = tuple(self._seen(endpoint, standings, model) for endpoint in self.endpoints)
        now = time.time()
        rollouts = dict(self._rollouts(wishes, staged))
        splits = dict(self._splits(staged))
        moves = {
            model: move(split, rollouts[model], _counts(split, replicas), now)
            for model, split in splits.items()
            if model in rollouts
        }
        return World(
            wishes=wishes,
            standings=standings,
            replicas=replicas,
            staged=staged,
            left_alone=foreign,
            policies=dict(self._policies(wishes, staged)),
            tags={} if away else dict(self._tags(wishes, standings)),
            rollouts=rollouts,
            splits=splits,
            moves=moves,
            now=now,
            again_from=self.again_from,
            registry_away=away,
        )

    def _seen(
        self, endpoint: Endpoint, standings: Mapping[str, Standing], model: str | None
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
            unwell = {m for m, version in live.items() if not self._answers(client, m, version)}
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

    def _policies(
        self, wishes: Mapping[str, Wish], staged: Mapping[str, Iterable[int]]
    ) -> Iterator[tuple[str, Policy]]:
        for model, wish in wishes.items():
            if wish.version in staged.get(model, ()):
                serving = self.repository.artifact(model, wish.version).serving
                quorum = None if serving.quorum == "all" else serving.quorum
                yield model, Policy(quorum, serving.keep_versions)

    def _rollouts(
        self, wishes: Mapping[str, Wish], staged: Mapping[str, Collection[int]]
    ) -> Iterator[tuple[str, RolloutSpec]]:
        for model, wish in wishes.items():
            if wish.version in staged.get(model, ()):
                spec = self.desk.rollout(model, wish.version)
                if spec.kind != "direct":
                    yield model, spec

    def _splits(self, staged: Iterable[str]) -> Iterator[tuple[str, Split]]:
        for model in staged:
            with suppress(MillraceError):  # a damaged configuration is written anew
                if (split := splitting.current(self.repository, model)) is not None:
                    yield model, split

    def _tags(
        self, wishes: Mapping[str, Wish], standings: Mapping[str, Standing]
    ) -> Iterator[tuple[tuple[str, int], Mapping[str, str] | None]]:
        for model in wishes.keys() | standings.keys():
            standing = standings.get(model, Standing())
            versions = {wishes[model].version} if model in wishes else set()
            if standing.live is not None:
                versions.add(standing.live.version)
            if standing.superseded is not None:
                versions.add(standing.superseded)
            if standing.withdrawn is not None:
                versions.add(standing.withdrawn.version)
            for version in versions:
                yield (model, version), self.desk.tags(model, version)


def _counts(split: Split, replicas: Iterable[Replica]) -> Counts:
    """Return what was counted in a step of a rollout, on all replicas that answer."""
    counts = Counts()
    for replica in replicas:
        if replica.index is not None:
            with suppress(TransientError):
                counts += counted(split, read(replica.endpoint))
    return counts
