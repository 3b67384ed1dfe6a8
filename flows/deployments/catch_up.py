"""Putting right, when the deployments' process starts, what happened while it was away.

Runs whose process died unseen still hold their deployment's only slot; runs that fell due while
nothing was up wait in a queue. What is scheduled is the work of
`millrace.flows.deployments.schedule_loop`. Only this home's deployments are touched: several homes
may share one Prefect server.
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
    from prefect.client.schemas.objects import FlowRun

OURS = "millrace"
HOME = "home:"
LATE = timedelta(minutes=2)


@dataclass(frozen=True)
class Missed:
    """A scheduled run whose time passed while nothing served its deployment."""

    id: UUID
    deployment: str
    due: datetime


def superseded(missed: Iterable[Missed], specs: Iterable[DeploymentSpec]) -> tuple[UUID, ...]:
    """Return the missed runs that need not be made up for.

    Of a deployment whose runs wait for each other, the newest missed run stays; one whose runs
    are dropped when they collide makes up for none.
    """
    waits = {spec.name for spec in specs if spec.collision_strategy == "ENQUEUE"}
    runs = sorted(missed, key=lambda run: run.due)
    newest = {run.deployment: run.id for run in runs if run.deployment in waits}
    return tuple(run.id for run in runs if run.id not in newest.values())


def home_id(settings: Settings) -> str:
    """Return the id of this home, made once and kept in it.

    Two hosts can have the same path, and a container has another host name after each start.
    """
    return read_or_create_secret(settings.home / "home.id", lambda: secrets.token_hex(4))


def owned(
    specs: Iterable[DeploymentSpec], home: str, *, shared: bool
) -> tuple[DeploymentSpec, ...]:
    """Tag deployments as this home's, and on a shared server name them so.

    On a server, a deployment is its name: under one name two homes would take each other's runs,
    and a release makes the Triton of its own home right.

    Args:
        specs: the deployments as declared.
        home: the id of this home.
        shared: whether the server may serve other homes too.
    """
    suffix = f"-{home}" if shared else ""
    return tuple(
        replace(spec, name=f"{spec.name}{suffix}", tags=(*spec.tags, f"{HOME}{home}"))
        for spec in specs
    )


def belongs_elsewhere(tags: Iterable[str], home: str) -> bool:
    """Return whether the tags of a deployment name another home and not this one."""
    homes = {tag.removeprefix(HOME) for tag in tags if tag.startswith(HOME)}
    return bool(homes) and home not in homes


async def put_right(
    client: "PrefectClient", settings: Settings, specs: tuple[DeploymentSpec, ...]
) -> None:
    """Bring the Prefect server's view of this home's deployments up to date.

    Args:
        client: of the Prefect server.
        settings: of this home.
        specs: what is served, as `owned` returns it.
    """
    await _crash_lost(client, settings)
    await _forget_missed(client, specs)


async def _crash_lost(client: "PrefectClient", settings: Settings) -> None:
    """Mark as crashed what the server holds for running here and no process of ours runs."""
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    active = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
    alive = {
        process.environ().get("PREFECT__FLOW_RUN_ID")
        for process in processes.marked(MARK, str(settings.home))
    }
    here = _deployments(tags=(f"{HOME}{home_id(settings)}",))
    for run in await _runs(client, here, _in_states(*active)):
        if str(run.id) not in alive:
            message = "Its process ended without a word: a restart, or out of memory."
            await client.set_flow_run_state(run.id, Crashed(message=message))


async def _forget_missed(client: "PrefectClient", specs: tuple[DeploymentSpec, ...]) -> None:
    """Delete the runs of the past that nobody needs any more."""
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    late = _in_states(StateType.SCHEDULED)
    late.expected_start_time = filters.FlowRunFilterExpectedStartTime(
        before_=datetime.now(UTC) - LATE
    )
    missed = [
        Missed(run.id, spec.name, run.expected_start_time)
        for spec in specs
        for run in await _runs(client, _deployments(spec.name), late)
        if run.auto_scheduled and run.expected_start_time
    ]
    for run_id in superseded(missed, specs):
        await client.delete_flow_run(run_id)


async def _runs(
    client: "PrefectClient", deployments: "DeploymentFilter", runs: "FlowRunFilter"
) -> "list[FlowRun]":
    return await client.read_flow_runs(
        deployment_filter=deployments, flow_run_filter=runs, limit=200
    )


def _deployments(*names: str, tags: tuple[str, ...] = ()) -> "DeploymentFilter":
    from prefect.client.schemas import filters

    return filters.DeploymentFilter(
        name=filters.DeploymentFilterName(any_=list(names)) if names else None,
        tags=filters.DeploymentFilterTags(all_=[OURS, *tags]),
    )


def _in_states(*types: str) -> "FlowRunFilter":
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    wanted = filters.FlowRunFilterStateType(any_=[StateType(each) for each in types])
    return filters.FlowRunFilter(state=filters.FlowRunFilterState(type=wanted))
