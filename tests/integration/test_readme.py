"""The commands of the README and of the guides are run, in a folder like a reader's.

The README's are run in their order; its `make demo` is the one of the fixture. Those of the guides
follow before its `millrace down`, in the same home, but for the ones in `NOT_RUN`.
`tests/unit/test_docs.py` checks every other example, and runs `millrace check` and `schema` where
they need no registry.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import filterfalse
from pathlib import Path

import pytest
from sklearn.datasets import load_breast_cancer

from millrace.flows import settings
from millrace.flows.settings import variable
from tests.docs_pages import (
    README,
    ROOT,
    Command,
    all_blocks,
    blocks_of,
    guides,
    is_run_in_process,
)
from tests.integration.conftest import Demo, Done, Home

pytestmark = pytest.mark.timeout(900)

TRAINS = "trains for minutes; other tests train smaller models of the same family"
NOT_HERE = "the model of the page is not in this home"
SERVERS = "needs servers of its own; tests/chaos and test_attacks_mlflow.py have them"
GOAL = "--set serving.slo.p99_ms=20 --set serving.slo.rate=200"
NOT_RUN = {
    "millrace run examples/text.yaml": TRAINS,
    "millrace run examples/code_lm.yaml": TRAINS,
    "millrace run examples/docstrings_lora.yaml": TRAINS,
    "millrace run examples/digits.yaml --set export.objective=throughput": TRAINS,
    "millrace run smaller.yaml": TRAINS,
    "millrace predict code_lm --text def main(": NOT_HERE,
    "millrace certify code_lm": NOT_HERE,
    "millrace predict customers --rows -": NOT_HERE,
    "millrace score nightly-digits.yaml --input rows/today.parquet --date 2026-11-23": NOT_HERE,
    "millrace lineage digits --row 0f3a5c": NOT_HERE,
    f"millrace profile examples/digits.yaml {GOAL}": "it takes two minutes; test_profile.py",
    "millrace score examples/digits.yaml": "`make demo` has scored it",
    "millrace plan --accuracy": "half a minute for a home that has run much; test_cli_plan.py",
    "millrace compare digits/1 digits/2": "this home has one version; test_compare_versions.py",
    "millrace compare digits/2 --by target": "this home has one version",
    "millrace feedback digits --labels labels.csv --key id": "test_feedback.py has labels",
    "millrace schedule run-now score-digits": "the job would run beside what follows",
    "MILLRACE_PIPELINES=examples/digits.yaml,examples/tabular.yaml millrace up": SERVERS,
    "MILLRACE_MLFLOW_AUTH=true millrace up": SERVERS,
    "MILLRACE_HOME=/srv/millrace millrace status": "another home",
    "RAY_ADDRESS=head:6379 millrace run examples/digits.yaml --set training.num_workers=4": SERVERS,
    "millrace release --watch": SERVERS,
}


def _commands(pages: tuple[Path, ...], *programs: str) -> list[Command]:
    blocks = [block for page in pages for block in blocks_of(page)]
    shells = [block for block in blocks if block.language in ("bash", "console")]
    found = [command for block in shells for command in block.commands]
    return [command for command in found if command.program in programs]


FROM_README = _commands((README,), "make", "millrace", "python")
FROM_GUIDES = _commands(guides()[1:], "millrace", "python")
DEMO, UP = ("make", "demo"), ("millrace", "up")


@dataclass(frozen=True)
class Reader:
    """A reader's folder with its home.

    Attributes:
        home: the home, whose `up` starts a Prefect of its own.
        folder: where the reader is.
        demo: `make demo`, once all is installed.
        prefect_api: a server for what runs before `up`, which would each start one.
    """

    home: Home
    folder: Path
    demo: Done
    prefect_api: str


@pytest.fixture(scope="module")
def reader(demo: Demo, prefect_api: str) -> Iterator[Reader]:
    """A reader's folder: the examples, the files that the pages show, and some data."""
    home, folder = replace(demo.home, environment={**demo.home.environment}), demo.folder
    del home.environment["PREFECT_API_URL"]
    for block in all_blocks():
        if block.file_name is not None:
            (folder / block.file_name).write_text(_with_own_ports(block.text, home))
    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
    frame.to_csv(folder / "my.csv", index=False)
    yield Reader(home, folder, demo.done, prefect_api)
    home.run("down", cwd=folder)


def _with_own_ports(text: str, home: Home) -> str:
    """Return a text with the ports of this home in place of the default ones."""
    for name in settings.PORTS:
        default = settings.Settings.model_fields[name].default
        text = text.replace(f"127.0.0.1:{default}", f"127.0.0.1:{home.environment[variable(name)]}")
    return text


def _run(command: Command, reader: Reader, *, is_up: bool) -> Done:
    """Run a command as a reader does."""
    program, *arguments = command.words
    if command.words == DEMO:
        return reader.demo
    home, folder = reader.home, reader.folder
    variables = {} if is_up else {"PREFECT_API_URL": reader.prefect_api}
    variables |= {name: _with_own_ports(value, home) for name, value in command.variables}
    if program == "python":
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=home.environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Done(done.returncode, done.stdout, done.stderr)
    return home.run(*arguments, cwd=folder, timeout=400, env=variables)


def test_every_command_of_the_readme_and_the_guides_works(reader: Reader) -> None:
    assert len(FROM_README) >= 10
    *first, last = FROM_README
    assert last.words == ("millrace", "down")
    known = {*map(str, FROM_README), *NOT_RUN}
    others = {str(each): each for each in FROM_GUIDES if str(each) not in known}
    is_up = False
    for command in (*first, *filterfalse(is_run_in_process, others.values()), last):
        is_up = is_up or command.words == UP
        done = _run(command, reader, is_up=is_up)
        assert done.code == 0, f"{command.page}: {command}\n{done.out}\n{done.err}"
        if check := OUTCOMES.get(str(command)):
            check(done)


def _check_demo(done: Done) -> None:
    """The table has the rows that the README shows; the figures are another machine's."""
    shown = next(block for block in blocks_of(README) if block.language == "console")
    assert _labels(done.out.splitlines()) == _labels(shown.output)


def _check_own_model(done: Done) -> None:
    """A reader's own data and model are learnt from, and wait to be promoted."""
    accuracy = re.search(r"test accuracy +│ ([\d.]+)", done.out)
    assert accuracy
    assert float(accuracy.group(1)) >= 0.9
    words = " ".join(done.out.replace("│", " ").split())
    assert "mine version 1, not champion: promotion is manual" in words
    assert "a release would take it" in words


def _check_live(done: Done) -> None:
    assert "mine version 1 at" in done.out


OUTCOMES = {
    "make demo": _check_demo,
    "millrace run mine.yaml": _check_own_model,
    "millrace predict mine": _check_live,
}


def test_every_command_that_is_not_run_is_in_a_guide() -> None:
    assert set(NOT_RUN) <= {str(command) for command in FROM_GUIDES}


def test_down_left_no_process_behind(reader: Reader) -> None:
    import psutil

    left = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.environ().get("MILLRACE_HOME") == str(reader.home.path):
                left.append(process.info["cmdline"])
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    assert left == []


@pytest.mark.parametrize("target", sorted({c.words[1] for c in FROM_README if c.program == "make"}))
def test_every_make_command_of_the_readme_is_a_target(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _labels(lines: Iterable[str]) -> list[str]:
    """Return the first column of a table, without the lines that only continue a cell."""
    cells = [re.match(r"[│┃] (.*?) +[│┃]", line) for line in lines]
    return [cell.group(1).strip() for cell in cells if cell and cell.group(1).strip()]
