"""The process that serves the scheduled deployments: `python -m millrace.flows.deployments.serve`.

It keeps them registered with the Prefect server, polls for runs that are due and starts each in a
process of its own, with the environment that this one has.
"""

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from millrace.flows.console import exit_on_error, set_up_logging
from millrace.flows.deployments.catch_up import OURS, put_right
from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.deployments.schedule_loop import ScheduleLoop
from millrace.flows.environment import apply
from millrace.flows.services.health import is_url_healthy
from millrace.flows.services.service_specs import deployments_ready_file
from millrace.flows.settings import Settings, load
from millrace.models.common.errors import TransientError
from millrace.models.common.private_files import replace_private

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner import Runner

POLL_SECONDS = 3.0
API_SECONDS = 120.0
MOST = 1000
"""Flow runs at a time, all deployments together; each has a limit of its own."""
_FLOW_NAMES: dict[str, str] = {}


def runner_deployment(spec: DeploymentSpec, paused: bool = False) -> "RunnerDeployment":
    """Return the deployment in Prefect's form, its schedule paused or not.

    Imports the module of its flow.
    """
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Cron

    deployment = RunnerDeployment.from_entrypoint(
        spec.entrypoint,
        name=spec.name,
        schedule=Cron(spec.cron, timezone=spec.timezone, active=not paused) if spec.cron else None,
        schedules=None if spec.cron else [],
        concurrency_limit=ConcurrencyLimitConfig(
            limit=spec.limit,
            collision_strategy=ConcurrencyLimitStrategy(spec.collision_strategy),
        ),
        parameters=dict(spec.parameters),
        description=spec.description,
        tags=list(spec.tags),
    )
    # Said in so many words, this takes it back from a work pool that it was deployed to before.
    deployment.work_pool_name = None
    deployment.work_queue_name = None
    return deployment


async def serve(settings: Settings) -> None:
    """Keep the deployments registered and run what is due, until SIGTERM.

    Every deployment may run at once, so that a long training never delays a release.

    Raises:
        TransientError: the Prefect server does not answer.
    """
    from prefect.client.orchestration import get_client
    from prefect.runner import Runner

    await _wait_for_api(settings)
    runner = Runner(name=OURS, query_seconds=POLL_SECONDS, limit=MOST, pause_on_shutdown=False)

    async def register(spec: DeploymentSpec, paused: bool) -> "UUID":
        return await runner.aadd_deployment(runner_deployment(spec, paused))

    async with get_client() as client:
        loop = ScheduleLoop(settings, client, register, _flow_name)
        specs, _, _ = loop.wanted()
        pause = await loop.look()
        await put_right(client, settings, specs)
        keeping = asyncio.create_task(_keep(loop, settings, pause))
        try:
            await _run_until_told(runner, keeping)
        finally:
            keeping.cancel()


async def _keep(loop: ScheduleLoop, settings: Settings, pause: float) -> None:
    """Look for ever; say that this process is well while Prefect holds what it should."""
    ready = deployments_ready_file(settings)
    while True:
        if not loop.state.settled:
            ready.unlink(missing_ok=True)
        elif not ready.exists():
            replace_private(ready, f"{os.getpid()}\n")
        await asyncio.sleep(pause)
        pause = await loop.look()


def _flow_name(spec: DeploymentSpec) -> str:
    """Return the name of a deployment's flow."""
    if spec.entrypoint not in _FLOW_NAMES:
        _FLOW_NAMES[spec.entrypoint] = runner_deployment(spec).flow_name or ""
    return _FLOW_NAMES[spec.entrypoint]


async def _run_until_told(runner: "Runner", keeping: "asyncio.Task[None]") -> None:
    """Run the runner until SIGTERM or a fault of what keeps the deployments; cancel what it runs.

    The runner's own handler calls its asynchronous `stop` without awaiting it, which would leave
    the runs in progress behind.
    """
    polling = asyncio.create_task(runner.start())
    while not runner.started and not polling.done():
        await asyncio.sleep(0.05)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({polling, waiting, keeping}, return_when=asyncio.FIRST_COMPLETED)
    if told.is_set() or keeping.done():
        await runner.astop()
    waiting.cancel()
    await polling
    if keeping.done():
        await keeping


async def _wait_for_api(settings: Settings) -> None:
    url = f"{settings.prefect_api()}/health"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + API_SECONDS
    while not await asyncio.to_thread(is_url_healthy, url):
        if loop.time() > deadline:
            raise TransientError("the Prefect server does not answer", seen=url)
        await asyncio.sleep(0.5)


def main() -> None:
    """Serve the deployments of the pipeline files that the settings name."""
    with exit_on_error():
        settings = apply(load())
        set_up_logging()
        deployments_ready_file(settings).unlink(missing_ok=True)
        asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
