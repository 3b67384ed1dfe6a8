"""Prefect's port attacked by a process of another user and by pages of other origins.

Nothing may run, and nothing may change; and what somebody with the login did is put back.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from millrace.flows import settings
from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.catch_up import home_id
from millrace.flows.deployments.schedule_state import Schedules
from millrace.flows.services import processes, service_specs
from millrace.flows.services.logins import load_prefect_login
from millrace.flows.settings import MARK, Settings
from tests.integration.foreign_page import (
    EVIL,
    UNREAD,
    attack,
    elsewhere,
    is_refused_by_name,
    rebound,
    victim,
)
from tests.integration.ports import service_ports
from tests.integration.stranger import Ask

pytestmark = pytest.mark.timeout(900)

FLOWS = """
from prefect import flow

@flow
def touch(pipeline_file: str) -> None:
    pass
"""
DEPLOYMENTS = """
deployments:
  - {name: score, entrypoint: trial_flows.touch, tags: [millrace], parameters: {pipeline_file: x}}
"""
PIPELINE = "name: digits\ndataset: {source: r.csv, target: y}\nschedule: {score: 0 2 1 1 *}\n"
OBJECTS = (
    *("deployments", "flows", "flow_runs", "automations", "block_documents", "variables"),
    *("work_pools", "artifacts", "v2/concurrency_limits"),
)
REFUSED = {"401", "403", "404", "405", "415", "421"}


@dataclass
class Site:
    """A Prefect server as `up` runs it, and the process that keeps its deployments."""

    settings: Settings
    folder: Path
    started: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def port(self) -> int:
        return self.settings.prefect_port

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def name(self) -> str:
        return f"score-digits-{home_id(self.settings)}"

    def start(self, part: service_specs.Service) -> None:
        with part.log.open("ab") as log:
            self.started[part.name] = subprocess.Popen(
                part.argv,
                env=service_specs.unsupervised_environment(self.settings, part)
                | {"PYTHONPATH": str(self.folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API with the login; again where its database is busy."""
        user, password = load_prefect_login(self.settings.run).split(":")

        def answer() -> httpx.Response | None:
            url = f"{self.api}/{path}"
            login = (user, password)
            found = httpx.request(method, url, json=body, auth=login, timeout=30, trust_env=False)
            return found if found.status_code != 503 else None

        found = wait(answer, 60, "Prefect answers")
        found.raise_for_status()
        return found.json() if found.content else None

    def objects(self) -> dict[str, list[str]]:
        """Return the ids of everything that can be made; runs that a schedule made are no news."""
        return {
            kind: sorted(
                each["id"]
                for each in self.ask("POST", f"{kind}/filter", {})
                if not each.get("auto_scheduled")
            )
            for kind in OBJECTS
        }

    def deployment(self) -> dict[str, Any] | None:
        wanted = {"deployments": {"name": {"any_": [self.name]}}}
        found: list[dict[str, Any]] = self.ask("POST", "deployments/filter", wanted)
        return found[0] if found else None

    def state(self) -> Schedules:
        found = schedule_state.read(self.settings.run)
        assert found is not None
        return found


def wait(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "trial_flows.py").write_text(FLOWS)
    (folder / "prefect.yaml").write_text(DEPLOYMENTS)
    (folder / "digits.yaml").write_text(PIPELINE)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in settings.variables():
            monkeypatch.delenv(name, raising=False)
        chosen = Settings(
            home=folder / "home",
            deployments=folder / "prefect.yaml",
            pipelines=(str(folder / "digits.yaml"),),
            **service_ports(),
        )
        chosen.installation().prepared()
        site = Site(chosen, folder)
        try:
            site.start(service_specs.prefect_service(chosen))
            site.start(service_specs.deployments_service(chosen))
            ready = service_specs.deployments_ready_file(chosen)
            wait(ready.exists, 240, "the deployments are registered")
            yield site
        finally:
            for process in reversed(site.started.values()):
                process.terminate()
                process.wait(30)
            processes.end_processes(processes.find_marked(MARK, str(chosen.home)), 5.0)


def attacks(site: Site) -> list[tuple[str, str, Any]]:
    """Return what was done at eb2db76, and its relatives."""
    found = site.deployment()
    assert found is not None
    script = f"touch {site.folder}/owned"
    step = {"prefect.deployments.steps.run_shell_script": {"script": script}}
    upsert = {"name": site.name, "flow_id": found["flow_id"], "pull_steps": [step]}
    return [
        ("POST", "/api/deployments/", upsert),
        ("POST", f"/api/deployments/{found['id']}/create_flow_run", {}),
        ("PATCH", f"/api/deployments/{found['id']}", {"pull_steps": [step]}),
        ("POST", "/api/deployments/bulk_delete", {}),
        ("DELETE", f"/api/deployments/{found['id']}", None),
        ("POST", "/api/flows/", {"name": "evil"}),
        ("DELETE", f"/api/flows/{found['flow_id']}", None),
        ("POST", "/api/flow_runs/", {"flow_id": found["flow_id"]}),
        ("POST", "/api/automations/", {"name": "evil", "trigger": {}, "actions": []}),
        ("POST", "/api/variables/", {"name": "evil", "value": 1}),
        ("POST", "/api/block_types/", {"name": "evil", "slug": "evil"}),
        ("POST", "/api/work_pools/", {"name": "evil", "type": "process"}),
        ("POST", "/api/admin/database/clear", {"confirm": True}),
        ("GET", "/api/admin/settings", None),
        ("GET", "/api/variables/name/health", None),
        ("POST", "/api//deployments/filter", {}),
        ("POST", "/api/health/../deployments/filter", {}),
        ("POST", "/api/ui/flow_runs/history", {}),
    ]


def as_nobody(site: Site, method: str, path: str, body: Any, *headers: str) -> str:
    """Ask as another user of the machine; return the status."""
    words = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--path-as-is", "-X", method]
    data = [] if body is None else ["--data-binary", json.dumps(body)]
    extra = [word for each in headers for word in ("-H", each)]
    url = f"http://127.0.0.1:{site.port}{path}"
    user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
    command = ["curl", *words, *data, *extra, url]
    options: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.environ["PATH"]}, **user}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, **options
    )
    return done.stdout


def unharmed(site: Site, before: dict[str, list[str]]) -> None:
    assert site.objects() == before
    assert not (site.folder / "owned").exists()
    assert site.state().put_back == ()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_process_of_another_user_changes_and_runs_nothing(site: Site) -> None:
    before = site.objects()
    json_, guessed = "Content-Type: application/json", "Authorization: Basic bWlsbHJhY2U6eA=="
    for method, path, body in attacks(site):
        for headers in ((json_,), ("Content-Type:",), (json_, guessed)):
            assert as_nobody(site, method, path, body, *headers) in REFUSED, (method, path)
    assert as_nobody(site, "GET", "/api/health", None) == "200"
    unharmed(site, before)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_without_the_files_of_the_home_there_is_no_login(site: Site) -> None:
    """What another user may read of the servers' processes holds no part of it."""
    login = load_prefect_login(site.settings.run)
    for process in site.started.values():
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        assert login.partition(":")[2] not in command
    assert (site.settings.run / "prefect.login").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["events/in", "events/out", "logs/out"])
def test_a_websocket_without_the_login_is_closed(site: Site, path: str) -> None:
    url = f"ws://127.0.0.1:{site.port}/api/{path}"
    assert _told_by_socket(url) == "closed"
    for first in ({"type": "auth"}, {"type": "auth", "token": "x"}, {"type": "event"}):
        assert _told_by_socket(url, first) == "closed"
    login = {"type": "auth", "token": load_prefect_login(site.settings.run)}
    assert "auth_success" in _told_by_socket(url, login)
    assert _told_by_socket(url, login, origin="http://evil.example") == "closed"


def _told_by_socket(url: str, first: Any = None, origin: str | None = None) -> str:
    """Return what a websocket answers to the first message."""
    spoken = None if first is None else [Subprotocol("prefect")]
    try:
        with connect(url, subprotocols=spoken, origin=cast("Origin", origin)) as socket:
            if first is not None:
                socket.send(json.dumps(first))
            return str(socket.recv(timeout=10))
    except (InvalidHandshake, ConnectionClosed):
        return "closed"


@pytest.mark.browser
def test_a_page_of_another_origin_changes_and_runs_nothing(site: Site) -> None:
    before = site.objects()
    tried = [Ask("GET", "/api/events/in"), *(asked(*each) for each in attacks(site))]
    with victim() as page, elsewhere() as foreign:
        for name in (EVIL, "127.0.0.1"):  # the second is the same site, another origin
            page.goto(f"http://{name}:{foreign.port}/")
            for target in ("127.0.0.1", "localhost"):
                told = attack(page, f"http://{target}:{site.port}", tried)
                assert {each for each in told if each[1] not in UNREAD} == set()
        told = rebound(page, site.port, tried)
        assert {each for each in told if not is_refused_by_name(each[1])} == set()
    unharmed(site, before)


def asked(method: str, path: str, body: Any) -> Ask:
    return Ask(method, path, None if body is None else json.dumps(body))


def test_a_deployment_that_vanished_is_put_back_and_told(site: Site) -> None:
    found = site.deployment()
    assert found is not None
    site.ask("DELETE", f"deployments/{found['id']}")
    back = wait(site.deployment, 60, "it is put back")
    assert back["id"] != found["id"]
    assert [each["schedule"]["cron"] for each in back["schedules"]] == ["0 2 1 1 *"]
    wait(lambda: [each.what for each in site.state().put_back], 30, "it is told")
    assert site.state().put_back[-1].what == "it was missing"


def test_foreign_steps_do_not_stay_in_a_deployment(site: Site) -> None:
    found = site.deployment()
    assert found is not None
    step = {"prefect.deployments.steps.run_shell_script": {"script": "true"}}
    upsert = {"name": site.name, "flow_id": found["flow_id"], "pull_steps": [step]}
    site.ask("POST", "deployments/", upsert)

    def clean() -> bool:
        now = site.deployment()
        return now is not None and not now["pull_steps"] and now["entrypoint"] is not None

    wait(clean, 60, "it is as it was")
    wait(lambda: "pull_steps" in site.state().put_back[-1].what, 30, "it is told")


def test_a_pause_stays(site: Site) -> None:
    found = site.deployment()
    assert found is not None
    schedule = found["schedules"][0]["id"]
    site.ask("PATCH", f"deployments/{found['id']}/schedules/{schedule}", {"active": False})
    wait(lambda: site.state().schedules[0].paused, 60, "the pause is seen")
    (site.folder / "digits.yaml").write_text(PIPELINE.replace("0 2", "0 3"))
    wait(lambda: site.state().schedules[0].cron == "0 3 1 1 *", 60, "the new time is taken")
    now = site.deployment()
    assert now is not None
    assert [(s["schedule"]["cron"], s["active"]) for s in now["schedules"]] == [
        ("0 3 1 1 *", False)
    ]


def test_schedules_follow_the_files_and_the_setting(site: Site) -> None:
    file, other = site.folder / "digits.yaml", site.folder / "penguins.yaml"
    file.write_text(PIPELINE.replace("0 2 1 1 *", "every night"))
    wait(lambda: site.state().faults, 60, "the invalid file is told")
    assert "its last valid schedule applies" in site.state().faults[0].reason
    assert [each.cron for each in site.state().schedules] == ["0 3 1 1 *"]
    other.write_text(PIPELINE.replace("digits", "penguins").replace("0 2 1", "0 4 1"))
    schedule_state.write_patterns(site.settings.run, (str(other),))
    wait(lambda: site.state().patterns == (str(other),), 60, "the other list is taken")
    assert site.state().faults == ()
    found = site.deployment()
    assert found is not None
    assert found["schedules"] == []
    assert [(each.file, each.cron) for each in site.state().schedules] == [
        (str(other), "0 4 1 1 *")
    ]
    other.unlink()
    wait(lambda: site.state().faults, 60, "the missing file is told")
    assert site.state().schedules == ()
