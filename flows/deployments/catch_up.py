"""Cleans up lost and missed flow runs when the deployments' process starts.

A run whose process died unnoticed still occupies its deployment's only slot. While `up` was not
running, due runs have collected in a queue. `millrace.flows.deployments.schedule_loop` keeps the
schedules. Only this home's deployments are changed, because several homes may share one Prefect
server.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.services import processes
from millrace.flows.settings import MARK, Settings
from millrace.models.common.private_files import read_or_create_secret

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.objects import FlowRun, StateType

TAG = "millrace"
HOME_TAG = "home:"
LATE = timedelta(minutes=2)


@dataclass(frozen=True)
class MissedRun:
    """A scheduled run whose time passed while nothing served its deployment."""

    id: UUID
    deployment: str
    due: datetime


def find_superseded(
    missed: Iterable[MissedRun], specs: Iterable[DeploymentSpec]
) -> tuple[UUID, ...]:
    """Return the missed runs to delete.

    A deployment with the collision strategy `ENQUEUE` keeps its newest missed run; one with
    `CANCEL_NEW` keeps none.
    """
    waiting = {spec.name for spec in specs if spec.collision_strategy == "ENQUEUE"}
    runs = sorted(missed, key=lambda run: run.due)
    newest = {run.deployment: run.id for run in runs if run.deployment in waiting}
    return tuple(run.id for run in runs if run.id not in newest.values())


def home_id(settings: Settings) -> str:
    """Return the id of this home, created once and stored in it.

    A path does not identify a home, because two hosts can have the same path. Nor does a host name,
    because a container gets a new one at each start.
    """
    return read_or_create_secret(settings.home / "home.id", lambda: secrets.token_hex(4))


def assign_to_home(
    specs: Iterable[DeploymentSpec], settings: Settings
) -> tuple[DeploymentSpec, ...]:
    """Return the deployments with the home's id as a tag.

    On a server that the user chose, the id is added to the names too, because Prefect identifies a
    deployment by its name. With equal names two homes would start each other's runs, but a release
    repairs only the Triton of its own home.
    """
    home = home_id(settings)
    suffix = f"-{home}" if settings.prefect_api_url is not None else ""
    return tuple(
        replace(spec, name=f"{spec.name}{suffix}", tags=(*spec.tags, f"{HOME_TAG}{home}"))
        for spec in specs
    )


def is_of_another_home(tags: Iterable[str], home: str) -> bool:
    """Return whether the tags of a deployment name another home and not this one."""
    homes = {tag.removeprefix(HOME_TAG) for tag in tags if tag.startswith(HOME_TAG)}
    return bool(homes) and home not in homes


async def catch_up(
    client: "PrefectClient", settings: Settings, specs: tuple[DeploymentSpec, ...]
) -> None:
    """Mark lost runs of this home's deployments as crashed, and delete superseded runs.

    Args:
        client: the client of the Prefect server.
        settings: the settings of this home.
        specs: the served deployments, as `assign_to_home` returns them.
    """
    await _mark_lost_runs(client, settings)
    await _delete_superseded(client, specs)


async def _mark_lost_runs(client: "PrefectClient", settings: Settings) -> None:
    """Mark as crashed the runs that are active on the server, but have no process in this home."""
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    active = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
    alive = {
        process.environ().get("PREFECT__FLOW_RUN_ID")
        for process in processes.find_marked(MARK, str(settings.home))
    }
    ours = _filter_deployments(tags=(f"{HOME_TAG}{home_id(settings)}",))
    for run in await _read_runs(client, ours, _filter_states(*active)):
        if str(run.id) not in alive:
            message = (
                "The run's process ended without a report, for example because the machine "
                "restarted or memory ran out."
            )
            await client.set_flow_run_state(run.id, Crashed(message=message))


async def _delete_superseded(client: "PrefectClient", specs: tuple[DeploymentSpec, ...]) -> None:
    """Delete the missed runs that `find_superseded` selects."""
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    late = _filter_states(StateType.SCHEDULED)
    late.expected_start_time = filters.FlowRunFilterExpectedStartTime(
        before_=datetime.now(UTC) - LATE
    )
    missed = [
        MissedRun(run.id, spec.name, run.expected_start_time)
        for spec in specs
        for run in await _read_runs(client, _filter_deployments(spec.name), late)
        if run.auto_scheduled and run.expected_start_time
    ]
    for run_id in find_superseded(missed, specs):
        await client.delete_flow_run(run_id)


async def _read_runs(
    client: "PrefectClient", deployments: "DeploymentFilter", runs: "FlowRunFilter"
) -> "list[FlowRun]":
    return await client.read_flow_runs(
        deployment_filter=deployments, flow_run_filter=runs, limit=200
    )


def _filter_deployments(*names: str, tags: tuple[str, ...] = ()) -> "DeploymentFilter":
    from prefect.client.schemas import filters

    return filters.DeploymentFilter(
        name=filters.DeploymentFilterName(any_=list(names)) if names else None,
        tags=filters.DeploymentFilterTags(all_=[TAG, *tags]),
    )


def _filter_states(*types: "StateType") -> "FlowRunFilter":
    from prefect.client.schemas import filters

    wanted = filters.FlowRunFilterStateType(any_=list(types))
    return filters.FlowRunFilter(state=filters.FlowRunFilterState(type=wanted))
