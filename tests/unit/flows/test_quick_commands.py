"""Commands that only look at what there is start in a moment: they load none of the large tools."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LARGE = {
    *("torch", "ray", "prefect", "mlflow", "transformers", "onnx", "onnxruntime", "openvino"),
    *("xgboost", "sklearn", "scipy", "matplotlib", "sqlalchemy", "duckdb"),
}
TABLES = {"numpy", "pyarrow", "pandas", "deltalake"}
"""What reads tables: not large, but `--help` needs none of it."""
PROGRAM = """
import atexit, sys
from millrace.flows.cli.main import main
atexit.register(lambda: print("loaded", sorted({large} & sys.modules.keys())))
main()
"""
PIPELINE = "name: t\ndataset: {source: rows.csv, target: y}\n"


def loaded_by(command: str, code: int, folder: Path, large: set[str]) -> str:
    """Run a command in a folder with a pipeline, and return the last line, with what it loaded."""
    (folder / "rows.csv").write_text("x,y\n1,a\n2,b\n")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(large=large), *command.split()],
        env={**os.environ, "MILLRACE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        *(("status", 0), ("history digits", 2), ("keys list", 0), ("down", 0)),
        *(("check pipeline.yaml", 0), ("check pipeline.yaml --json", 0), ("schema", 0)),
    ],
)
def test_a_command_that_looks_loads_nothing_large(command: str, code: int, tmp_path: Path) -> None:
    assert loaded_by(command, code, tmp_path, LARGE) == "loaded []"


@pytest.mark.parametrize("command", ["--help", "check --help", "score --help"])
def test_help_loads_nothing_that_reads_tables(command: str, tmp_path: Path) -> None:
    assert loaded_by(command, 0, tmp_path, LARGE | TABLES) == "loaded []"


def test_the_answer_that_nothing_is_to_be_scored_loads_nothing_large() -> None:
    program = (
        "import sys, millrace.flows.finished_scores, millrace.flows.cli.show\n"
        f"print(sorted({LARGE} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_ctrl_c_during_the_imports_ends_the_process_quietly() -> None:
    program = (
        "import builtins, os, signal\n"
        "real = builtins.__import__\n"
        "def stop(name, *more):\n"
        "    if name == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = stop\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import millrace.flows.cli.main\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
