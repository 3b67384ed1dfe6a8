"""Serves the scheduled deployments: `python -m millrace.flows.deployments.serve`.

The process keeps the deployments registered with the Prefect server, polls for runs that are due
and starts each run in its own process, with its own environment.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from millrace.flows import tool_variables
from millrace.flows.console import exit_on_error, set_up_logging
from millrace.flows.deployments.catch_up import TAG, catch_up
from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.deployments.flow_outline import read_flow_outline
from millrace.flows.deployments.schedule_loop import ScheduleLoop
from millrace.flows.services.health import is_url_healthy
from millrace.flows.services.service_specs import deployments_ready_file
from millrace.flows.settings import Settings, load
from millrace.models.common.errors import TransientError
from millrace.models.common.private_files import replace_private

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner import Runner

POLL_SECONDS = 5.0
"""Pause between two requests for due runs; each one takes the server 10 ms of a core."""
API_SECONDS = 120.0
MAX_RUNS = 1000
"""Maximum concurrent runs of all deployments together; each deployment has its own limit."""


def build_deployment(spec: DeploymentSpec, is_paused: bool = False) -> "RunnerDeployment":
    """Return the Prefect deployment for a spec, with an active or paused schedule.

    Imports the flow's module only if its source does not tell what Prefect stores of the flow.
    """
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    outline = read_flow_outline(spec.entrypoint)
    make: Callable[..., RunnerDeployment] = (
        partial(RunnerDeployment.from_entrypoint, spec.entrypoint)
        if outline is None
        else partial(
            RunnerDeployment.from_flow, outline, entrypoint_type=EntrypointType.MODULE_PATH
        )
    )
    schedule = Cron(spec.cron, timezone=spec.timezone, active=not is_paused) if spec.cron else None
    deployment = make(
        name=spec.name,
        schedule=schedule,
        schedules=None if schedule else [],
        concurrency_limit=ConcurrencyLimitConfig(
            limit=spec.limit,
            collision_strategy=ConcurrencyLimitStrategy(spec.collision_strategy),
        ),
        parameters=dict(spec.parameters),
        description=spec.description,
        tags=list(spec.tags),
    )
    # An explicit None removes the deployment from a work pool that it was in before.
    deployment.work_pool_name = None
    deployment.work_queue_name = None
    return deployment


@cache
def _read_flow_name(entrypoint: str) -> str:
    """Return the name of an entrypoint's flow.

    It is read from the source: importing Ray, MLflow and others takes seconds, and 150 MB for ever.
    """
    from prefect.flows import load_flow_arguments_from_entrypoint

    return str(load_flow_arguments_from_entrypoint(entrypoint, {"name"})["name"])


async def serve(settings: Settings) -> None:
    """Keep the deployments registered and start due runs, until SIGTERM.

    All deployments may run at the same time, so that a long training never delays a release.

    Raises:
        TransientError: the Prefect server does not answer.
    """
    from prefect.client.orchestration import get_client
    from prefect.runner import Runner

    await _wait_for_api(settings)
    runner = Runner(name=TAG, query_seconds=POLL_SECONDS, limit=MAX_RUNS, pause_on_shutdown=False)

    async def register(spec: DeploymentSpec, is_paused: bool) -> "UUID":
        return await runner.aadd_deployment(build_deployment(spec, is_paused))

    async with get_client() as client:
        loop = ScheduleLoop(settings, client, register, _read_flow_name)
        specs, _, _ = loop.read_desired()
        pause = await loop.check()
        await catch_up(client, settings, specs)
        checking = asyncio.create_task(_check_repeatedly(loop, settings, pause))
        try:
            await _run_until_sigterm(runner, checking)
        finally:
            checking.cancel()


async def _check_repeatedly(loop: ScheduleLoop, settings: Settings, pause: float) -> None:
    """Check forever; the ready file exists while Prefect's deployments match the specs."""
    ready = deployments_ready_file(settings)
    while True:
        if not loop.state.settled:
            ready.unlink(missing_ok=True)
        elif not ready.exists():
            replace_private(ready, f"{os.getpid()}\n")
        await asyncio.sleep(pause)
        pause = await loop.check()


async def _run_until_sigterm(runner: "Runner", checking: "asyncio.Task[None]") -> None:
    """Run the runner until SIGTERM or until the checks fail; then cancel its flow runs.

    The runner's own handler calls its asynchronous `stop` without awaiting it, which would leave
    running flows behind.
    """
    polling = asyncio.create_task(runner.start())
    while not runner.started and not polling.done():
        await asyncio.sleep(0.05)
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    waiting = asyncio.create_task(terminated.wait())
    await asyncio.wait({polling, waiting, checking}, return_when=asyncio.FIRST_COMPLETED)
    if terminated.is_set() or checking.done():
        await runner.astop()
    waiting.cancel()
    await polling
    if checking.done():
        await checking


async def _wait_for_api(settings: Settings) -> None:
    url = f"{settings.prefect_api()}/health"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + API_SECONDS
    while not await asyncio.to_thread(is_url_healthy, url):
        if loop.time() > deadline:
            raise TransientError("the Prefect server does not answer", seen=url)
        await asyncio.sleep(0.5)


def main() -> None:
    """Serve the deployments of the pipeline files in the settings."""
    with exit_on_error():
        settings = tool_variables.apply(load())
        set_up_logging()
        deployments_ready_file(settings).unlink(missing_ok=True)
        asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
