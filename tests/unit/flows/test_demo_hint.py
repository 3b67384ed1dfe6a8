import sys
from pathlib import Path

import pytest

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
