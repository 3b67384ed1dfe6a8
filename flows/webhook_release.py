"""A release at once, in this process: a new one for each would take seconds to import everything.

It is a run of the `release` deployment, made in the state Pending: a runner picks up scheduled
runs only, and Prefect gives the deployment's one slot on the way into Pending. So it needs no slot
and leaves none taken if this process dies, which would keep the schedule out for minutes. That no
two releases are at work on a model is held by the lock of `serving.reconcile`.
"""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.states import Crashed, Pending

from flows.deployment_specs import DeploymentSpec, plan
from flows.deployment_upkeep import home_id, owned
from flows.release_model import release_model
from flows.release_worker import one_line
from flows.settings import Settings
from models.reachable import require_http
from serving.outcome import checked
from tasks.progress import log
from tasks.release import reconcile_triton

if TYPE_CHECKING:
    from uuid import UUID

ENTRYPOINT = "flows.release_model.release_model"
TAG = "webhook"


class Releaser:
    """Releases in this process, from any number of threads.

    Args:
        settings: where everything is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lost_are_told = False
        self._making = threading.Lock()

    def release(self, asked_by: str, models: list[str] | None) -> None:
        """Release, as a run of the deployment if there is one, and without Prefect if it fails.

        Args:
            asked_by: who or what asked for it.
            models: the models to release; None for all.

        Raises:
            MillraceError: a model could not be released; the others were.
        """
        try:
            run = self._new_run({"asked_by": asked_by, "models": models})
        except Exception as error:
            log.warning("released without Prefect: %s", one_line(error))
            checked(reconcile_triton.fn(self._settings.places(), asked_by, models=models))
            return
        if run is None:
            release_model(asked_by=asked_by, models=models)
        else:
            run_flow(release_model, flow_run=run)

    def _new_run(self, parameters: dict[str, object]) -> FlowRun | None:
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
                    known, parameters=parameters, state=Pending(), tags=[TAG]
                )
        return None


def deployment(settings: Settings) -> DeploymentSpec | None:
    """Return this home's deployment of the release; None if none is declared."""
    shared = settings.prefect_api_url is not None
    ours = owned(plan((), settings.deployments), home_id(settings), shared=shared)
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
