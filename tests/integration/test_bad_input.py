"""Every mistake a user can make is a clear error with the next step, and nothing half published."""

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import deltalake
import pytest

pytestmark = pytest.mark.timeout(900)

GOOD = "x,y\n" + "".join(f"{i % 7}.5,{'ab'[i % 2]}\n" for i in range(60))
NET = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, in_features): pass\n"


@dataclass(frozen=True)
class Case:
    """A mistake, and what the user must read.

    Attributes:
        command: arguments; `FILE` stands for the pipeline file.
        code: exit code.
        says: texts that the error must contain.
        yaml: the pipeline file; None for no file at all.
        files: other files beside it.
        env: variables; `HOME/` stands for the folder of the case.
    """

    says: tuple[str, ...]
    code: int = 2
    command: tuple[str, ...] = ("run", "FILE")
    yaml: str | None = "{name: bad, dataset: {source: my.csv, target: y}}"
    files: Mapping[str, str] = field(default_factory=lambda: {"my.csv": GOOD})
    env: Mapping[str, str] = field(default_factory=dict)


def _dataset(source: str, more: str = "") -> str:
    return f"{{name: bad, dataset: {{source: {source}, target: y{more}}}}}"


def _with(more: str) -> str:
    return f"{{name: bad, dataset: {{source: my.csv, target: y}}, {more}}}"


CASES: dict[str, Case] = {
    "no pipeline file": Case(("the pipeline file does not exist",), yaml=None),
    "a dry run that measures": Case(
        ("a dry run changes nothing", "--dry-run with --profile"),
        command=("release", "--dry-run", "--profile"),
    ),
    "broken yaml": Case(("YAML", "line"), yaml="name: [bad"),
    "unknown key": Case(("did you mean 'epochs'",), yaml=_with("training: {epoch: 3}")),
    "wrong type": Case(("training.epochs", "many"), yaml=_with("training: {epochs: many}")),
    "out of range": Case(("training.epochs",), yaml=_with("training: {epochs: 0}")),
    "misspelt family": Case(("did you mean 'mlp'",), yaml=_with("model: {family: mpl}")),
    "misspelt candidate": Case(
        ("onnx-int8-static",), yaml=_with("export: {candidates: [onnx-int8]}")
    ),
    "shares do not add up": Case(
        ("add up to 1",), yaml=_dataset("my.csv", ", split: {train: 0.5}")
    ),
    "bad name": Case(("name",), yaml="{name: 'Bad Name', dataset: {source: my.csv, target: y}}"),
    "override of no key": Case(
        ("did you mean",), command=("run", "FILE", "--set", "training.epoch=3")
    ),
    "missing source": Case(("nowhere.csv",), yaml=_dataset("nowhere.csv")),
    "empty source": Case(("empty",), files={"my.csv": ""}),
    "header only": Case(("no rows",), files={"my.csv": "x,y\n"}),
    "glob without a match": Case(("*.parquet",), yaml=_dataset("'*.parquet'")),
    "unknown sklearn set": Case(("digits",), yaml=_dataset("'sklearn:digit'")),
    "target missing": Case(
        ("did you mean 'y'",), yaml=_dataset("my.csv").replace("target: y", "target: yy")
    ),
    "feature missing": Case(("z",), yaml=_dataset("my.csv", ", features: [x, z]")),
    "one class only": Case(("one class",), files={"my.csv": GOOD.replace(",b", ",a")}),
    "features all NaN": Case(
        ("no value in column 'x'", "dataset.features"),
        files={"my.csv": "x,w,y\n" + "".join(f"nan,{i}.5,{'ab'[i % 2]}\n" for i in range(60))},
    ),
    "too many bad rows": Case(
        ("quarantine", "max_quarantine"),
        yaml=_dataset("my.csv", ", columns: {x: {type: float, max: 3}}"),
    ),
    "no module": Case(("net.py",), yaml=_with('model: {family: "net:Net"}')),
    "no such class": Case(
        ("did you mean 'Net'",),
        yaml=_with('model: {family: "net:Nett"}'),
        files={"my.csv": GOOD, "net.py": NET},
    ),
    "params that do not fit": Case(
        ("model.params.hidden", "net:Net"),
        yaml=_with('model: {family: "net:Net", params: {hidden: 3}}'),
        files={"my.csv": GOOD, "net.py": NET},
    ),
    "image of another size": Case(
        ("image_shape",), yaml=_with("model: {family: cnn, params: {image_shape: [1, 8, 8]}}")
    ),
    "home cannot be written": Case(("MILLRACE_HOME",), 1, env={"MILLRACE_HOME": "HOME/my.csv"}),
    "mlflow unreachable": Case(
        ("MLFLOW_TRACKING_URI",), 1, env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    ),
    "prefect unreachable": Case(
        ("PREFECT_API_URL",), 1, env={"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    ),
    "ray unreachable": Case(("RAY_ADDRESS",), 1, env={"RAY_ADDRESS": "127.0.0.1:9"}),
    "triton unreachable": Case(("millrace up",), 1, command=("predict", "bad")),
    "not a port": Case(("MILLRACE_MLFLOW_PORT", "65535"), env={"MILLRACE_MLFLOW_PORT": "many"}),
    "misspelt setting": Case(("MILLRACE_TABLES",), env={"MILLRACE_TABLE": "x"}),
    "nothing to score with": Case(("champion",), command=("score", "FILE")),
    "not a date": Case(("YYYY-MM-DD",), command=("score", "FILE", "--date", "tomorrow")),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, make: Callable) -> dict:
    """Run all cases, two at a time: each is a process of its own that mostly imports."""

    def run(name: str) -> tuple:
        case, folder = CASES[name], tmp_path_factory.mktemp("case")
        for file, text in case.files.items():
            (folder / file).write_text(text)
        if case.yaml is not None:
            (folder / "bad.yaml").write_text(case.yaml)
        home = make(folder / "home")
        words = [str(folder / "bad.yaml") if word == "FILE" else word for word in case.command]
        env = {k: v.replace("HOME/", f"{folder}/") for k, v in case.env.items()}
        return home.run(*words, env=env, cwd=folder), folder / "home"

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_clearly_and_leaves_nothing(name: str, results: dict) -> None:
    case, (done, home) = CASES[name], results[name]
    assert done.code == case.code, done.err
    assert "Traceback" not in done.err + done.out
    assert done.err.count("error:") == 1, done.err
    assert "unexpected error" not in done.err, done.err
    for text in case.says:
        assert text in done.err
    assert not deltalake.DeltaTable.is_deltatable(str(home / "tables/datasets/bad")) or (
        name in PUBLISHES_ITS_DATA
    )
    assert not list(home.glob("staging/*"))
    assert not list(home.glob("tables/predictions/*"))
    assert not _registered(home)


# The data was right and is kept; what came after it was wrong.
PUBLISHES_ITS_DATA = {
    "image of another size",
    "ray unreachable",
}


def test_json_errors_are_json(tmp_path: Path, new_home) -> None:
    done = new_home.run("run", str(tmp_path / "none.yaml"), "--json")
    assert done.code == 2
    assert done.json["exit_code"] == 2
    assert done.json["next"]


def test_a_taken_port_is_named_before_anything_starts(new_home) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = new_home.run("up", env={"MILLRACE_MLFLOW_PORT": port})
    assert done.code == 1
    assert port in done.err
    assert "MILLRACE_MLFLOW_PORT" in done.err


def _registered(home: Path) -> list[object]:
    import sqlite3

    database = home / "mlflow.db"
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("select name from model_versions").fetchall()
