"""`up`, `status` and `down` on real servers, with flows of no weight."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psutil
import pytest

from millrace.flows import run_state, settings, tool_variables
from millrace.flows.deployments.catch_up import assign_to_home, catch_up
from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.deployments.schedule_loop import ScheduleLoop
from millrace.flows.services import control, processes, service_specs
from millrace.flows.services.health import is_service_healthy
from millrace.flows.services.logins import load_prefect_login
from millrace.flows.settings import MARK, Settings
from millrace.models.common.errors import WorkError
from tests.integration.ports import service_ports

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PROCFILE = Path(__file__).parents[2] / "infra" / "Procfile"

FLOWS = """
from pathlib import Path
from prefect import flow

@flow
def touch(file: str) -> None:
    Path(file).write_text("done")

@flow
def score(pipeline_file: str) -> None:
    Path(pipeline_file).with_suffix(".done").write_text("done")
"""

DEPLOYMENTS = """
deployments:
  - name: release
    entrypoint: trial_flows.touch
    tags: [millrace]
    parameters: {{file: {file}}}
    schedules: [{{cron: "* * * * *"}}]
  - name: score
    entrypoint: trial_flows.score
    tags: [millrace]
    parameters: {{pipeline_file: ""}}
"""


def _wait(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def _settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in (*settings.variables(), "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    folder.mkdir(exist_ok=True)
    (folder / "prefect.yaml").write_text(DEPLOYMENTS.format(file=folder / "touched"))
    (folder / "trial_flows.py").write_text(FLOWS)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Settings(
        home=folder / "home",
        **service_ports(),
        deployments=folder / "prefect.yaml",
        pipelines=(),
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        chosen = _settings(tmp_path_factory.mktemp("with space"), monkeypatch)
        try:
            control.up(chosen)
            yield chosen
        finally:
            control.down(chosen)


def _pid(chosen: Settings, name: str) -> int:
    found = next(each for each in control.status(chosen).services if each.name == name)
    return found.pid or 0


def _api(chosen: Settings) -> httpx.Client:
    """Return a client of the Prefect server of a home, with its login."""
    user, password = load_prefect_login(chosen.run).split(":")
    api = f"http://127.0.0.1:{chosen.prefect_port}/api"
    return httpx.Client(base_url=api, auth=(user, password), trust_env=False)


def test_all_services_are_up(running: Settings) -> None:
    report = control.status(
        running, live_versions=lambda installation: {"endpoints": len(installation.triton)}
    )
    names = ["mlflow", "prefect", "triton", "guard", "ray", "deployments", "webhook", "openai"]
    assert [each.name for each in report.services] == names
    assert report.healthy
    ray = next(each for each in report.services if each.name == "ray")
    assert (ray.running, ray.use) == (False, "starts with the first use")
    assert report.live_versions == {"endpoints": 1}
    assert running.installation().tracking_uri == f"http://127.0.0.1:{running.mlflow_port}"


def test_up_again_changes_nothing(running: Settings) -> None:
    before, lines = control.status(running), list[str]()
    assert "pipelines" in running.model_fields_set  # they are handed over, and are the same
    assert control.up(running, report=lines.append).pid == before.pid
    assert lines == [f"already up for {running.home}"]


def test_secrets_and_logs_are_private(running: Settings) -> None:
    private = [running.home / "webhook.key", running.run / "services.json"]
    private += [running.run / name for name in ("prefect.login", "schedules.json")]
    private += list((running.home / "logs").glob("*.log"))
    assert running.home.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in private} == {0o600}


def test_a_website_may_not_call_the_servers(running: Settings) -> None:
    with httpx.Client(trust_env=False) as client:
        rebound = client.get(
            f"http://127.0.0.1:{running.mlflow_port}/api/2.0/mlflow/experiments/get?experiment_id=0",
            headers={"Host": "evil.example"},
        )
        crossed = client.options(
            f"http://127.0.0.1:{running.prefect_port}/api/deployments/filter",
            headers={
                "Origin": "http://evil.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type",
            },
        )
    assert rebound.status_code == 421
    assert crossed.headers.get("access-control-allow-origin") is None


def test_a_killed_triton_comes_back(running: Settings) -> None:
    killed = _pid(running, "triton")
    os.kill(killed, signal.SIGKILL)
    _wait(
        lambda: _pid(running, "triton") not in (0, killed) and control.status(running).healthy,
        20,
        "Triton is well again",
    )


def test_the_deployment_is_scheduled_and_runs(running: Settings) -> None:
    with _api(running) as client:
        (deployment,) = client.post("/deployments/filter", json={}).json()

        def scheduled() -> list[object]:
            body = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
            return [
                run
                for run in client.post("/flow_runs/filter", json=body).json()
                if run["auto_scheduled"]
            ]

        _wait(scheduled, 20, "the scheduler plans runs")
        made = f"/deployments/{deployment['id']}/create_flow_run"
        # Prefect answers 503 while SQLite is busy, here with the release that `up` begins with.
        _wait(lambda: client.post(made, json={}).is_success, 10, "Prefect takes a run")
    _wait((running.home.parent / "touched").exists, 30, "the runner runs it")


def _schedule(chosen: Settings, *words: str) -> str:
    """Run `millrace schedule` on a home, and return what it printed."""
    environment = {
        **os.environ,
        "MILLRACE_HOME": str(chosen.home),
        "MILLRACE_DEPLOYMENTS": str(chosen.deployments),
    }
    command = [str(Path(sys.executable).with_name("millrace")), "schedule", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_file_is_scheduled_paused_run_and_removed_while_up_runs(running: Settings) -> None:
    file = running.home.parent / "nightly.yaml"
    file.write_text("name: nightly\ndataset: {source: r.csv, target: y}\n")
    assert "scheduled within seconds: score-nightly" in _schedule(running, "add", str(file))

    def found() -> Any:
        with _api(running) as client:
            known = client.post("/deployments/filter", json={}).json()
        return next((each for each in known if each["name"] == "score-nightly"), None)

    _wait(lambda: found() and found()["schedules"], 30, "it is in Prefect")
    _schedule(running, "pause", "nightly")
    assert found()["paused"]
    _schedule(running, "resume", "score-nightly")
    assert not found()["paused"]
    _schedule(running, "pause", "nightly")
    listed = json.loads(_schedule(running, "list", "--json"))["schedules"]
    paused = {each["deployment"]: each["paused"] for each in listed}
    assert paused["score-nightly"]
    _schedule(running, "remove", "nightly")
    _wait(lambda: not found()["schedules"], 30, "it has no schedule")
    _schedule(running, "add", str(file))
    _schedule(running, "resume", "nightly")
    assert not found()["paused"]
    assert all(each["active"] for each in found()["schedules"])
    _schedule(running, "run-now", "nightly")
    _wait(file.with_suffix(".done").exists, 30, "its run")
    _schedule(running, "remove", "nightly")
    _wait(lambda: not found()["schedules"], 30, "it has no schedule")


def _running_deployment(client: "SyncPrefectClient", home: Settings) -> tuple[str, str]:
    """Make a deployment of a home, with a schedule and a run that no process runs.

    Prefect's client asks again when SQLite was busy, which the server answers by 503.
    """

    def post(path: str, body: object) -> Any:
        return client.request("POST", path, json=body).json()  # type: ignore[arg-type]

    home.home.mkdir(exist_ok=True)
    (spec,) = assign_to_home([DeploymentSpec("train-x", "x", tags=("millrace",))], home)
    flow = post("/flows/", {"name": "shared"})["id"]
    schedules = [{"schedule": {"cron": "0 0 1 1 *"}, "active": True}]
    body = {"name": spec.name, "flow_id": flow, "tags": spec.tags, "schedules": schedules}
    deployment = post("/deployments/", body)["id"]
    run = post(f"/deployments/{deployment}/create_flow_run", {})["id"]
    post(f"/flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    return deployment, run


def test_a_home_puts_right_only_what_is_its_own(running: Settings, tmp_path: Path) -> None:
    from prefect.client.orchestration import PrefectClient, SyncPrefectClient

    api = f"http://127.0.0.1:{running.prefect_port}/api"
    login = load_prefect_login(running.run)
    (tmp_path / "prefect.yaml").write_text("deployments: []\n")
    both = {"prefect_api_url": api, "deployments": tmp_path / "prefect.yaml", "pipelines": ()}
    here, there = (Settings(home=tmp_path / name, **both) for name in ("a", "b"))

    async def never(*_: object) -> UUID:
        raise AssertionError("nothing is to be registered")

    async def pipeline_gone() -> None:
        async with PrefectClient(api, auth_string=login) as client:
            here.installation().prepared()
            loop = ScheduleLoop(here, client, never, lambda entrypoint: entrypoint)
            await loop.check()
            await catch_up(client, here, ())

    with SyncPrefectClient(api, auth_string=login) as client:
        made = [_running_deployment(client, home) for home in (here, there)]
    asyncio.run(pipeline_gone())
    with _api(running) as client:
        states = [client.get(f"/flow_runs/{run}").json()["state_type"] for _, run in made]
        found = [client.get(f"/deployments/{deployment}").json() for deployment, _ in made]
    assert states == ["CRASHED", "RUNNING"]
    assert [len(each["schedules"]) for each in found] == [0, 1]


def test_down_leaves_nothing_behind(running: Settings) -> None:
    supervisor = control.status(running).pid
    assert processes.find_marked(MARK, str(running.home))
    assert control.down(running).was_running
    assert processes.find_marked(MARK, str(running.home)) == []
    assert supervisor is not None
    assert not psutil.pid_exists(supervisor) or psutil.Process(supervisor).status() == "zombie"
    assert all(map(processes.is_port_free, (running.mlflow_port, running.triton_grpc_port)))
    assert not control.down(running).was_running
    assert not control.status(running).running
    assert running.installation().tracking_uri.startswith("sqlite:///")


def test_a_taken_port_is_named_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = _settings(tmp_path, monkeypatch)
    taken = socket.create_server(("127.0.0.1", chosen.prefect_port))
    with taken, pytest.raises(WorkError) as raised:
        control.up(chosen)
    assert str(chosen.prefect_port) in raised.value.what
    assert f"pid {os.getpid()}" in (raised.value.seen or "")
    assert "MILLRACE_PREFECT_PORT" in (raised.value.hint or "")
    assert not control.status(chosen).running


def test_what_a_crash_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _settings(tmp_path, monkeypatch)
    chosen.installation().prepared()
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, MARK: str(chosen.home)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while left.pid not in {each.pid for each in processes.find_marked(MARK, str(chosen.home))}:
        assert time.monotonic() < deadline  # a process has no environment for a moment of its exec
    # The id of the dead supervisor now belongs to somebody else, who must not be stopped.
    run_state.write(chosen.run, run_state.RunRecord(os.getpid(), 0.0))
    found = control.status(chosen)
    assert (found.running, found.orphans) == (False, 1)
    stopped = control.down(chosen)
    assert not stopped.was_running
    assert len(stopped.ended) == 1
    assert left.poll() is not None
    assert run_state.read(chosen.run) is None


def test_a_service_that_cannot_start_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = _settings(tmp_path, monkeypatch)
    chosen = chosen.model_copy(
        update={"prefect_api_url": "http://127.0.0.1:9/api", "mlflow_tracking_uri": "http://x"}
    )
    (tmp_path / "home" / "logs" / "deployments.log").parent.mkdir(parents=True)
    (tmp_path / "trial_flows.py").write_text("raise SystemExit('no such thing')")
    monkeypatch.setattr(control, "HEALTHY_SECONDS", 3.0)
    with pytest.raises(WorkError, match="deployments"):
        control.up(chosen)
    assert processes.find_marked(MARK, str(chosen.home)) == []


def test_the_procfile_runs_everything_and_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = _settings(tmp_path, monkeypatch)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = tmp_path / "honcho.log"
    with said.open("wb") as output:
        honcho = subprocess.Popen(
            [sys.executable, "-m", "honcho", "start", "-f", str(PROCFILE)],
            env={
                **os.environ,
                **tool_variables.chosen_variables(chosen),
                "MILLRACE_HOME": str(chosen.home),
            }
            | {"PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    servers = [each for each in service_specs.local_services(chosen) if each.address]
    ready = service_specs.deployments_ready_file(chosen)

    def well() -> bool:
        assert honcho.poll() is None, said.read_text()[-8000:]
        return ready.exists() and all(is_service_healthy(each, None) for each in servers)

    try:
        _wait(well, 240, "all of them are well")
    finally:
        honcho.send_signal(signal.SIGINT)
        honcho.wait(30)
        left = processes.find_marked(MARK, str(chosen.home))
        processes.end_processes(left, 5.0)
    assert left == []
