"""`millrace schedule` without an `up`: what is scheduled, and which files are added and removed."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.flows.deployments.own_schedules import FILE, OwnSchedules, read_own
from millrace.models.common.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        text = f"name: {name}\ndataset: {{source: r.csv, target: y}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("MILLRACE_PIPELINES", "one.yaml")
    return tmp_path


def run(*words: str) -> Result:
    done = CliRunner().invoke(main.make_app(("schedule", "status")), ["schedule", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def scheduled() -> dict[str, str]:
    shown = json.loads(run("list", "--json").stdout)
    return {each["deployment"]: each["file"] for each in shown["schedules"]}


def test_what_is_chosen_is_listed_with_its_next_time(folder: Path) -> None:
    assert scheduled() == dict.fromkeys(("train-one", "score-one"), str(folder / "one.yaml"))
    shown = json.loads(run("list", "--json").stdout)
    assert not shown["up"]
    assert all(each["next"][4] == "-" for each in shown["schedules"])
    done = run("list")
    assert "score-one" in done.stdout
    assert "before `millrace up`" in done.stderr


def test_a_file_is_added_once_and_removed_by_its_name(folder: Path) -> None:
    assert "train-two" in run("add", "two.yaml").stderr
    run("add", "two.yaml")
    assert set(scheduled()) == {"train-one", "score-one", "train-two", "score-two"}
    assert str(folder / "two.yaml") in run("remove", "two").stderr
    assert set(scheduled()) == {"train-one", "score-one"}


def test_a_file_of_the_setting_is_removed_and_taken_back(folder: Path) -> None:
    run("remove", "one.yaml")
    assert scheduled() == {}
    run("add", "one.yaml")
    assert set(scheduled()) == {"train-one", "score-one"}


def test_names_are_not_mixed_up_with_steps(folder: Path) -> None:
    with pytest.raises(InputError, match="score is not scheduled"):
        run("remove", "score")
    (folder / "score.yaml").write_text((folder / "two.yaml").read_text().replace("two", "score"))
    run("add", "score.yaml")
    assert "train-score" in scheduled()


def test_a_path_with_brackets_is_a_path(folder: Path) -> None:
    (folder / "d[1]").mkdir()
    (folder / "d[1]" / "two.yaml").write_text((folder / "two.yaml").read_text())
    assert "score-two" in run("add", "d[1]/two.yaml").stderr


def test_a_second_file_of_one_name_is_refused(folder: Path) -> None:
    (folder / "three.yaml").write_text((folder / "one.yaml").read_text())
    with pytest.raises(InputError, match="'one' is scheduled already"):
        run("add", "three.yaml")
    assert "score-one" in scheduled()


@pytest.mark.parametrize("text", ["name: x\n", "[]", ""])
def test_a_file_that_is_not_valid_is_not_added(folder: Path, text: str) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(InputError):
        run("add", "bad.yaml")
    assert read_own(folder / "home") == OwnSchedules()


def test_what_is_not_scheduled_cannot_be_removed(folder: Path) -> None:
    with pytest.raises(InputError, match="three.yaml is not scheduled") as told:
        run("remove", "three.yaml")
    assert str(folder / "one.yaml") in (told.value.valid or "")


@pytest.mark.parametrize("command", ["pause", "resume", "run-now"])
def test_what_needs_prefect_says_that_up_does_not_run(folder: Path, command: str) -> None:
    with pytest.raises(InputError, match="`up` does not run"):
        run(command, "score-one")


def test_a_damaged_file_counts_as_none(folder: Path) -> None:
    run("add", "two.yaml")
    (folder / "home" / FILE).write_text("{")
    assert read_own(folder / "home") == OwnSchedules()
    assert set(scheduled()) == {"train-one", "score-one"}
