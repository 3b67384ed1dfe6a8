"""Pictures of the MLflow and Prefect UIs, and that they show what a user looks for.

`MILLRACE_SCREENSHOTS=FOLDER` keeps the pictures. With `millrace up` running for `MILLRACE_HOME`,
its latest run is shown; otherwise servers are started on free ports with a small run of their own.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from millrace.flows import settings, tool_variables
from millrace.flows.services import control
from millrace.flows.services.logins import load_prefect_login
from millrace.flows.settings import Settings
from millrace.models.registry.mlflow_pages import (
    KIND,
    KIND_OF_OURS,
    REGISTRY,
    TRAINING,
    page,
    version_page,
)
from tests.integration.chromium import LOADED_MS, browser, log_in, picture, pictures, save
from tests.integration.ports import service_ports

if TYPE_CHECKING:
    pass

# The first test waits for a whole pipeline.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

CLI = "from millrace.flows.cli.main import main; main()"
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


@dataclass(frozen=True)
class Site:
    """The two servers, and where the pictures go."""

    mlflow: str
    prefect: str
    login: tuple[str, str]
    pictures: Path

    def mlflow_api(self, path: str, **query: Any) -> Any:
        """Ask MLflow's REST API: a GET, or a POST of `json`."""
        return _ask(f"{self.mlflow}/api/2.0/mlflow/{path}", query)

    def prefect_api(self, path: str, **query: Any) -> Any:
        """Ask Prefect's REST API, likewise."""
        return _ask(f"{self.prefect}/api/{path}", query, self.login)


def _ask(url: str, query: dict[str, Any], login: tuple[str, str] | None = None) -> Any:
    with httpx.Client(trust_env=False, timeout=30, auth=login) as client:
        body = query.pop("json", None)
        answer = client.get(url, params=query) if body is None else client.post(url, json=body)
        return answer.raise_for_status().json()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = pictures(tmp_path_factory.mktemp("pictures"))
    running = settings.load()
    if control.status(running).healthy:
        yield _site(running, folder)
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in settings.variables():
            monkeypatch.delenv(name, raising=False)
        own = _own(tmp_path_factory.mktemp("home"))
        try:
            control.up(own)
            started = _site(own, folder)
            _seed(own)
            yield started
        finally:
            control.down(own)


def _site(chosen: Settings, pictures: Path) -> Site:
    mlflow, prefect = chosen.mlflow_uri(), chosen.prefect_api()
    assert prefect is not None
    user, password = load_prefect_login(chosen.run).split(":")
    return Site(mlflow, prefect.removesuffix("/api"), (user, password), pictures)


def _own(home: Path) -> Settings:
    return Settings(home=home, pipelines=(str(EXAMPLE),), **service_ports())


def _seed(own: Settings) -> None:
    """Send the example down the line."""
    for words in (("run", str(EXAMPLE)), ("release",), ("score", str(EXAMPLE))):
        command = [sys.executable, "-P", "-c", CLI, *words]
        subprocess.run(command, env=tool_variables.child_environment(own), check=True, timeout=300)


def _latest_version(site: Site) -> dict[str, Any]:
    found = site.mlflow_api(
        "model-versions/search", max_results=1, order_by="creation_timestamp DESC"
    )
    assert found.get("model_versions"), "no model version is registered: run a pipeline first"
    version: dict[str, Any] = found["model_versions"][0]
    return version


def test_mlflow_shows_the_run_and_its_curves(site: Site) -> None:
    run_id = _latest_version(site)["run_id"]
    run = site.mlflow_api("runs/get", run_id=run_id)["run"]
    base = f"{site.mlflow}/#/experiments/{run['info']['experiment_id']}/runs/{run_id}"
    with browser() as context:
        page = context.new_page()
        picture(
            page,
            f"{base}?{TRAINING}",
            site.pictures / "mlflow-run.png",
            run["info"]["run_name"],
            "Metrics",
        )
        page.goto(f"{base}/model-metrics?{TRAINING}")
        for name in ("test.accuracy", "train_loss"):  # on the first screen
            page.get_by_text(name, exact=True).first.wait_for(timeout=LOADED_MS)
        save(page, site.pictures / "mlflow-curves.png")
        picture(
            page,
            f"{base}/artifacts?{TRAINING}",
            site.pictures / "mlflow-artifacts.png",
            "certificate",
        )
        page.get_by_text("certificate.json").first.click()
        save(page, site.pictures / "mlflow-artifacts.png")
        page.get_by_text("plots").first.click()
        page.get_by_text("confusion_matrix.png").first.click()
        save(page, site.pictures / "mlflow-confusion.png")


def test_our_links_lead_a_new_user_to_the_registry(site: Site) -> None:
    name = _latest_version(site)["name"]
    with browser() as context:
        opened, file = context.new_page(), site.pictures / "mlflow-registry.png"
        picture(opened, page(site.mlflow, REGISTRY), file, "Registered Models", name)
        file = site.pictures / "mlflow-model.png"
        picture(opened, page(site.mlflow, f"#/models/{name}"), file, "Model registry", name)


def test_our_link_to_an_experiment_shows_its_training_runs(site: Site) -> None:
    run = site.mlflow_api("runs/get", run_id=_latest_version(site)["run_id"])["run"]["info"]
    found = site.mlflow_api("experiments/get", experiment_id=run["experiment_id"])["experiment"]
    assert {"key": KIND, "value": KIND_OF_OURS} in found["tags"]
    url = page(site.mlflow, f"#/experiments/{run['experiment_id']}")
    with browser() as context:
        opened, file = context.new_page(), site.pictures / "mlflow-experiment.png"
        picture(opened, url, file, "Model registry", run["run_name"])
        assert "/runs" in opened.url


def test_mlflow_shows_the_version_its_alias_and_its_certificate(site: Site) -> None:
    version = _latest_version(site)
    url = version_page(site.mlflow, version["name"], version["version"])
    title = f"Version {version['version']}"
    with browser() as context:
        page = context.new_page()
        file = site.pictures / "mlflow-version.png"
        picture(page, url, file, title, "champion", "millrace.certificate", "pytorch")


def test_mlflow_shows_the_batch_job_and_its_plots(site: Site) -> None:
    wanted = {"filter": "name LIKE '%.batch'"}
    (experiment, *_) = site.mlflow_api("experiments/search", max_results=1, **wanted)["experiments"]
    found = {"experiment_ids": [experiment["experiment_id"]], "max_results": 1}
    run = site.mlflow_api("runs/search", json=found)["runs"][0]["info"]
    base = f"{site.mlflow}/#/experiments/{run['experiment_id']}/runs/{run['run_id']}"
    with browser() as context:
        page = context.new_page()
        picture(
            page,
            f"{base}?{TRAINING}",
            site.pictures / "mlflow-batch.png",
            run["run_name"],
            "per_day",
        )
        page.goto(f"{base}/model-metrics?{TRAINING}")
        page.get_by_placeholder("Search metric charts").fill("rows|per_day|utilisation")
        page.get_by_text("per_day").first.wait_for(timeout=LOADED_MS)
        save(page, site.pictures / "mlflow-batch-metrics.png")
        picture(
            page,
            f"{base}/artifacts?{TRAINING}",
            site.pictures / "mlflow-batch-artifacts.png",
            "plots",
        )
        page.get_by_text("plots").first.click()
        for name in ("throughput", "last_runs", "drift"):
            page.get_by_text(f"{name}.png").first.click()
            save(page, site.pictures / f"mlflow-batch-{name}.png")


def test_prefect_asks_for_the_password_and_shows_the_dashboard(site: Site) -> None:
    with browser() as context:
        page = context.new_page()
        picture(page, f"{site.prefect}/login", site.pictures / "prefect-login.png", "Login")
        log_in(page, site.prefect, ":".join(site.login))
        picture(page, f"{site.prefect}/dashboard", site.pictures / "prefect-dashboard.png")
        page.get_by_text("Flow Runs").first.wait_for(timeout=LOADED_MS)


def test_prefect_shows_the_deployments(site: Site) -> None:
    names = [each["name"] for each in site.prefect_api("deployments/filter", json={})]
    assert {name.split("-")[0] for name in names} >= {"train", "release", "score"}
    with browser() as context:
        page = context.new_page()
        log_in(page, site.prefect, ":".join(site.login))
        picture(
            page,
            f"{site.prefect}/deployments",
            site.pictures / "prefect-deployments.png",
            *names,
        )


def test_prefect_shows_the_training_and_its_artifacts(site: Site) -> None:
    wanted = {"artifacts": {"key": {"like_": "%-training"}}, "sort": "CREATED_DESC", "limit": 1}
    (artifact,) = site.prefect_api("artifacts/filter", json=wanted)
    run = site.prefect_api(f"flow_runs/{artifact['flow_run_id']}")
    with browser() as context:
        page = context.new_page()
        log_in(page, site.prefect, ":".join(site.login))
        url = f"{site.prefect}/runs/flow-run/{run['id']}"
        picture(page, url, site.pictures / "prefect-run.png", run["name"], "Artifacts")
        page.get_by_text("Artifacts", exact=True).last.click()
        save(page, site.pictures / "prefect-artifacts.png")
        url = f"{site.prefect}/artifacts/artifact/{artifact['id']}"
        file = site.pictures / "prefect-training.png"
        picture(page, url, file, "Candidates", "Certificate")
