"""What a process of another user, a user of few rights and a web page may do to MLflow: nothing."""

import base64
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from mlflow import MlflowClient

from tests.integration.attacks import JSON, mlflow_changes, mlflow_reads
from tests.integration.attacks import MLFLOW as API
from tests.integration.mlflow_home import Mlflow, running_mlflow
from tests.integration.stranger import Ask, as_stranger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="users and /proc")

ASSISTANT = "/ajax-api/3.0/mlflow/assistant"
LISTED = """
import json, os
os.environ["_MLFLOW_SGI_NAME"] = "uvicorn"
from mlflow.server.auth import create_app
from mlflow.server import app
fast = create_app()
found = {(m, r.rule) for r in app.url_map.iter_rules() for m in r.methods}
def walk(routes, prefix=""):
    for route in routes:
        path = prefix + getattr(route, "path", "")
        for method in getattr(route, "methods", None) or ():
            yield method, path
        yield from walk(getattr(route, "routes", None) or (), path)
        if (included := getattr(route, "original_router", None)) is not None:
            yield from walk(included.routes, prefix + route.include_context.prefix)
found |= set(walk(fast.routes))
print(json.dumps(sorted(found)))
"""


def basic(user: str, password: str) -> dict[str, str]:
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {word}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    path = tmp_path_factory.mktemp("login") / "home"
    with running_mlflow(path, MILLRACE_MLFLOW_AUTH="true") as server:
        seed(server, basic("admin", server.password))
        yield server


@pytest.fixture(scope="module")
def without_login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    with running_mlflow(tmp_path_factory.mktemp("open") / "home") as server:
        seed(server, {})
        yield server


def seed(server: Mlflow, login: dict[str, str]) -> None:
    """Make a model with a version and the alias, an experiment, and a user of no rights."""
    asked = [
        Ask("POST", f"{API}/experiments/create", json.dumps({"name": "e"})),
        Ask("POST", f"{API}/registered-models/create", json.dumps({"name": "digits"})),
        Ask(
            "POST",
            f"{API}/model-versions/create",
            json.dumps({"name": "digits", "source": "s3://nowhere/x"}),
        ),
        Ask(
            "POST",
            f"{API}/registered-models/alias",
            json.dumps({"name": "digits", "alias": "champion", "version": "1"}),
        ),
    ]
    if login:
        eve = json.dumps({"username": "eve", "password": "eve-is-a-user-1"})
        asked.append(Ask("POST", f"{API}/users/create", eve))
    asked = [Ask(each.method, each.path, each.body, {**JSON, **login}) for each in asked]
    for status, text in as_stranger(server.address, asked):
        assert status == 200, text


def routes(server: Mlflow) -> list[tuple[str, str]]:
    """Return method and path of every route of MLflow, with its login."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED],
        env=server.home.environment
        | {
            "MLFLOW_AUTH_CONFIG_PATH": str(server.home.path / "mlflow_auth.ini"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "x",
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{server.home.path}/mlflow.db",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    plain = {(method, re.sub(r"<[^>]*>|{[^}]*}", "1", path)) for method, path in found}
    return sorted(plain)


PUBLIC = re.compile(r"^/(health|version|static-files/.*|favicon.ico|.*/server-info.*)$")


def test_without_a_login_nothing_is_read_or_changed(guarded: Mlflow) -> None:
    before = guarded.objects(), guarded.files()
    every = [each for each in routes(guarded) if each[0] != "OPTIONS"]
    assert len(every) > 300
    asked = [
        Ask(method, path, None if method in ("GET", "HEAD") else "{}", JSON)
        for method, path in every
        if not PUBLIC.match(path)
    ]
    answered = as_stranger(guarded.address, asked)
    let_in = [
        (each.method, each.path, status)
        for each, (status, _) in zip(asked, answered, strict=True)
        if status < 400
    ]
    assert let_in == []
    assert (guarded.objects(), guarded.files()) == before


def test_the_assistant_which_runs_commands_is_there_for_nobody(without_login: Mlflow) -> None:
    model = {
        "selected": True,
        "base_url": "http://127.0.0.1:1",
        "permissions": {"full_access": True},
    }
    asked = [
        Ask("GET", f"{ASSISTANT}/config"),
        Ask("PUT", f"{ASSISTANT}/config", json.dumps({"providers": {"ollama": model}}), JSON),
        Ask("POST", f"{ASSISTANT}/message", json.dumps({"message": "run id"}), JSON),
        Ask("GET", f"{ASSISTANT}/sessions/1/stream"),
    ]
    assert [status for status, _ in as_stranger(without_login.address, asked)] == [404] * 4


def through_a_link(server: Mlflow, login: dict[str, str], folder: Path) -> list[tuple[int, str]]:
    """Ask, as another user, for a file of the home by a run whose artifacts are a link to it."""

    def asked(method: str, path: str, body: object = None) -> dict[str, Any]:
        text = json.dumps(body) if body is not None else None
        ((status, found),) = as_stranger(
            server.address, [Ask(method, path, text, {**JSON, **login})]
        )
        assert status == 200, found
        return dict(json.loads(found))

    made = {"name": f"linked-{folder.name}", "artifact_location": str(folder)}
    experiment = asked("POST", f"{API}/experiments/create", made)["experiment_id"]
    run = asked("POST", f"{API}/runs/create", {"experiment_id": experiment})["run"]["info"][
        "run_id"
    ]
    (folder / run).mkdir()
    (folder / run / "artifacts").symlink_to(server.home.path)
    sent = {"Content-Type": "application/octet-stream", **login}
    query = f"run_uuid={run}&path="
    return as_stranger(
        server.address,
        [
            Ask("GET", f"/get-artifact?{query}mlflow.log", None, login),
            Ask("GET", f"{API}/artifacts/list?run_id={run}", None, login),
            Ask("POST", f"/ajax-api/2.0/mlflow/upload-artifact?{query}planted", "x", sent),
        ],
    )


@pytest.mark.parametrize("has_login", [False, True])
def test_an_experiment_at_a_folder_of_ones_own_opens_no_file_of_the_servers_user(
    without_login: Mlflow, guarded: Mlflow, has_login: bool
) -> None:
    server = guarded if has_login else without_login
    login = basic("eve", "eve-is-a-user-1") if has_login else {}
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        answers = through_a_link(server, login, Path(name))
    assert [status for status, _ in answers] == [403, 403, 403], answers
    assert not (server.home.path / "planted").exists()


def test_artifacts_in_the_servers_own_folder_are_read_and_written(without_login: Mlflow) -> None:
    client = MlflowClient(without_login.address, without_login.address)
    run = client.create_run("0")
    client.log_text(run.info.run_id, "kept", "a/b.txt")
    query = f"/get-artifact?run_uuid={run.info.run_id}&path=a/b.txt"
    assert as_stranger(without_login.address, [Ask("GET", query)]) == [(200, "kept")]


class Listening(BaseHTTPRequestHandler):
    """Something else of this machine: it notes who asks, and may send on."""

    asked: ClassVar[list[str]] = []
    leads_to = ""

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_response(307 if self.leads_to else 200)
        if self.leads_to:
            self.send_header("Location", self.leads_to)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"inside")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listening(port: int = 0, leads_to: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server on loopback, and what it is asked."""
    handler = type("Handler", (Listening,), {"asked": [], "leads_to": leads_to})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.asked
    finally:
        server.shutdown()
        server.server_close()


HOOKS = ("/api/2.0/mlflow/webhooks", "/ajax-api/2.0/mlflow/webhooks")
EVENTS = [{"entity": "REGISTERED_MODEL", "action": "CREATED"}]


def hook(url: str) -> str:
    return json.dumps({"name": "h", "url": url, "events": EVENTS})


def webhook_made(server: Mlflow, path: str, url: str) -> str:
    """Make a webhook as another user; return the path of it."""
    ((status, text),) = as_stranger(server.address, [Ask("POST", path, hook(url), JSON)])
    assert status == 200, text
    return f"{path}/{json.loads(text)['webhook']['webhook_id']}"


def receiver_of(server: Mlflow) -> str:
    return f"http://127.0.0.1:{server.home.environment['MILLRACE_WEBHOOK_PORT']}/mlflow"


@pytest.mark.parametrize("path", HOOKS)
def test_nobody_makes_mlflow_ask_elsewhere_on_this_machine(
    without_login: Mlflow, path: str
) -> None:
    ours = receiver_of(without_login)
    with listening() as (address, asked):
        elsewhere = [
            *(f"{address}/", address.replace("127.0.0.1", "localhost"), "http://169.254.169.254/"),
            *(address.replace("http:", "https:"), "http://8.8.8.8/", "http://[::1]:8000/"),
            *(f"{ours}/more", f"{ours}?x", ours.replace("//", "//x@"), ours + "/../v2", f" {ours}"),
        ]
        made = webhook_made(without_login, path, ours)
        changes = [
            ask
            for url in elsewhere
            for ask in (
                Ask("POST", path, hook(url), JSON),
                Ask("PATCH", made, json.dumps({"url": url}), JSON),
            )
        ]
        answered = as_stranger(without_login.address, changes)
        assert {status for status, _ in answered} == {400}, answered
        webhook_made(without_login, path, "https://8.8.8.8/a-hook-of-somebody")
    assert asked == []


def shown_by_its_test(server: Mlflow, made: str) -> dict[str, Any]:
    """Have MLflow test a webhook, and return what it shows of that."""
    ((status, text),) = as_stranger(server.address, [Ask("POST", f"{made}/test", "{}", JSON)])
    assert status == 200, text
    return dict(json.loads(text)["result"])


def test_an_address_that_an_earlier_server_took_is_not_asked(without_login: Mlflow) -> None:
    made = webhook_made(without_login, HOOKS[0], receiver_of(without_login))
    with listening() as (address, asked):
        with closing(sqlite3.connect(without_login.home.path / "mlflow.db")) as database, database:
            put = "UPDATE webhooks SET url = ? WHERE webhook_id = ?"
            database.execute(put, (f"{address}/", made.rpartition("/")[2]))
        shown = shown_by_its_test(without_login, made)
    assert asked == []
    assert not shown.get("success")
    assert "inside" not in str(shown)


def test_mlflow_asks_our_receiver_and_follows_no_redirect_into_this_machine(
    without_login: Mlflow,
) -> None:
    made = webhook_made(without_login, HOOKS[0], receiver_of(without_login))
    port = int(without_login.home.environment["MILLRACE_WEBHOOK_PORT"])
    with listening(port) as (_, asked):
        assert shown_by_its_test(without_login, made) == {
            "success": True,
            "response_status": 200,
            "response_body": "inside",
        }
    assert asked == ["/mlflow"]
    with listening() as (address, others), listening(port, f"{address}/"):
        assert not shown_by_its_test(without_login, made).get("success")
    assert others == []


def test_a_wrong_password_is_none(guarded: Mlflow) -> None:
    asked = [
        Ask("GET", f"{API}/registered-models/search", None, basic("admin", word))
        for word in ("", "password1234", "password", guarded.password[:-1])
    ]
    assert [status for status, _ in as_stranger(guarded.address, asked)] == [401] * 4


def test_a_user_of_no_rights_changes_nothing_of_others(guarded: Mlflow) -> None:
    before = guarded.objects(), guarded.files()
    login = JSON | {"X-Mlflow-Experiment-Id": "1"} | basic("eve", "eve-is-a-user-1")
    asked = [Ask(each.method, each.path, each.body, login) for each in mlflow_changes("digits", 1)]
    answered = as_stranger(guarded.address, asked)
    told = {each.path: answer for each, answer in zip(asked, answered, strict=True)}
    assert (guarded.objects(), guarded.files()) == before, told
    read = Ask("GET", f"{API}/registered-models/get?name=digits", None, login)
    ((status, _),) = as_stranger(guarded.address, [read])
    assert status == 403


PAGES = {
    "a foreign page": {**JSON, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    "a page of another port": {**JSON, "Origin": "http://localhost:8888"},
    "a page in a sandbox": {**JSON, "Origin": "null"},
    "a page without an origin": {**JSON, "Sec-Fetch-Site": "same-site"},
    "a form": {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": "http://evil.example",
    },
    "plain text": {"Content-Type": "text/plain"},
    "a rebound name": {**JSON, "Host": "evil.example:5000"},
    "a rebound name with its origin": {
        **JSON,
        "Host": "evil.example:5000",
        "Origin": "http://evil.example:5000",
        "Sec-Fetch-Site": "same-origin",
    },
}


STATUS = {"plain text": 415, "a rebound name": 421, "a rebound name with its origin": 421}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_browser_changes_nothing(without_login: Mlflow, page: str) -> None:
    before = without_login.objects(), without_login.files()
    asked = [
        Ask(each.method, each.path, each.body, PAGES[page]) for each in mlflow_changes("digits", 1)
    ]
    answered = as_stranger(without_login.address, asked)
    assert {status for status, _ in answered} == {STATUS.get(page, 403)}
    assert (without_login.objects(), without_login.files()) == before


@pytest.mark.parametrize("page", [each for each in PAGES if each != "plain text"])
def test_a_page_in_a_browser_reads_nothing(without_login: Mlflow, page: str) -> None:
    reads = (Ask("GET", "/"), *mlflow_reads("digits"))
    asked = [Ask("GET", each.path, None, PAGES[page]) for each in reads]
    answered = as_stranger(without_login.address, asked)
    assert {status for status, _ in answered} == {STATUS.get(page, 403)}


def test_its_own_page_and_clients_work(without_login: Mlflow) -> None:
    body = json.dumps({"name": "digits", "key": "k", "value": "v"})
    own = {**JSON, "Origin": without_login.address, "Sec-Fetch-Site": "same-origin"}
    localhost = without_login.address.replace("127.0.0.1", "localhost")
    asked = [
        Ask("POST", f"{API}/registered-models/set-tag", body, headers)
        for headers in (JSON, own, {**own, "Host": localhost[7:], "Origin": localhost})
    ]
    asked += [Ask("GET", "/", None, LINK), Ask("GET", "/health")]
    answered = as_stranger(without_login.address, asked)
    assert {status for status, _ in answered} == {200}


def test_no_secret_is_in_an_argument_or_for_others_to_read(guarded: Mlflow) -> None:
    home: Path = guarded.home.path
    for name in ("mlflow_admin.password", "mlflow_auth.ini", "mlflow_flask.key"):
        assert (home / name).stat().st_mode & 0o077 == 0
    line = Path(f"/proc/{guarded.pid}/cmdline").read_bytes().decode()
    assert guarded.password not in line
    assert "sqlite" not in line
