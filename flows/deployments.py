"""The process that serves the scheduled deployments: `python -m flows.deployments`.

It registers them with the Prefect server, then polls for runs that are due and starts each in a
process of its own, with the environment that this one has.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from flows.deployment_specs import DeploymentSpec, plan
from flows.deployment_upkeep import OURS, home_id, owned, put_right
from flows.environment import apply
from flows.services import answers, deployments_ready_file, errors_told
from flows.settings import Settings, load
from models.errors import TransientError
from models.private_files import replace_private

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner import Runner

POLL_SECONDS = 3.0
API_SECONDS = 120.0


def runner_deployment(spec: DeploymentSpec) -> "RunnerDeployment":
    """Return the deployment in Prefect's form; imports the module of its flow."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Cron

    deployment = RunnerDeployment.from_entrypoint(
        spec.entrypoint,
        name=spec.name,
        schedule=Cron(spec.cron, timezone=spec.timezone) if spec.cron else None,
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


async def serve(settings: Settings, specs: tuple[DeploymentSpec, ...]) -> None:
    """Register the deployments and run what is due, until SIGTERM.

    Every deployment may run at once, so that a long training never delays a release.

    Raises:
        TransientError: the Prefect server does not answer.
    """
    from prefect.client.orchestration import get_client
    from prefect.runner import Runner

    await _wait_for_api(settings)
    runner = Runner(
        name=OURS, query_seconds=POLL_SECONDS, limit=max(1, len(specs)), pause_on_shutdown=False
    )
    async with get_client() as client:
        for spec in specs:
            await runner.aadd_deployment(runner_deployment(spec))
        await put_right(client, settings, specs)
    await _run_until_told(runner, deployments_ready_file(settings))


async def _run_until_told(runner: "Runner", ready: Path) -> None:
    """Run the runner until SIGTERM, then cancel what it runs.

    The runner's own handler calls its asynchronous `stop` without awaiting it, which would leave
    the runs in progress behind.
    """
    polling = asyncio.create_task(runner.start())
    while not runner.started and not polling.done():
        await asyncio.sleep(0.05)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    replace_private(ready, f"{os.getpid()}\n")
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({polling, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if told.is_set():
        await runner.astop()
    waiting.cancel()
    await polling


async def _wait_for_api(settings: Settings) -> None:
    url = f"{settings.prefect_api()}/health"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + API_SECONDS
    while not await asyncio.to_thread(answers, url):
        if loop.time() > deadline:
            raise TransientError("the Prefect server does not answer", seen=url)
        await asyncio.sleep(0.5)


def main() -> None:
    """Serve the deployments of the pipeline files that the settings name."""
    with errors_told():
        settings = apply(load())
        deployments_ready_file(settings).unlink(missing_ok=True)
        declared = plan(settings.pipeline_files(), settings.deployments)
        shared = settings.prefect_api_url is not None
        asyncio.run(serve(settings, owned(declared, home_id(settings), shared=shared)))


if __name__ == "__main__":
    main()
