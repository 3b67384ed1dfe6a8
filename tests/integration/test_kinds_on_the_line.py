"""Kinds beside the first two go through the whole line: one of a test's own, and boosted trees."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pytest

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.serving.triton.server import running
from tests.integration.conftest import EXAMPLES, Home

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ROOT = EXAMPLES.parent
WITH_TOY = f"""
import os, sys
os.environ["PYTHONPATH"] = {str(ROOT)!r}  # for Ray's workers
sys.path.append({str(ROOT)!r})
from millrace.models.config.model_kind import KINDS
KINDS["toy"] = "tests.stand_ins.toy_kind:ToyKind"
"""
TOY = """
name: slopes
dataset: {source: rows.csv, target: score, key: [id], features: [age, income]}
model: {family: least_squares}
promotion: auto
"""
TREES = """
name: levels
dataset:
  source: rows.csv
  target: level
  key: [id]
  features: [age, income, city, member]
  columns: {income: {nullable: true}, city: {nullable: true}}
model: {family: gradient_boosting, params: {n_estimators: 60}}
promotion: auto
"""


def write_rows(folder: Path) -> None:
    """A table as people bring it: whole numbers, NA, true and false, a target of 0, 1 and 2."""
    drawn = np.random.default_rng(0)
    effect = drawn.normal(size=40)
    lines = ["id,age,income,city,member,score,level"]
    for row in range(2000):
        age, income, city = int(drawn.integers(18, 90)), drawn.normal(50, 15), drawn.integers(40)
        member = bool(drawn.random() < 0.4)
        score = 0.03 * age + 0.02 * income + effect[city] + 0.5 * member + drawn.normal(0, 0.3)
        town = "NA" if drawn.random() < 0.05 else f"c{city}"
        earned = "NA" if drawn.random() < 0.1 else f"{income:.2f}"
        level = int(score > 2) + int(score > 3)
        lines.append(f"{row},{age},{earned},{town},{str(member).lower()},{score:.3f},{level}")
    (folder / "rows.csv").write_text("\n".join(lines))


@dataclass(frozen=True)
class Served:
    """A home with both models trained and live.

    Attributes:
        home: of the commands.
        installation: the same for code.
        folder: of the pipeline files.
        toy: outcome of the toy's run.
        trees: outcome of the trees' run.
    """

    home: Home
    installation: Installation
    folder: Path
    toy: dict[str, Any]
    trees: dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("kinds")
    write_rows(folder)
    (folder / "toy.yaml").write_text(TOY.replace("features: [age, income]", "features: [age]"))
    (folder / "trees.yaml").write_text(TREES)
    home = make(folder / "home")
    names = ("HTTP", "GRPC", "METRICS")
    ports = [int(home.environment[f"MILLRACE_TRITON_{name}_PORT"]) for name in names]
    endpoint = Endpoint("127.0.0.1", *ports)
    installation = Installation(
        home.path, f"sqlite:///{home.path}/mlflow.db", str(home.path / "tables"), triton=(endpoint,)
    ).prepared()
    toy = home.run("run", str(folder / "toy.yaml"), "--json", first=WITH_TOY)
    assert toy.code == 0, toy.err
    trees = home.run("run", str(folder / "trees.yaml"), "--json")
    assert trees.code == 0, trees.err
    with running(installation, endpoint):
        released = home.run("release", "--json", first=WITH_TOY)
        assert released.code == 0, released.err
        assert [(each["model"], each["error"]) for each in released.json] == [
            ("levels", None),
            ("slopes", None),
        ]
        yield Served(home, installation, folder, toy.json, trees.json)


def predictions(served: Served, model: str) -> dict[int, dict[str, Any]]:
    table = deltalake.DeltaTable(served.installation.table("predictions", model)).to_pyarrow_table()
    return {row["_row"]: row for row in table.to_pylist()}


def test_a_toy_kind_is_trained_certified_and_live(served: Served) -> None:
    assert served.toy["promotion"]["champion"] is True
    stages = [stage["name"] for stage in served.toy["certificate"]["stages"]]
    assert stages == ["least_squares", "onnx-fp32"]
    version = registry_of(served.installation).version("slopes", 1)
    assert version.tags["millrace.kind"] == "toy"


def test_a_toy_kind_scores_as_it_answers(served: Served) -> None:
    scored = served.home.run("score", str(served.folder / "toy.yaml"), "--json", first=WITH_TOY)
    assert scored.code == 0, scored.err
    assert (scored.json["scored"], scored.json["agreement"]["disagreed"]) == (2000, 0)
    assert scored.json["agreement"]["compared"] == 64


def test_without_its_line_a_kind_is_unknown(served: Served) -> None:
    refused = served.home.run("predict", "slopes")
    assert refused.code == 2
    assert "does not know the model kind 'toy'" in refused.err


def test_the_trees_are_certified_against_xgboost(served: Served) -> None:
    certificate = served.trees["certificate"]
    assert certificate["passed"] is True
    xgboost, graph = certificate["stages"]
    assert (xgboost["name"], graph["name"]) == ("xgboost", "onnx-fp32")
    assert graph["test_difference"] <= 1e-5
    assert graph["metric"] > certificate["constant"] + 0.1


def test_the_run_keeps_trees_curves_and_importance(served: Served) -> None:
    store, run = client(served.installation.tracking_uri), served.trees["run"]["run_id"]
    paths = {
        file.path for folder in ("plots", "weights") for file in store.list_artifacts(run, folder)
    }
    assert {"plots/feature_importance.png", "plots/learning_curves.png"} <= paths
    assert "weights/booster.ubj" in paths


def test_batch_and_the_live_trees_answer_alike(served: Served) -> None:
    scored = served.home.run("score", str(served.folder / "trees.yaml"), "--json")
    assert scored.code == 0, scored.err
    assert (scored.json["agreement"]["compared"], scored.json["agreement"]["disagreed"]) == (64, 0)
    plans = [json.loads(f.read_text()) for f in served.home.path.glob("artifacts/**/plan.json")]
    (job,) = [plan for plan in plans if "batch_job" in plan["quantities"]]
    assert job["quantities"]["batch_job"]["measured"] == scored.json["seconds"]
    assert job["derived"].keys() == {"batch_rate", "batch_per_day"}
    rows = served.folder / "ask.jsonl"
    known = {"age": 44, "member": True}
    given = [
        {**known, "income": 51.5, "city": "c3"},
        {**known, "income": None, "city": None},
    ]
    rows.write_text("\n".join(map(json.dumps, given)))
    asked = served.home.run("predict", "levels", "--rows", str(rows), "--json")
    assert asked.code == 0, asked.err
    assert len(asked.json["predictions"]) == 2
    assert set(asked.json["predictions"]) <= {0, 1, 2}
    unseen = {**known, "income": 51.5, "city": "nowhere"}
    rows.write_text("\n".join(map(json.dumps, [*given, unseen])))
    refused = served.home.run("predict", "levels", "--rows", str(rows), "--json")
    assert (refused.code, refused.json["what"]) == (
        2,
        "row 3 cannot be answered: city is an unknown category",
    )


def test_the_versions_evidence_is_read_again(served: Served) -> None:
    installation = replace(served.installation)
    package = registry_of(installation).fetch(registry_of(installation).version("levels", 1))
    assert package.version.kind.name == "gradient_boosting"
    certified = served.home.run("certify", "levels", "--json")
    assert certified.code == 0, certified.err
    assert certified.json["faults"] == []
    (plan,) = served.home.path.glob("artifacts/**/plan/plan-live.json")
    quantities = json.loads(plan.read_text())["quantities"]
    assert set(quantities) == {"online_call", "online_unit", "online_memory"}
