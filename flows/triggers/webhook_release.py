"""A release at once, in this process: a new one for each would take seconds to import everything.

A flow run is made only where something is due, so that Prefect shows the releases that did
something. It is a run of the `release` deployment, made in the state Pending: a runner picks up
scheduled runs only, and Prefect gives the deployment's one slot on the way into Pending. So it
needs no slot and leaves none taken if this process dies, which would keep a release that was asked
for by hand out for minutes. That no two releases are at work on a model is held by the lock of
`millrace.serving.release.reconcile`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.states import Completed, Crashed, Pending

from millrace.flows.deployments.catch_up import home_id, owned
from millrace.flows.deployments.deployment_specs import DeploymentSpec, specs_of
from millrace.flows.release_model import release_model
from millrace.flows.settings import Settings
from millrace.flows.triggers.release_worker import one_line
from millrace.models.common.reachable import require_http
from millrace.serving.release.actions import Action, describe_action
from millrace.serving.release.outcome import raise_first_error
from millrace.tasks.progress import log
from millrace.tasks.release import ReleaseCheck, reconcile_triton
from millrace.tasks.run_names import release_name

if TYPE_CHECKING:
    from uuid import UUID

ENTRYPOINT = "millrace.flows.release_model.release_model"
TAG = "webhook"
RUN_SECONDS = 60.0
"""Between two flow runs for the same thing; what is tried again sooner has none of its own."""

Due = Mapping[str, Action]
"""What a release would begin with, by model."""


@dataclass(frozen=True)
class Failed:
    """A flow run that failed.

    Attributes:
        at: seconds, monotonic.
        run: the flow run.
    """

    at: float
    run: "UUID"


class Releaser:
    """Releases in this process, from any number of threads.

    Args:
        settings: where everything is.
        due: returns what a release would begin with; by default looks.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        due: Callable[[], Due] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._due = due or ReleaseCheck(settings.places).actions
        self._lost_are_told = False
        self._making = threading.Lock()
        self._failed: dict[str, Failed] = {}

    def release(self, asked_by: str, models: list[str] | None) -> None:
        """Release what is due, as a run of the deployment, and without Prefect if that fails.

        Args:
            asked_by: who or what asked for it.
            models: the models to release; None for all.

        Raises:
            MillraceError: a model could not be released; the others were.
        """
        due = {m: each for m, each in self._due().items() if models is None or m in models}
        if not due:
            log.info("nothing is due: %s", asked_by)
            return
        thing = ", ".join(describe_action(each) for each in due.values())
        log.info("releasing (%s): %s", thing, asked_by)
        before = self._failed.get(thing)
        if before is not None and self._clock() - before.at < RUN_SECONDS:
            self._again(asked_by, list(due), thing, before)
            return
        self._as_run(asked_by, due, thing)

    def _again(self, asked_by: str, models: list[str], thing: str, before: Failed) -> None:
        """Try again what failed a moment ago; if that helps, the run that failed says so."""
        self._without_run(asked_by, models)
        self._failed.pop(thing, None)
        message = "The first try failed; one that followed it did the work."
        with suppress(Exception), get_client(sync_client=True) as client:
            client.set_flow_run_state(before.run, Completed(message=message), force=True)

    def _as_run(self, asked_by: str, due: Due, thing: str) -> None:
        models = list(due)
        try:
            run = self._new_run({"asked_by": asked_by, "models": models}, due)
        except Exception as error:
            log.warning("released without Prefect: %s", one_line(error))
            self._without_run(asked_by, models)
            return
        if run is None:
            release_model(asked_by=asked_by, models=models)
            return
        try:
            run_flow(release_model, flow_run=run)
        except BaseException:
            self._failed[thing] = Failed(self._clock(), run.id)
            raise
        self._failed.pop(thing, None)

    def _without_run(self, asked_by: str, models: list[str]) -> None:
        outcomes = reconcile_triton.fn(self._settings.places(), asked_by, models=models)
        raise_first_error([outcome for outcome in outcomes if not outcome.known])

    def _new_run(self, parameters: dict[str, object], due: Due) -> FlowRun | None:
        """Make a run of the deployment; None if Prefect does not know the deployment yet."""
        api, spec = self._settings.prefect_api(), deployment(self._settings)
        require_http(f"{api}/health", service="Prefect", setting="PREFECT_API_URL")
        with get_client(sync_client=True) as client, suppress(ObjectNotFound):
            if spec is not None:
                known = client.read_deployment_by_name(f"{release_model.name}/{spec.name}").id
                with self._making:
                    if not self._lost_are_told:  # before the first of our own
                        _crash_lost(client, known)
                        self._lost_are_told = True
                return client.create_flow_run_from_deployment(
                    known,
                    parameters=parameters,
                    state=Pending(),
                    name=release_name(_versions(due)),
                    tags=[TAG, *due],
                )
        return None


def _versions(due: Due) -> dict[str, int | None]:
    return {model: getattr(action, "version", None) for model, action in due.items()}


def deployment(settings: Settings) -> DeploymentSpec | None:
    """Return this home's deployment of the release; None if none is declared."""
    shared = settings.prefect_api_url is not None
    ours = owned(specs_of((), settings.deployments), home_id(settings), shared=shared)
    return next((spec for spec in ours if spec.entrypoint == ENTRYPOINT), None)


def _crash_lost(client: SyncPrefectClient, deployment_id: "UUID") -> None:
    """Mark as crashed the runs of a receiver that died: this one has none under way yet."""
    active = filters.FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
    lost = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment_id]),
        tags=filters.FlowRunFilterTags(all_=[TAG]),
        state=filters.FlowRunFilterState(type=active),
    )
    for run in client.read_flow_runs(flow_run_filter=lost):
        message = "The webhook receiver ended in the middle of it."
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
