"""Releases what the webhook and the watch request, in threads of this process.

A new process for each release would need seconds for its imports. Two releases of one model never
run at the same time. A release brings its models up to date, so all requests for a model that
arrive during its release need only one more release. A slow release of one model does not delay
another model.

A flow run is created only when something is due, so that Prefect shows only releases that did
something. The flow run is a run of the `release` deployment that is created in the state Pending.
A runner picks up scheduled runs only, so no runner picks up this flow run. Prefect assigns the
deployment's one slot when a run changes to Pending. This flow run begins as Pending, so it needs no
slot, and leaves no slot occupied if this process dies. An occupied slot would block for minutes a
release that was requested by hand. The lock of `millrace.serving.release.reconcile` ensures that no
two releases work on one model.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.states import Completed, Crashed, Pending

from millrace.flows.console import first_line, log
from millrace.flows.deployments.catch_up import assign_to_home
from millrace.flows.deployments.deployment_specs import DeploymentSpec, build_specs
from millrace.flows.release_model import release_model
from millrace.flows.settings import Settings
from millrace.models.common.errors import MillraceError
from millrace.models.common.reachable import require_http
from millrace.serving.release.actions import Action, describe_action
from millrace.serving.release.outcome import raise_first_error
from millrace.tasks.release import ReleaseCheck, reconcile_triton
from millrace.tasks.run_names import release_name

RETRY_SECONDS = (2.0, 5.0, 10.0, 20.0)
"""Pauses before the retries of a transient failure; after the last retry the watch takes over."""
MAX_RELEASES = 4
"""Maximum concurrent releases; further requests wait, and are then released together."""

Requests = Mapping[str | None, str]
"""The reason for a release, by model; the key None stands for a release of all models."""

ENTRYPOINT = "millrace.flows.release_model.release_model"
TAG = "webhook"
RUN_SECONDS = 60.0
"""Minimum time between two flow runs for the same work; an earlier retry gets no flow run."""

Due = Mapping[str, Action]
"""The first action of a release, by model."""


class ReleaseWorker:
    """Runs the requested releases in daemon threads.

    A thread pool is not used, because Python joins its threads at exit and a long release would
    delay the exit.

    Args:
        release: a function that runs one release. Its arguments are the reasons for the release,
            and the models (None: all models).
        retry_seconds: the pauses before the retries after a transient failure.
    """

    def __init__(
        self,
        release: Callable[[str, list[str] | None], None],
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self._release, self._retry_seconds = release, retry_seconds
        self._waiting: dict[str | None, str] = {}
        self._running: dict[threading.Thread, Requests] = {}
        self._changed = threading.Condition()
        self._is_stopping = False

    def request(self, model: str | None, reason: str) -> None:
        """Request a release of `model` (None: all models).

        This replaces a waiting request for the same model.
        """
        with self._changed:
            self._waiting[model] = reason
            self._changed.notify_all()
            self._start_next()

    def stop(self, seconds: float) -> None:
        """Start no further release, and wait up to `seconds` for the running ones."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            threads = list(self._running)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _start_next(self) -> None:
        """Start a release of the waiting models that are not being released.

        The caller must hold the lock of `_changed`.
        """
        busy = {model for requests in self._running.values() for model in requests}
        free = {model: reason for model, reason in self._waiting.items() if model not in busy}
        if not free or self._is_stopping or len(self._running) >= MAX_RELEASES:
            return
        self._waiting = {model: reason for model, reason in self._waiting.items() if model in busy}
        thread = threading.Thread(target=self._run, args=(free,), name="release", daemon=True)
        self._running[thread] = free
        thread.start()

    def _run(self, requests: Requests) -> None:
        pauses = iter(self._retry_seconds)
        while self._fails_transiently(requests) and (pause := next(pauses, None)) is not None:
            newer = self._wait_for_newer(requests, pause)
            if newer is None:
                break
            requests = {**requests, **newer}
        with self._changed:
            del self._running[threading.current_thread()]
            self._start_next()

    def _wait_for_newer(self, requests: Requests, seconds: float) -> Requests | None:
        """Wait up to `seconds` for newer requests for these models; return None when stopping."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting.keys() & requests.keys() or self._is_stopping, seconds
            )
            models = self._waiting.keys() & requests.keys()
            newer = {model: self._waiting.pop(model) for model in models}
            return None if self._is_stopping else newer

    def _fails_transiently(self, requests: Requests) -> bool:
        """Release once; return whether the release failed and this thread should retry it."""
        asked_by = ", ".join(requests.values())
        models = None if None in requests else [model for model in requests if model is not None]
        try:
            self._release(asked_by, models)
        except BaseException as error:  # Prefect's signals too, because this thread must survive
            log.error("the release failed (%s): %s", asked_by, first_line(error))
            return not isinstance(error, MillraceError) or error.transient
        return False


@dataclass(frozen=True)
class FailedRun:
    """A flow run that failed.

    Attributes:
        at: the time of the failure, in seconds of a monotonic clock.
        run: the flow run.
    """

    at: float
    run: UUID


class Releaser:
    """Releases in this process, from any number of threads.

    Args:
        settings: the settings of this home.
        find_due: a function that returns the first due action by model; default `ReleaseCheck`.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        find_due: Callable[[], Due] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._find_due = find_due or ReleaseCheck(settings.installation).actions
        self._has_marked_lost = False
        self._marking = threading.Lock()
        self._failed: dict[str, FailedRun] = {}

    def release(self, asked_by: str, models: list[str] | None) -> None:
        """Release what is due, as a run of the deployment.

        If Prefect cannot create the run, release without Prefect.

        Args:
            asked_by: who or what requested the release.
            models: the models to release; None for all.

        Raises:
            MillraceError: a model could not be released; the other models were.
        """
        due = {m: each for m, each in self._find_due().items() if models is None or m in models}
        if not due:
            log.info("nothing is due: the requested release (%s) has nothing to do", asked_by)
            return
        work = ", ".join(describe_action(each) for each in due.values())
        log.info("releasing (%s): %s", work, asked_by)
        before = self._failed.get(work)
        if before is not None and self._clock() - before.at < RUN_SECONDS:
            self._retry(asked_by, list(due), work, before)
            return
        self._release_as_run(asked_by, due, work)

    def _retry(self, asked_by: str, models: list[str], work: str, before: FailedRun) -> None:
        """Retry a release that just failed; on success, mark the failed run as completed."""
        self._release_without_run(asked_by, models)
        self._failed.pop(work, None)
        message = "The first try failed; a later try did the work."
        with suppress(Exception), get_client(sync_client=True) as client:
            client.set_flow_run_state(before.run, Completed(message=message), force=True)

    def _release_as_run(self, asked_by: str, due: Due, work: str) -> None:
        models = list(due)
        try:
            run = self._create_run({"asked_by": asked_by, "models": models}, due)
        except Exception as error:
            log.warning(
                "Prefect cannot create a flow run; releasing without Prefect: %s", first_line(error)
            )
            self._release_without_run(asked_by, models)
            return
        if run is None:
            release_model(asked_by=asked_by, models=models)
            return
        try:
            run_flow(release_model, flow_run=run)
        except BaseException:
            self._failed[work] = FailedRun(self._clock(), run.id)
            raise
        self._failed.pop(work, None)

    def _release_without_run(self, asked_by: str, models: list[str]) -> None:
        outcomes = reconcile_triton.fn(self._settings.installation(), asked_by, models=models)
        raise_first_error([outcome for outcome in outcomes if not outcome.known])

    def _create_run(self, parameters: dict[str, object], due: Due) -> FlowRun | None:
        """Create a run of the deployment; return None if Prefect does not know the deployment."""
        api, spec = self._settings.prefect_api(), find_deployment(self._settings)
        require_http(f"{api}/health", service="Prefect", setting="PREFECT_API_URL")
        if spec is None:
            return None
        with get_client(sync_client=True) as client, suppress(ObjectNotFound):
            known = client.read_deployment_by_name(f"{release_model.name}/{spec.name}").id
            with self._marking:
                if not self._has_marked_lost:  # before the first run of this process
                    _mark_lost_runs(client, known)
                    self._has_marked_lost = True
            versions = {model: getattr(action, "version", None) for model, action in due.items()}
            return client.create_flow_run_from_deployment(
                known,
                parameters=parameters,
                state=Pending(),
                name=release_name(versions),
                tags=[TAG, *due],
            )
        return None


def find_deployment(settings: Settings) -> DeploymentSpec | None:
    """Return this home's `release` deployment; None if none is declared."""
    ours = assign_to_home(build_specs((), settings.deployments), settings)
    return next((spec for spec in ours if spec.entrypoint == ENTRYPOINT), None)


def _mark_lost_runs(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """Mark as crashed the runs of earlier receivers; this process has not started a run yet."""
    active = filters.FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
    lost = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment_id]),
        tags=filters.FlowRunFilterTags(all_=[TAG]),
        state=filters.FlowRunFilterState(type=active),
    )
    for run in client.read_flow_runs(flow_run_filter=lost):
        message = "The webhook receiver ended during this run."
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
