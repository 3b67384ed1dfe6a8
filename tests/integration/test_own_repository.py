"""A user's repository whose folders have the names of Millrace's own."""

import random
from pathlib import Path

import pytest

from tests.integration.conftest import Done, Home, make_home

PIPELINE = """
name: mine
dataset: {source: "tasks.rows:read", key: [id], target: y}
model: {family: "models.net:Net", params: {hidden: 8}}
training: {epochs: 6, learning_rate: 0.01, num_workers: 1}
export: {candidates: [onnx-fp32]}
promotion: auto
"""
FILES = {
    "models/net.py": "from models.layers import layer\n"
    "from torch import nn\n\n\n"
    "class Net(nn.Sequential):\n"
    "    def __init__(self, in_features, num_classes, hidden):\n"
    "        super().__init__(*layer(in_features, hidden), nn.Linear(hidden, num_classes))\n",
    "models/layers.py": "from torch import nn\n\n\n"
    "def layer(inputs, outputs):\n    return nn.Linear(inputs, outputs), nn.ReLU()\n",
    "tasks/rows.py": "from flows.paths import DATA\n"
    "from pyarrow import csv\n\n\n"
    "def read():\n"
    "    yield from csv.open_csv(DATA)\n",
    "flows/paths.py": "from pathlib import Path\n\n"
    "DATA = Path(__file__).parents[1] / 'export' / 'rows.csv'\n",
    "serving/server.py": "raise RuntimeError('nobody asked for this module')\n",
    "export/onnx.py": "raise RuntimeError('nobody asked for this module')\n",
    "tests/test_rows.py": "raise RuntimeError('nobody asked for this module')\n",
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
        (root / name).with_name("__init__.py").touch()
    draws = random.Random(0)
    xs = [draws.uniform(-1, 1) for _ in range(800)]
    rows = [f"{i},{x},{'above' if x > 0 else 'below'}" for i, x in enumerate(xs)]
    (root / "export" / "rows.csv").write_text("\n".join(["id,x,y", *rows]) + "\n")
    (root / "mine.yaml").write_text(PIPELINE)
    return root


@pytest.fixture(scope="module")
def home(repository: Path, ray_of_commands: Path, prefect_api: str) -> Home:
    return make_home(repository / ".millrace", prefect_api, ray_of_commands)


@pytest.fixture(scope="module")
def trained(repository: Path, home: Home) -> Done:
    return home.run("run", "mine.yaml", "--json", cwd=repository)


def test_it_trains_and_exports_with_its_own_packages(trained: Done) -> None:
    assert trained.code == 0, trained.err
    assert trained.json["version"]["version"] == 1


def test_it_scores(trained: Done, repository: Path, home: Home) -> None:
    assert trained.code == 0, trained.err
    scored = home.run("score", "mine.yaml", "--date", "2026-01-01", "--json", cwd=repository)
    assert scored.code == 0, scored.err
    assert scored.json["rows"] == 800
