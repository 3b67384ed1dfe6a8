"""Carry out the plan of one model's release, action by action.

`millrace.serving.release.plan` decides which actions are due, and this module runs them. A change
on one Triton replica does not reach the others, so each replica gets its own action. If a release
is interrupted, the next one continues from the state that it observes.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import singledispatchmethod
from threading import Event

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.external_errors import is_disk_error
from millrace.models.common.installation import Endpoint
from millrace.serving.release import trial
from millrace.serving.release.actions import (
    Action,
    CleanUp,
    Record,
    Retire,
    Stage,
    StartFront,
    StartSplit,
    StopFront,
    StopSplit,
    Switch,
    Tag,
    Unload,
    Validate,
    Verify,
    describe_action,
)
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome, build_outcome, refused_error, summarize_error
from millrace.serving.release.plan import plan
from millrace.serving.release.release_state import DesiredVersion, Kind, Release
from millrace.serving.release.trial import require_backend
from millrace.serving.rollout import splitting
from millrace.serving.triton import column_front
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.load_version import load_version, unload_model
from millrace.serving.triton.server_index import COLUMNS

log = logging.getLogger("millrace")

MAX_ROUNDS = 12
"""Largest number of rounds of one release. To try a refused version again takes six rounds: it is
withdrawn, staged, validated and recorded, the previous version is loaded, and tags are set.
"""


@dataclass(frozen=True)
class Request:
    """The request for a release.

    Attributes:
        asked_by: who or what requested it, for the release table.
        link: a link to more about the request; may be empty.
        retry_refused_before: versions refused before this moment are tried again; None: no version.
    """

    asked_by: str
    link: str = ""
    retry_refused_before: datetime | None = None


class ModelRelease:
    """One release of one model; only one may run for a model at a time.

    Args:
        model: the model.
        observer: reads the state of the registry, the release table, the disk and the replicas.
        request: who requested the release, and which refused versions to try again.
        stop: once it is set, no further action begins.
    """

    def __init__(self, model: str, observer: Observer, request: Request, stop: Event) -> None:
        self.model, self.request = model, request
        self.cluster = _observe(observer, model)
        self._observer, self._stop = observer, stop
        self._registry, self._ledger = observer.registry, observer.ledger
        self._repository = observer.repository
        self._desired_at_start = self._desired
        self._began = time.perf_counter()
        self._failure: MillraceError | None = None
        self._refusal: MillraceError | None = None
        self._recorded = False
        self._failed_cleanups: set[str] = set()
        self._failed_fronts: set[tuple[Endpoint, int]] = set()
        self._evidence_by_version: dict[int, Mapping[str, object]] = {}
        self._changes: dict[Endpoint, tuple[int | None, float]] = {}

    @property
    def _desired(self) -> DesiredVersion | None:
        """The version that the alias pointed to when the cluster was last observed."""
        return self.cluster.desired_versions.get(self.model)

    def carry_out(self) -> None:
        """Plan, act and observe again, until no action is due or an error ends the release."""
        for _ in range(MAX_ROUNDS):
            actions = self._plan()
            if not actions or self._failure or self._stop.is_set():
                return
            self._run_actions(actions)
            try:
                self.cluster = _observe(self._observer, self.model)
            except MillraceError as error:  # the changes so far are still reported
                self._failure = self._failure or error
                return
        if actions := self._plan():
            self._failure = self._failure or WorkError(
                f"the release of {self.model} did not converge",
                seen=f"after {MAX_ROUNDS} rounds of planning and acting, this action is still due: "
                f"{describe_action(actions[0])}",
                hint="see Triton's log; the next `millrace release` goes on from here",
            )

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcome on each replica.

        There is no outcome if no version has the alias, nothing changed and nothing failed.
        """
        error = self._failure or self._refusal or self.cluster.registry_error
        if self.model not in self.cluster.desired_versions and not self._changes and error is None:
            return ()
        return tuple(self._build_outcome(replica, error) for replica in self.cluster.replicas)

    def missed(self) -> tuple[Endpoint, ...]:
        """Return the replicas that did not answer, if this release changed others."""
        away = (each.endpoint for each in self.cluster.replicas if each.index is None)
        return tuple(away) if self._changes else ()

    def _build_outcome(self, replica: Replica, error: MillraceError | None) -> Outcome:
        outcome = build_outcome(self.cluster, self.model, replica, error, is_new=self._recorded)
        if replica.endpoint not in self._changes:
            return outcome
        previous, seconds = self._changes[replica.endpoint]
        return replace(outcome, previous=previous, changed=True, seconds=seconds)

    def _plan(self) -> list[Action]:
        return [action for action in plan(self.cluster) if not self._has_failed(action)]

    def _has_failed(self, action: Action) -> bool:
        """Whether an action without which the release goes on has failed in this release."""
        if isinstance(action, StartFront):
            return (action.endpoint, action.version) in self._failed_fronts
        return isinstance(action, CleanUp) and action.name in self._failed_cleanups

    def _run_actions(self, actions: Sequence[Action]) -> None:
        """Run the planned actions until one fails."""
        for action in actions:
            if self._stop.is_set():
                return
            try:
                self._run(action)
                if isinstance(action, Validate) and not self._is_still_desired():
                    return  # the alias may have moved during the trial
            except (MillraceError, OSError) as raised:
                error = raised if isinstance(raised, MillraceError) else _disk_error(action, raised)
                if not isinstance(action, CleanUp):
                    self._handle_error(action, error)
                    return
                self._failed_cleanups.add(action.name)  # the next release tries again
                log.warning("could not remove the helper model %s: %s", action.name, error.what)

    def _handle_error(self, action: Action, error: MillraceError) -> None:
        """Record a refusal if the version is at fault.

        After any other error, the next release tries the version again. An error of a replica that
        was stopped meanwhile is none: the next round goes on without it.
        """
        if self._has_left(action):
            return
        state, desired = self.cluster.state(self.model), self._desired
        if isinstance(action, Record):
            desired = action.desired
        can_refuse = isinstance(action, Stage | Verify | Validate | StartSplit | Switch | Record)
        is_transient = error.transient or is_disk_error(error)
        if is_transient or not can_refuse or not desired or state.is_live(desired):
            self._failure = error
            return
        self._refusal = refused_error(self.model, desired.version, summarize_error(error))
        self._append("refused", desired, summarize_error(error))

    def _has_left(self, action: Action) -> bool:
        """Return whether an action is for a replica that no longer runs."""
        endpoint: Endpoint | None = getattr(action, "endpoint", None)
        if endpoint is None or endpoint.replica is None:
            return False
        return endpoint not in self._observer.endpoints()

    @singledispatchmethod
    def _run(self, action: Action) -> None:
        """Run one action."""
        raise TypeError(f"{type(action).__name__} is not an action")

    @_run.register
    def _(self, action: Stage) -> None:
        artifact = self._registry.fetch(action.model, action.version)
        for replica in self.cluster.reachable:
            with TritonClient(replica.endpoint, checks=True) as client:
                require_backend(artifact, client)
        self._repository.stage(action.model, action.version, artifact)

    @_run.register
    def _(self, action: Verify) -> None:
        self._registry.verify(action.model, action.version, action.previous)

    @_run.register
    def _(self, action: StartSplit) -> None:
        with TritonClient(action.endpoint, checks=True) as client:
            self._restage_damaged(action.model, action.split.champion, action.split.candidate)
            splitting.start_split(action.split, self._repository, client, anew=action.force_reload)

    @_run.register
    def _(self, action: StopSplit) -> None:
        with TritonClient(action.endpoint, checks=True) as client:
            splitting.stop_split(action.model, client)

    @_run.register
    def _(self, action: StartFront) -> None:
        """Serve a version by its columns; if that fails, it is still served by its tensors."""
        with TritonClient(action.endpoint, checks=True) as client:
            try:
                column_front.start_front(
                    *(action.model, action.version, self._repository, client),
                    anew=action.force_reload,
                )
            except WorkError as error:
                if error.transient:
                    raise
                self._failed_fronts.add((action.endpoint, action.version))
                column_front.refuse_front(action.model, action.version, self._repository)
                log.warning(
                    "%s version %d is not served by the names of its columns: %s",
                    *(action.model, action.version, error.seen or error.what),
                )

    @_run.register
    def _(self, action: StopFront) -> None:
        with TritonClient(action.endpoint, checks=True) as client:
            unload_model(action.model + COLUMNS, client)

    @_run.register
    def _(self, action: Retire) -> None:
        self._repository.remove(action.model, action.version)

    @_run.register
    def _(self, action: Tag) -> None:
        self._registry.write_tags(action.model, action.version, action.tags)

    @_run.register
    def _(self, action: Validate) -> None:
        check = self._registry.version_check(action.model, action.version)
        artifact = self._repository.artifact(action.model, action.version)
        check.smoke_test(artifact)
        # two trials at a time would slow each other down
        with self._repository.probing(), TritonClient(action.endpoint, checks=True) as client:
            result = trial.validate_on_replica(
                action.model, action.version, self._repository, client, check
            )
        evidence: dict[str, object] = asdict(result)
        if artifact.draft:
            evidence["draft"] = str(artifact.draft)
        if check.caution:
            evidence["caution"] = check.caution
        self._evidence_by_version[action.version] = evidence

    @_run.register
    def _(self, action: Switch) -> None:
        self._restage_damaged(action.model, action.version, *action.keep)
        with TritonClient(action.endpoint, checks=True) as client, self._record_change(action):
            load_version(
                *(action.model, action.version, self._repository, client),
                keep=action.keep,
                force_reload=action.force_reload,
            )

    @_run.register
    def _(self, action: Unload) -> None:
        with TritonClient(action.endpoint, checks=True) as client, self._record_change(action):
            unload_model(action.model, client)

    @contextmanager
    def _record_change(self, action: Switch | Unload) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._changes[action.endpoint] = (action.previous, time.perf_counter() - start)

    @_run.register
    def _(self, action: CleanUp) -> None:
        for endpoint in action.endpoints:
            with TritonClient(endpoint, checks=True) as client:
                client.unload(action.name)
        self._repository.remove_model(action.name)

    @_run.register
    def _(self, action: Record) -> None:
        """Append an event; a "live" event only if the served model gives its certified answers."""
        if action.kind == "live":
            self._check_live(action.model, action.desired.version)
        if action.kind == "proved" and action.reason:
            evidence = {**self._evidence(action.desired), "rollout": action.reason}
            self._evidence_by_version[action.desired.version] = evidence
        self._append(action.kind, action.desired, action.reason, action.previous)

    def _check_live(self, model: str, version: int) -> None:
        check = self._registry.version_check(model, version)
        artifact = self._repository.artifact(model, version)
        for replica in self.cluster.reachable:
            if replica.live_version(model) == version:
                with TritonClient(replica.endpoint, checks=True) as client:
                    check.compare(client, model, artifact, version)

    def _append(
        self, kind: Kind, desired: DesiredVersion, reason: str, previous: int | None = None
    ) -> None:
        if previous is None:
            previous = self.cluster.state(self.model).live_version
        release = Release(
            model=self.model,
            kind=kind,
            version=desired.version,
            digest=desired.digest,
            previous=previous,
            asked_by=self._requester(),
            reason=reason,
            evidence=self._evidence(desired) if kind in ("proved", "live", "refused") else {},
            link=self.request.link,
            seconds=time.perf_counter() - self._began,
        )
        self._ledger.append(release)
        self._recorded = True
        self._registry.report(release)

    def _requester(self) -> str:
        """Return who requested the release, and whether the alias moved during the release."""
        asked_by = self.request.asked_by
        has_moved = self._desired != self._desired_at_start
        return f"the alias, which moved during a release ({asked_by})" if has_moved else asked_by

    def _evidence(self, desired: DesiredVersion) -> Mapping[str, object]:
        """Return what this release measured of a version.

        If it measured nothing, return the newest measurements of the version in the release table.
        """
        measured = self._evidence_by_version.get(desired.version)
        if measured is not None:
            return measured
        earlier = [each for each in self._ledger.releases(self.model) if each.desired == desired]
        return next((each.evidence for each in reversed(earlier) if each.evidence), {})

    def _is_still_desired(self) -> bool:
        """Whether the alias still points to the version of the plan."""
        return self._registry.desired_versions(self.model).get(self.model) == self._desired

    def _restage_damaged(self, model: str, *versions: int) -> None:
        """Stage again the versions whose files were changed on disk."""
        for version in versions:
            if not self._repository.is_whole(model, version):
                log.warning(
                    "files of %s version %s changed on disk; fetching them again", model, version
                )
                self._repository.stage(model, version, self._registry.fetch(model, version))


def _observe(observer: Observer, model: str) -> ClusterState:
    """Return the observed state of a model, or raise the error why it cannot be observed."""
    cluster = observer.observe(model)
    if model in cluster.faults:
        raise cluster.faults[model]
    return cluster


def _disk_error(action: Action, error: OSError) -> MillraceError:
    return TransientError(
        f"{describe_action(action)} failed",
        seen=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
        hint="check the free space and the permissions of the Millrace home folder "
        "(MILLRACE_HOME), then release again",
    )
