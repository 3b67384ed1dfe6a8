"""The whole line on real parts: YAML → Ray workers → MLflow on SQLite → Triton → gRPC answer.

Its model is the one of `make demo`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import deltalake
import mlflow
import numpy as np
import onnx
import pytest
from mlflow.artifacts import load_dict
from sklearn.datasets import load_digits
from tritonclient import grpc, http

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.serving.batch.commit import committed_dates
from millrace.serving.triton.server import running
from millrace.tasks.kinds.graph.graph_files import graph_files
from tests.integration.conftest import Demo, Home

pytestmark = pytest.mark.timeout(600)

CANDIDATES = ("onnx-fp32", "onnx-optimized", "onnx-int8-dynamic", "onnx-int8-static")
DAY = "2026-01-31"
"""A day that the demo has not scored."""


@dataclass(frozen=True)
class Line:
    """The digits of `make demo`, trained, promoted, scored and served again.

    Attributes:
        home: for commands.
        installation: the same for code.
        run_id: the run in MLflow.
        certificate: the certificate of version 1, as the run has it.
        released: the release into the server.
    """

    home: Home
    installation: Installation
    run_id: str
    certificate: dict[str, Any]
    released: list[dict[str, Any]]

    @property
    def golden(self) -> np.ndarray:
        files = sorted((self.installation.home / "cache").glob("digits/*/golden.npz"))
        with np.load(files[0]) as arrays:
            return arrays["features"]


@pytest.fixture(scope="module")
def line(demo: Demo) -> Iterator[Line]:
    home = demo.home
    names = ("HTTP", "GRPC", "METRICS")
    ports = [int(home.environment[f"MILLRACE_TRITON_{name}_PORT"]) for name in names]
    endpoint = Endpoint("127.0.0.1", *ports)
    uri, tables = f"sqlite:///{home.path}/mlflow.db", str(home.path / "tables")
    installation = Installation(home.path, uri, tables, triton=(endpoint,)).prepared()
    with running(installation, endpoint):
        released = home.run("release", "--json")
        assert released.code == 0, released.err
        run_id = client(uri).get_model_version("digits", "1").run_id
        mlflow.set_tracking_uri(uri)
        certificate = load_dict(f"runs:/{run_id}/certificate.json")
        yield Line(home, installation, run_id, certificate, released.json)


def test_the_example_reaches_its_accuracy(line: Line) -> None:
    stages = {stage["name"]: stage for stage in line.certificate["stages"]}
    assert stages["pytorch"]["metric"] >= 0.97


def test_every_candidate_was_measured_and_certified(line: Line) -> None:
    pytorch, *candidates, triton = line.certificate["stages"]
    assert (pytorch["name"], triton["name"]) == ("pytorch", "triton")
    assert tuple(stage["name"] for stage in candidates) == CANDIDATES
    assert all(stage["metric_loss"] <= 0.01 for stage in candidates)
    assert line.certificate["passed"] is True


def test_the_first_version_becomes_champion_and_is_released(line: Line) -> None:
    store = client(line.installation.tracking_uri)
    assert str(store.get_model_version_by_alias("digits", "champion").version) == "1"
    assert [(o["model"], o["version"], o["error"]) for o in line.released] == [("digits", 1, None)]


@pytest.mark.slow
def test_a_student_learns_from_the_champion_and_loses_channels(line: Line, examples: Path) -> None:
    changes = (
        *("--set", "name=student", "--set", "model.params.channels=[4, 8]"),
        *("--set", "training.epochs=2", "--set", "training.num_workers=1"),
        *("--set", "training.distillation.teacher=digits"),
        *("--set", "training.pruning={kind: structured, sparsity: 0.5}"),
        *("--set", "export.candidates=[onnx-fp32]", "--set", "promotion=manual"),
    )
    done = line.home.run("run", examples / "digits.yaml", *changes, "--json")
    assert done.code == 0, done.err
    assert "distillation from the teacher digits version 1" in done.err
    run = client(line.installation.tracking_uri).get_run(done.json["run"]["run_id"])
    assert run.data.tags["millrace.teacher"] == "digits version 1"
    (fp32,) = done.json["candidates"]
    stages = {stage["name"]: stage for stage in line.certificate["stages"]}
    assert fp32["size_bytes"] < stages["onnx-fp32"]["size_bytes"] / 4
    reference = done.json["certificate"]["reference"]
    assert reference["name"] == f"digits version 1, {line.certificate['candidate']}"
    chosen = stages[line.certificate["candidate"]]
    assert reference["metric"] == pytest.approx(chosen["metric"])
    assert reference["size_bytes"] == chosen["size_bytes"] > fp32["size_bytes"]
    assert run.data.metrics["sparsity"] == 0.5
    registry = registry_of(line.installation)
    graph = onnx.load(graph_files(registry.fetch(registry.version("student", 1))).model).graph
    shapes = {each.name: tuple(each.dims) for each in graph.initializer}
    inner = [s for n, s in sorted(shapes.items()) if n.endswith("residual.0.weight")]
    assert inner == [(2, 4, 3, 3), (4, 4, 3, 3)]


def test_a_teacher_of_other_columns_is_refused(line: Line, examples: Path) -> None:
    changes = ("--set", "training.distillation.teacher=digits/1")
    done = line.home.run("run", examples / "tabular.yaml", *changes)
    assert done.code == 2
    assert "digits version 1 has other columns, classes or tokenizer than this model" in done.err
    assert "same columns and classes" in done.err


def test_tritonclient_alone_gets_the_answer_over_grpc_and_http(line: Line) -> None:
    endpoint, rows = line.installation.triton[0], line.golden
    answers = {}
    for name, module, address in (("grpc", grpc, endpoint.grpc), ("http", http, endpoint.http)):
        request = module.InferInput("features", list(rows.shape), "FP32")
        request.set_data_from_numpy(rows)
        with module.InferenceServerClient(address) as client:
            answers[name] = client.infer("digits", [request]).as_numpy("probabilities")
    np.testing.assert_allclose(answers["grpc"], answers["http"], atol=1e-6)
    np.testing.assert_allclose(answers["grpc"].sum(axis=1), 1, atol=1e-4)


def test_mlflow_alone_loads_the_champion_and_gives_the_same_answer(line: Line) -> None:
    mlflow.set_tracking_uri(line.installation.tracking_uri)
    mlflow.set_registry_uri(line.installation.tracking_uri)  # another test may have set another one
    model = mlflow.pyfunc.load_model("models:/digits@champion")
    offline = model.predict(line.golden)["probabilities"]
    request = grpc.InferInput("features", list(line.golden.shape), "FP32")
    request.set_data_from_numpy(line.golden)
    with grpc.InferenceServerClient(line.installation.triton[0].grpc) as client:
        live = client.infer("digits", [request]).as_numpy("probabilities")
    np.testing.assert_allclose(live, offline, atol=1e-4)


def test_the_run_holds_what_people_look_for(line: Line) -> None:
    store = client(line.installation.tracking_uri)
    run = store.get_run(line.run_id)
    (used,) = run.inputs.dataset_inputs
    assert used.dataset.digest == line.certificate["dataset_digest"][:36]
    assert run.data.params["training.epochs"] == "15"
    assert len(store.get_metric_history(run.info.run_id, "validation_accuracy")) == 15
    assert any(name.startswith("system/") for name in run.data.metrics)
    top = {f.path for f in store.list_artifacts(run.info.run_id)}
    assert {"pipeline.yaml", "certificate.json", "plots", "weights"} <= top
    plots = {f.path for f in store.list_artifacts(run.info.run_id, "plots")}
    names = ("learning_curves", "confusion_matrix", "candidates")
    assert plots == {f"plots/{name}.png" for name in names}
    export = {f.path for f in store.list_artifacts(run.info.run_id, "export")}
    names = ("candidates.md", "commands.sh", "conversions", "calibration.npz", "onnx-fp32.onnx")
    assert export == {f"export/{name}" for name in names}


def test_the_certificate_ends_with_the_live_server(line: Line) -> None:
    stages = line.certificate["stages"]
    chosen = next(s for s in stages if s["name"] == line.certificate["candidate"])
    assert abs(stages[-1]["golden_difference"] - chosen["golden_difference"]) <= 1e-4


def test_a_release_with_nothing_to_do_changes_nothing(line: Line) -> None:
    again = line.home.run("release", "--json")
    assert [(o["version"], o["changed"]) for o in again.json] == [(1, False)]


def test_predict_tells_the_label(line: Line) -> None:
    answer = line.home.run("predict", "digits", "--json").json
    assert answer["version"] == 1
    assert answer["predictions"][0] in range(10)


def test_score_commits_every_row_once_and_again(line: Line, examples: Path) -> None:
    words = ("score", str(examples / "digits.yaml"), "--date", DAY, "--json")
    for _ in range(2):
        done = line.home.run(*words)
        assert done.code == 0, done.err
    assert done.json["unchanged"] is True
    store = client(line.installation.tracking_uri)
    (run,) = runs_of_day(line)
    assert run.data.metrics["scored"] == done.json["rows"]
    assert run.data.tags["millrace.fingerprint"] == done.json["fingerprint"]
    plots = {each.path for each in store.list_artifacts(run.info.run_id, "plots")}
    names = ("throughput", "last_runs", "drift", "drift_shares")
    assert plots == {f"plots/{name}.png" for name in names}
    assert 0 <= run.data.metrics["drift.prediction"] < 0.25
    compared = done.json["agreement"]
    assert (compared["compared"], compared["disagreed"], compared["reason"]) == (64, 0, "")
    assert compared["endpoint"] == line.installation.triton[0].grpc
    assert run.data.metrics["agreement.compared"] == 64
    assert run.data.metrics["agreement.share"] == 0
    # as where its process had died after the commit, and before it wrote a receipt
    rmtree(line.installation.receipts)
    store.delete_run(run.info.run_id)
    dead = store.create_run(run.info.experiment_id, tags=run.data.tags)
    again = line.home.run(*words)
    assert again.code == 0, again.err
    assert again.json["unchanged"] is True
    late, killed = runs_of_day(line)
    assert (killed.info.run_id, killed.info.status) == (dead.info.run_id, "KILLED")
    assert late.info.status == "FINISHED"
    assert late.data.metrics["scored"] == done.json["rows"]
    assert late.data.metrics["per_day"] == pytest.approx(run.data.metrics["per_day"], rel=0.2)
    table = predictions_of_day(line)
    assert table.num_rows == done.json["rows"] == load_digits().target.size
    assert set(table["model_version"].to_pylist()) == {1}
    assert table["prediction"].null_count == table["score"].null_count == 0
    assert len(set(table["_key"].to_pylist())) == table.num_rows


def runs_of_day(line: Line) -> list[Any]:
    """Return the runs in MLflow of the jobs of `DAY`, newest first."""
    store = client(line.installation.tracking_uri)
    experiment = store.get_experiment_by_name("digits.batch")
    runs = store.search_runs([experiment.experiment_id])
    return [run for run in runs if run.data.tags["millrace.date"] == DAY]


def predictions_of_day(line: Line) -> Any:
    table = deltalake.DeltaTable(line.installation.table("predictions", "digits"))
    return table.to_pyarrow_table(filters=[("date", "=", DAY)])


def test_a_scored_row_is_traced_back_to_the_data_that_its_model_learnt_from(line: Line) -> None:
    key = predictions_of_day(line)["_key"][5].as_py()
    words = ("lineage", "digits", "--row", key, "--date", DAY)
    (found,) = line.home.run(*words, "--json").json
    assert found["origin"]["row"]["_key"] == key
    assert found["version"]["run_id"] == line.run_id
    assert found["version"]["certificate"] == "passed"
    assert found["data"]["format"] == "sklearn"
    assert [event["kind"] for event in found["releases"]]
    shown = line.home.run(*words)
    assert "learnt from" in shown.out
    missing = line.home.run("lineage", "digits", "--row", "nothing")
    assert (missing.code, "has the key 'nothing'" in missing.err) == (2, True)


def test_dates_that_were_missed_are_made_up_for(line: Line, examples: Path, tmp_path: Path) -> None:
    table = line.installation.table("predictions", "digits")
    before = committed_dates(table)
    file = tmp_path / "nightly.yaml"
    file.write_text((examples / "digits.yaml").read_text() + "\nbatch: {catch_up: 1}\n")
    done = line.home.run("score", str(file), "--catch-up", "--json")
    assert done.code == 0, done.err
    made_up, due = done.json
    yesterday = date.fromisoformat(due["date"])
    assert made_up["date"] == (yesterday - timedelta(days=1)).isoformat()
    assert made_up["date"] not in before
    assert committed_dates(table) == before | {made_up["date"], due["date"]}
