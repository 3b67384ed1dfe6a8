"""What a run is made from is logged beside its training, and in a run that failed too."""

from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from millrace.models.common.errors import InputError
from millrace.models.config.pipeline import Pipeline
from millrace.tasks import run_inputs as module
from millrace.tasks.run_inputs import inputs_of_failed, log_inputs_beside


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

    def log_text(self, _text: str, path: str) -> None:
        self.told.append(path)

    def log_dataset(self, *given: object) -> None:
        self.told.append(str(given[-1]))


class Snapshot:
    name, uri, version, digest = "t", "uri", 1, "d" * 64


ALL = ["t", "pipeline.yaml", "d" * 64]


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
