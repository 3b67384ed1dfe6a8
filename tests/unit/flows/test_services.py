import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.flows.services import service_specs
from millrace.flows.settings import Settings, load


def _settings(home: Path, **chosen: str) -> Settings:
    return Settings(home=home, mlflow_port=15000, prefect_port=14200, **chosen)


def _addresses(settings: Settings, name: str) -> tuple[str | None, str | None]:
    service = service_specs.find_service(settings, [name])
    environment = service_specs.unsupervised_environment(settings, service)
    return environment.get("MLFLOW_TRACKING_URI"), environment.get("PREFECT_API_URL")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "MILLRACE_DERIVED"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_supervisor_the_scheduled_runs_find_the_local_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path)
    service = service_specs.deployments_service(settings)
    monkeypatch.setattr(os, "environ", service_specs.unsupervised_environment(settings, service))
    found = load()
    assert found.mlflow_uri() == "http://127.0.0.1:15000"
    assert found.prefect_api() == "http://127.0.0.1:14200/api"


def test_a_server_that_was_chosen_stays_the_one(tmp_path: Path) -> None:
    api = "http://prefect:4200/api"
    settings = _settings(tmp_path, prefect_api_url=api, mlflow_tracking_uri="http://mlflow:5000")
    assert _addresses(settings, "deployments") == ("http://mlflow:5000", api)


def test_the_servers_themselves_are_given_no_address(tmp_path: Path) -> None:
    assert _addresses(_settings(tmp_path), "mlflow") == (f"sqlite:///{tmp_path}/mlflow.db", None)


@pytest.mark.parametrize("names", [[], ["no-such-service"], ["mlflow", "prefect"]])
def test_a_wrong_name_is_an_error_line(tmp_path: Path, names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.flows.services.service_specs", *names],
        env=os.environ | {"MILLRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: give the name of exactly one service\n")
    assert "valid: mlflow, prefect, triton, guard, ray, deployments, webhook" in done.stderr
    assert "Traceback" not in done.stderr
