"""How many replicas `up` runs by the pipeline files, and what `status` says of them."""

from pathlib import Path

import pytest

from millrace.flows.cli.show import describe_replicas
from millrace.flows.services import control
from millrace.flows.services.control import NOT_NEEDED, Status
from millrace.flows.services.replica_bounds import (
    NEEDS_GUARD,
    ReplicasStatus,
    allowed_replicas,
    clean_up_replicas,
    replicas_status,
)
from millrace.flows.services.service_specs import local_services
from millrace.flows.settings import Settings
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.replicas import files
from millrace.serving.replicas.files import Fleet, RunningReplica, Wanted

FILE = """
name: {name}
dataset: {{source: "rows.csv", target: t}}
serving: {{replicas: {replicas}}}
"""


def home(folder: Path, *replicas: str, **settings: object) -> Settings:
    for number, each in enumerate(replicas):
        (folder / f"{number}.yaml").write_text(FILE.format(name=f"p{number}", replicas=each))
    found = Settings(home=folder / "home", pipelines=(str(folder / "*.yaml"),), **settings)
    found.installation().prepared()
    return found


def test_the_largest_of_the_pipeline_files_counts(tmp_path: Path) -> None:
    found = allowed_replicas(home(tmp_path, "{min: 2}", "{max: 3}"))
    assert (found.min, found.max) == (2, 3)


def test_a_file_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    assert allowed_replicas(home(tmp_path, "{min: 2}", "{most: 9}")).max == 2


def test_tritons_elsewhere_are_not_replicas_of_this_home(tmp_path: Path) -> None:
    assert allowed_replicas(home(tmp_path, "{min: 2}", triton="a:1:2")).max == 1


def test_without_the_guard_one_runs_and_up_says_so(tmp_path: Path) -> None:
    settings, said = home(tmp_path, "{min: 2}", guard=False), []
    control._allow_replicas(settings, said.append)
    assert said == [NEEDS_GUARD]
    assert files.read_bounds(settings.run) == ReplicasSpec()


def names(settings: Settings) -> list[str]:
    return [each.name for each in local_services(settings)]


def test_one_triton_is_run_as_ever(tmp_path: Path) -> None:
    settings = home(tmp_path, "{}")
    control._allow_replicas(settings, lambda line: None)
    server = next(each for each in local_services(settings) if each.name == "triton")
    assert (server.replica, server.is_optional) == (None, False)
    assert [each for each in names(settings) if "triton" in each] == ["triton"]
    assert replicas_status(settings) is None


def test_those_beyond_the_fewest_wait_for_load(tmp_path: Path) -> None:
    settings = home(tmp_path, "{min: 1, max: 3}")
    control._allow_replicas(settings, lambda line: None)
    assert names(settings)[2:6] == ["triton", "triton-2", "triton-3", "guard"]
    found = {each.name: each for each in local_services(settings)}
    assert [found[each].is_optional for each in names(settings)[2:5]] == [False, True, True]
    assert control._describe_use(found["triton-2"], is_running=False) == NOT_NEEDED
    assert len({found[each].log for each in names(settings)[2:5]}) == 3
    assert len({found[each].health for each in names(settings)[2:5]}) == 3


def test_down_returns_to_one_and_removes_what_replicas_left(tmp_path: Path) -> None:
    settings = home(tmp_path, "{min: 2}")
    control._allow_replicas(settings, lambda line: None)
    left = settings.run / "triton-8001r2.http"
    left.touch()
    clean_up_replicas(settings)
    assert not left.exists()
    assert [each for each in names(settings) if "triton" in each] == ["triton"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_status_says_how_many_and_why(tmp_path: Path, dry_run: bool) -> None:
    settings = home(tmp_path, f"{{max: 3, dry_run: {str(dry_run).lower()}}}")
    control._allow_replicas(settings, lambda line: None)
    replicas = (RunningReplica(1, 11, "serving"), RunningReplica(2, 12, "loading"))
    files.write_fleet(settings.run, Fleet(8001, 2, replicas, "it does not fit"))
    files.write_wanted(settings.run, Wanted(2, "150 requests/s need 2", 2 if dry_run else None))
    found = replicas_status(settings)
    assert found is not None
    said = list(describe_replicas(Status(True, "/h", replicas=found)))
    assert said[0] == "1 serving, 2 wanted, 1 to 3 allowed: 150 requests/s need 2"
    assert said[-1] == "it does not fit"
    assert any("only says so" in line for line in said) is dry_run


@pytest.mark.parametrize("name", ["replicas.wanted.json", "replicas.json"])
def test_status_names_a_folder_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    settings = home(tmp_path, "{max: 3}")
    (settings.run / name).mkdir()
    control._allow_replicas(settings, lambda line: None)
    if name != "replicas.json":
        files.write_fleet(settings.run, Fleet(8001, 1, ()))
    said = list(describe_replicas(Status(True, "/h", replicas=replicas_status(settings))))
    assert f"{name} is a folder" in said[-1]


def test_status_says_that_the_number_is_fixed(tmp_path: Path) -> None:
    settings = home(tmp_path, "{min: 2}")
    control._allow_replicas(settings, lambda line: None)
    files.write_fleet(settings.run, Fleet(8001, 2, ()))
    found = replicas_status(settings)
    assert isinstance(found, ReplicasStatus)
    assert found.reason == "serving.replicas is a fixed number"
    assert list(describe_replicas(Status(True, "/h"))) == []
