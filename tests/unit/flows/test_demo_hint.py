import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.flows import training_start
from millrace.flows.cli import demo


@pytest.mark.parametrize(
    ("called", "named"),
    [
        ("checkout/.venv/bin/millrace", ".venv/bin/millrace"),
        ("elsewhere/bin/millrace", "millrace"),
        ("checkout/-c", "millrace"),
    ],
)
def test_the_next_step_names_the_command_as_it_was_called(
    called: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called)])
    assert demo._program() == named


def test_the_demo_connects_to_the_ray_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = object()
    chosen = SimpleNamespace(installation=lambda: None, ray_address="local", warm_ray=lambda: warm)
    given: list[object] = []

    class Connected(Exception):
        """The demo has connected."""

    def connect(*arguments: object) -> None:
        given.extend(arguments)
        raise Connected

    monkeypatch.setattr(demo.settings, "load", lambda: chosen)
    monkeypatch.setattr(demo.tool_variables, "apply", lambda settings: settings)
    monkeypatch.setattr(training_start, "connect_to_ray", connect)
    file = tmp_path / "p.yaml"
    file.write_text("{name: m, dataset: {source: rows.csv, target: t}}")
    with pytest.raises(Connected):
        demo.run_demo(file)
    assert given[2] is warm
