from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from millrace.flows.deployments.catch_up import (
    MissedRun,
    assign_to_home,
    find_superseded,
    home_id,
    is_of_another_home,
)
from millrace.flows.deployments.deployment_specs import DeploymentSpec, plan_deployments
from millrace.flows.settings import DEFAULT_DEPLOYMENTS, Settings
from millrace.models.common.errors import InputError

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def _pipeline(folder: Path, name: str, schedule: str = "") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(f"name: {name}\ndataset: {{source: r.csv, target: y}}\n{schedule}")
    return file


def test_each_pipeline_has_its_own_training_and_scoring(tmp_path: Path) -> None:
    files = (
        _pipeline(tmp_path, "digits"),
        _pipeline(tmp_path, "wine", "schedule: {train: null, score: 5 1 * * *, timezone: CET}\n"),
    )
    specs = {spec.name: spec for spec in plan_deployments(files, DEFAULT_DEPLOYMENTS)}
    each = {"train-digits", "train-wine", "score-digits", "score-wine"}
    assert set(specs) == each | {"release", "clean"}
    assert specs["train-digits"].entrypoint == "millrace.flows.train_model.train_model"
    assert specs["train-digits"].parameters == {"pipeline_file": str(files[0])}
    assert specs["train-digits"].cron == "0 3 * * 1"
    assert specs["train-wine"].cron is None
    assert (specs["score-wine"].cron, specs["score-wine"].timezone) == ("5 1 * * *", "CET")
    assert (specs["release"].cron, specs["release"].limit) == (None, 1)
    assert specs["clean"].cron == "0 5 * * 0"


def test_without_a_pipeline_there_are_the_deployments_of_the_home() -> None:
    names = [spec.name for spec in plan_deployments((), DEFAULT_DEPLOYMENTS)]
    assert names == ["release", "clean"]


def test_two_pipelines_cannot_share_a_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = (_pipeline(tmp_path, "digits"), _pipeline(tmp_path / "other", "digits"))
    with pytest.raises(InputError, match="digits"):
        plan_deployments(files, DEFAULT_DEPLOYMENTS)


@pytest.mark.parametrize(
    "text", ["- a list\n", "name: [\n", "dataset: {}\n", "name: x\nschedule: {when: x}\n"]
)
def test_a_file_that_is_no_pipeline_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError, match="bad.yaml"):
        plan_deployments((tmp_path / "bad.yaml",), DEFAULT_DEPLOYMENTS)


def test_of_the_missed_runs_the_newest_that_matters_is_made_up_for() -> None:
    runs = [
        MissedRun(uuid4(), name, NOW - timedelta(hours=hours))
        for name, hours in (("release", 2), ("release", 1), ("train-a", 30), ("train-a", 3))
    ]
    specs = (
        DeploymentSpec("release", "x", collision_strategy="CANCEL_NEW"),
        DeploymentSpec("train-a", "x"),
    )
    assert set(find_superseded(runs, specs)) == {runs[0].id, runs[1].id, runs[2].id}


def test_a_home_has_one_id_and_no_other_home_has_it(tmp_path: Path) -> None:
    one, other = Settings(home=tmp_path / "one"), Settings(home=tmp_path / "other")
    assert home_id(one) == home_id(one)
    assert home_id(one) != home_id(other)


def _home(folder: Path, id: str, **chosen: str) -> Settings:
    folder.mkdir()
    (folder / "home.id").write_text(id)
    return Settings(home=folder, **chosen)


def test_on_a_shared_server_each_home_has_deployments_of_its_own(tmp_path: Path) -> None:
    specs = plan_deployments((), DEFAULT_DEPLOYMENTS)
    api = "http://prefect:4200/api"
    homes = [_home(tmp_path / id, id, prefect_api_url=api) for id in ("a1", "b2")]
    (here, _), (there, _) = (assign_to_home(specs, home) for home in homes)
    assert (here.name, there.name) == ("release-a1", "release-b2")
    assert here.tags == ("millrace", "release", "home:a1")
    assert is_of_another_home(there.tags, "a1")
    assert not is_of_another_home(here.tags, "a1")


def test_on_the_embedded_server_names_stay_and_what_names_no_home_is_ours(tmp_path: Path) -> None:
    specs = plan_deployments((), DEFAULT_DEPLOYMENTS)
    release, _ = assign_to_home(specs, _home(tmp_path / "home", "a1"))
    assert release.name == "release"
    assert not is_of_another_home(("millrace", "release"), "a1")
