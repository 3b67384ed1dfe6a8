"""How often the loop reads Prefect."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.flows.deployments import schedule_loop, schedule_state
from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.deployments.schedule_loop import READ_SECONDS, ScheduleLoop
from millrace.flows.settings import Settings


class Client:
    """A Prefect without deployments, which counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    async def read_deployments(self, **_: Any) -> list[Any]:
        self.reads += 1
        return []


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


async def _register(spec: DeploymentSpec, is_paused: bool) -> UUID:
    return uuid4()


def test_prefect_is_read_rarely_while_the_files_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments = tmp_path / "prefect.yaml"
    deployments.write_text("deployments: []\n")
    settings = Settings(home=tmp_path / "home", deployments=deployments, pipelines=())
    settings.installation().prepared()
    clock, client = Clock(), Client()
    monkeypatch.setattr(schedule_loop, "time", clock)
    prefect: Any = client
    loop = ScheduleLoop(settings, prefect, _register, str)

    def reads_of_a_check() -> int:
        before = client.reads
        asyncio.run(loop.check())
        return client.reads - before

    assert reads_of_a_check() == 1
    assert reads_of_a_check() == 0
    clock.now += READ_SECONDS
    assert reads_of_a_check() == 1
    schedule_state.write_patterns(settings.run, (str(tmp_path / "none.yaml"),))
    assert reads_of_a_check() == 1
    assert loop.state.patterns == (str(tmp_path / "none.yaml"),)
