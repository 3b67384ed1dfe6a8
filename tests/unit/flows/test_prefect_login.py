import json
import os
from pathlib import Path

import pytest

from millrace.flows import tool_variables
from millrace.flows.services import service_specs
from millrace.flows.services.logins import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    load_prefect_login,
    prefect_login_file,
)
from millrace.flows.settings import Settings, load

ELSEWHERE = "http://prefect.example/api"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in (CLIENT_VARIABLE, SERVER_VARIABLE, "PREFECT_API_URL", "MILLRACE_DERIVED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    settings = load()
    settings.installation().prepared()
    return settings


def test_the_login_is_made_once_and_private(home: Settings) -> None:
    login = load_prefect_login(home.run)
    assert login.startswith("millrace:")
    assert len(login) > 64
    assert load_prefect_login(home.run) == login
    assert prefect_login_file(home.run).stat().st_mode & 0o777 == 0o600


def test_servers_and_clients_of_a_home_have_it_and_no_argument_does(home: Settings) -> None:
    found, login = tool_variables.child_environment(home), load_prefect_login(home.run)
    assert (found[CLIENT_VARIABLE], found[SERVER_VARIABLE]) == (login, login)
    assert login not in found["MILLRACE_DERIVED"]
    arguments = [word for each in service_specs.local_services(home) for word in each.argv]
    assert not any(login in word or login.split(":")[1] in word for word in arguments)


def test_a_server_of_the_users_gets_the_users_login(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", ELSEWHERE)
    monkeypatch.setenv(CLIENT_VARIABLE, "their:own")
    found = tool_variables.child_environment(load())
    assert found[CLIENT_VARIABLE] == "their:own"
    assert SERVER_VARIABLE not in found


def test_ours_is_never_sent_to_a_server_of_the_users(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below a flow of ours whose program names another server."""
    for name, value in tool_variables.child_environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PREFECT_API_URL", ELSEWHERE)
    found = tool_variables.child_environment(load())
    assert CLIENT_VARIABLE not in found
    assert SERVER_VARIABLE not in found
    assert load_prefect_login(home.run) not in found.values()


def test_a_login_that_was_left_over_does_not_stand_for_ours(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLIENT_VARIABLE, "their:own")
    assert tool_variables.child_environment(home)[CLIENT_VARIABLE] == load_prefect_login(home.run)


def test_what_a_procfile_runs_keeps_the_login_with_the_address(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = service_specs.unsupervised_environment(home, service_specs.deployments_service(home))
    monkeypatch.setattr(os, "environ", dict(whole))
    below = tool_variables.child_environment(load())
    assert below["PREFECT_API_URL"] == f"http://127.0.0.1:{home.prefect_port}/api"
    assert below[CLIENT_VARIABLE] == load_prefect_login(home.run)
    assert "PREFECT_API_URL" not in json.loads(below["MILLRACE_DERIVED"])
