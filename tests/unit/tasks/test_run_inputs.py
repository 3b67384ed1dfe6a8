"""What a run is made from is logged beside its training, and in a run that failed too."""

from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from millrace.models.common.errors import InputError
from millrace.models.config.pipeline import Pipeline
from millrace.tasks import run_inputs as module
from millrace.tasks.run_inputs import (
    changed_params,
    inputs_of_failed,
    installed_packages,
    log_inputs_beside,
    own_modules,
)


class Run:
    """A run that keeps what it is told, and fails the first `failures` times."""

    tracking_uri = "sqlite://"

    def __init__(self, failures: int = 0) -> None:
        self.told: list[str] = []
        self.failures = failures

    def log_params(self, params: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise MlflowException("MLflow is away")
        self.told.append(params["name"])

    def log_report(self, texts: dict[str, str], _pictures: dict[str, bytes]) -> None:
        self.told += texts

    def log_dataset(self, *given: object) -> None:
        self.told.append(str(given[-1]))


class Snapshot:
    name, uri, version, digest = "t", "uri", 1, "d" * 64


ALL = ["t", "pipeline.yaml", "requirements.txt", "d" * 64]


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline.model_validate({"name": "t", "dataset": {"source": "t.csv", "target": "y"}})


def test_the_inputs_are_logged_beside_the_training(pipeline: Pipeline) -> None:
    run: Any = Run()
    snapshot: Any = Snapshot()
    with log_inputs_beside(pipeline, snapshot, run):
        pass
    assert run.told == ALL


def test_an_outage_of_mlflow_ends_no_training(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = Run(failures=1)
    snapshot: Any = Snapshot()
    waited: list[str] = []
    monkeypatch.setattr(module, "await_mlflow", waited.append)
    with log_inputs_beside(pipeline, snapshot, run):
        assert not waited
    assert run.told == ALL
    assert waited == ["sqlite://"]


def test_mlflow_that_fails_twice_fails_the_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = Run(failures=2)
    snapshot: Any = Snapshot()
    monkeypatch.setattr(module, "await_mlflow", lambda _uri: None)
    with (
        pytest.raises(MlflowException, match="away"),
        log_inputs_beside(pipeline, snapshot, run),
    ):
        pass


@pytest.mark.parametrize("failures", [0, 1])
def test_a_run_that_cannot_be_prepared_has_its_inputs_and_its_error(
    pipeline: Pipeline, failures: int
) -> None:
    run: Any = Run(failures)
    snapshot: Any = Snapshot()
    with (
        pytest.raises(InputError, match="no such column"),
        inputs_of_failed(pipeline, snapshot, run),
    ):
        raise InputError("no such column")
    assert run.told == ([] if failures else ALL)


def test_the_parameters_are_those_that_differ_from_their_defaults() -> None:
    given = {
        "name": "t",
        "dataset": {"source": "t.csv", "target": "y"},
        "model": {"params": {"hidden": [8]}},
        "training": {"epochs": 7, "seed": 0},
    }
    assert changed_params(Pipeline.model_validate(given)) == {
        "name": "t",
        "dataset.source": "t.csv",
        "dataset.target": "y",
        "model.family": "mlp",
        "model.params.hidden": [8],
        "training.epochs": 7,
    }


def test_own_modules_are_logged_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net: ...\n")
    given = {
        "name": "t",
        "dataset": {"source": "rows:read", "target": "y"},
        "model": {"family": "net:Net"},
    }
    pipeline = Pipeline.model_validate(given).with_folder(tmp_path)
    assert own_modules(pipeline) == {"code/net.py": "class Net: ...\n"}


def test_the_packages_are_pinned() -> None:
    lines = installed_packages().splitlines()
    assert any(line.startswith("mlflow==") for line in lines)
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names), key=str.lower)
