"""Every command of the README is run, in its order, in a folder like a reader's."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from sklearn.datasets import load_breast_cancer
from typer.main import get_command

from millrace.flows.cli.main import app

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.M | re.S)


def _commands(program: str) -> list[list[str]]:
    lines = [line for block in _blocks("bash") for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [each for each in words if each and each[0] == program]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, make) -> tuple:
    """A reader's folder: the examples, the README's own files, and some data."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for block in (*_blocks("yaml"), *_blocks("python")):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None, "a block of the README does not name its file"
        (folder / name.group(1)).write_text(block)
    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
    frame.to_csv(folder / "my.csv", index=False)
    home = make(folder / ".millrace")
    del home.environment["PREFECT_API_URL"]
    yield home, folder
    home.run("down", cwd=folder)


def test_every_millrace_command_of_the_readme_works(reader: tuple) -> None:
    home, folder = reader
    commands = _commands("millrace")
    assert len(commands) >= 9
    for _, *arguments in commands:
        is_own = arguments == ["run", "mine.yaml"]
        done = home.run(*arguments, *(["--json"] if is_own else []), cwd=folder, timeout=400)
        assert done.code == 0, f"millrace {' '.join(arguments)}\n{done.out}\n{done.err}"
        if is_own:  # a reader's own data and model
            assert done.json["certificate"]["stages"][0]["metric"] >= 0.9
            promotion = done.json["promotion"]
            assert (promotion["challenger"], promotion["champion"]) == (True, False)


def test_down_left_no_process_behind(reader: tuple) -> None:
    import psutil

    home, _ = reader
    left = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.environ().get("MILLRACE_HOME") == str(home.path):
                left.append(process.info["cmdline"])
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    assert left == []


@pytest.mark.parametrize("command", [" ".join(words) for words in _commands("make")])
def test_every_make_command_of_the_readme_is_a_target(command: str) -> None:
    target = command.split()[1]
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_in_the_tables_is_one_of_the_tool() -> None:
    named = set(re.findall(r"`millrace ([a-z]+)", README))
    assert named <= set(get_command(app).commands)
