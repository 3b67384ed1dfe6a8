"""Releases at once, in this process: a new process for each release would import for seconds.

A flow run is created only when something is due, so that Prefect shows the releases that did
something. It is a run of the `release` deployment, created in the state Pending: a runner picks up
scheduled runs only, and Prefect hands out the deployment's one slot on the way into Pending. So the
run needs no slot, and leaves none taken if this process dies; a taken slot would block a release
that was requested by hand for minutes. The lock of `millrace.serving.release.reconcile` ensures
that no two releases work on one model.
"""

import threading
import time
from collections.abc import Callable, Mapping
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
from millrace.models.common.reachable import require_http
from millrace.serving.release.actions import Action, describe_action
from millrace.serving.release.outcome import raise_first_error
from millrace.tasks.release import ReleaseCheck, reconcile_triton
from millrace.tasks.run_names import release_name

ENTRYPOINT = "millrace.flows.release_model.release_model"
TAG = "webhook"
RUN_SECONDS = 60.0
"""Between two flow runs for the same work; an earlier retry has none of its own."""

Due = Mapping[str, Action]
"""The first action of a release, by model."""


@dataclass(frozen=True)
class FailedRun:
    """A flow run that failed.

    Attributes:
        at: seconds, monotonic.
        run: the flow run.
    """

    at: float
    run: UUID


class Releaser:
    """Releases in this process, from any number of threads.

    Args:
        settings: of this home.
        find_due: returns the first action of a release, by model; by default from `ReleaseCheck`.
        clock: seconds, monotonic.
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
        """Release what is due, as a run of the deployment, and without Prefect if that fails.

        Args:
            asked_by: who or what requested it.
            models: the models to release; None for all.

        Raises:
            MillraceError: a model could not be released; the others were.
        """
        due = {m: each for m, each in self._find_due().items() if models is None or m in models}
        if not due:
            log.info("nothing is due: %s", asked_by)
            return
        work = ", ".join(describe_action(each) for each in due.values())
        log.info("releasing (%s): %s", work, asked_by)
        before = self._failed.get(work)
        if before is not None and self._clock() - before.at < RUN_SECONDS:
            self._retry(asked_by, list(due), work, before)
            return
        self._release_as_run(asked_by, due, work)

    def _retry(self, asked_by: str, models: list[str], work: str, before: FailedRun) -> None:
        """Retry what failed a moment ago; if that helps, mark the run that failed as completed."""
        self._release_without_run(asked_by, models)
        self._failed.pop(work, None)
        message = "The first try failed; one that followed it did the work."
        with suppress(Exception), get_client(sync_client=True) as client:
            client.set_flow_run_state(before.run, Completed(message=message), force=True)

    def _release_as_run(self, asked_by: str, due: Due, work: str) -> None:
        models = list(due)
        try:
            run = self._create_run({"asked_by": asked_by, "models": models}, due)
        except Exception as error:
            log.warning("released without Prefect: %s", first_line(error))
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
    """Return this home's deployment of the release; None if none is declared."""
    ours = assign_to_home(build_specs((), settings.deployments), settings)
    return next((spec for spec in ours if spec.entrypoint == ENTRYPOINT), None)


def _mark_lost_runs(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """Mark as crashed the runs of a receiver that died: this one has started none yet."""
    active = filters.FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
    lost = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment_id]),
        tags=filters.FlowRunFilterTags(all_=[TAG]),
        state=filters.FlowRunFilterState(type=active),
    )
    for run in client.read_flow_runs(flow_run_filter=lost):
        message = "The webhook receiver ended in the middle of it."
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
