import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.flows import settings, tool_variables
from millrace.flows.cli import command_setup, main, pipeline_commands
from millrace.models.common.errors import InputError


def test_check_refuses_a_source_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("name: t\ndataset:\n  source: gone.csv\n  target: y\n")
    with pytest.raises(InputError, match="the source file does not exist"):
        pipeline_commands.check(file)


def test_only_a_preflight_looks_at_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "load", lambda: None)
    monkeypatch.setattr(tool_variables, "apply", _stop)
    file = tmp_path / "p.yaml"
    file.write_text("name: t\ndataset:\n  source: gone.csv\n  target: y\n")
    with pytest.raises(KeyError, match="past the file"):
        command_setup.prepare(file)
    monkeypatch.setattr(tool_variables, "apply", lambda found: found)
    with pytest.raises(InputError, match="the source file does not exist"):
        command_setup.prepare(file, check_source=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], False),
        (["--set", "rollout.kind=canary"], True),
        (["--set", "rollout.kind=shadow"], True),
    ],
)
def test_check_tells_how_much_traffic_a_rollout_needs(
    tmp_path: Path, options: list[str], told: bool
) -> None:
    (tmp_path / "r.csv").write_text("x,y\n1,2\n")
    file = tmp_path / "p.yaml"
    file.write_text("name: t\ndataset:\n  source: r.csv\n  target: y\n")
    done = CliRunner().invoke(main.make_app(), ["check", str(file), *options])
    assert done.exit_code == 0
    assert ("rollout: a step of 600 s needs at least" in done.stdout) == told


def test_check_needs_no_home_where_no_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    (tmp_path / "r.csv").write_text("x,y\n1,2\n")
    file = tmp_path / "p.yaml"
    file.write_text("name: t\ndataset:\n  source: r.csv\n  target: y\n")
    assert CliRunner().invoke(main.make_app(), ["check", str(file)]).exit_code == 0
    assert not (tmp_path / "home").exists()


def test_check_looks_for_a_version_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "load", lambda: None)
    monkeypatch.setattr(tool_variables, "apply", _stop)
    (tmp_path / "r.csv").write_text("x,y\n1,2\n")
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: t\ndataset:\n  source: r.csv\n  target: y\ntraining: {compare: digits}\n"
    )
    with pytest.raises(KeyError, match="past the file"):
        pipeline_commands.check(file)


@pytest.mark.parametrize("arguments", [["schema"], ["schema", "--json"]])
def test_the_schema_is_json_asked_for_or_not(arguments: list[str]) -> None:
    done = CliRunner().invoke(main.make_app(), arguments)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["properties"]["dataset"]


def _stop(_: object) -> None:
    raise KeyError("past the file")


@pytest.mark.parametrize("date", ["24.11.2026", "2026-13-24"])
def test_a_date_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, date: str
) -> None:
    monkeypatch.setattr(pipeline_commands, "prepare", _stop)
    with pytest.raises(InputError, match="the date is not valid"):
        pipeline_commands.score(tmp_path / "p.yaml", date=date)
