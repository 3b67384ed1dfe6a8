"""Commands that only look at what there is start in a moment: they load none of the large tools."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LARGE = {"torch", "ray", "prefect", "mlflow", "transformers"}
PROGRAM = """
import atexit, sys
from millrace.flows.cli.main import main
atexit.register(lambda: print("loaded", sorted({large} & sys.modules.keys())))
main()
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [("status", 0), ("history digits", 2), ("keys list", 0), ("down", 0), ("--help", 0)],
)
def test_a_command_that_looks_loads_nothing_large(command: str, code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(large=LARGE), *command.split()],
        env={**os.environ, "MILLRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded []", done.stderr
