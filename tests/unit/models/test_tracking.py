import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import TrackedRun, check_reachable, client, tracked_run


def open_run(installation: Installation, error: BaseException | None = None) -> Any:
    """Open a run, end it by `error`, and return what MLflow keeps of it."""
    with (
        suppress(ValueError, KeyboardInterrupt, SystemExit),
        tracked_run(installation, "tracking", {"who": "me"}, system_metrics=False) as run,
    ):
        if error is not None:
            raise error
    return client(installation.tracking_uri).get_run(run.run_id)


@pytest.fixture
def run(mlflow_places: Installation) -> Iterator[TrackedRun]:
    with tracked_run(mlflow_places, "tracking", {}, system_metrics=False) as opened:
        yield opened


def kept(run: TrackedRun) -> Any:
    return run.client.get_run(run.run_id)


def test_a_run_that_ends_well_is_finished_with_its_tags(mlflow_places: Installation) -> None:
    ended = open_run(mlflow_places)
    assert (ended.info.status, ended.data.tags["who"]) == ("FINISHED", "me")


def test_a_run_that_fails_is_failed(mlflow_places: Installation) -> None:
    assert open_run(mlflow_places, ValueError("no")).info.status == "FAILED"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_a_run_that_is_interrupted_is_killed(
    mlflow_places: Installation, error: BaseException
) -> None:
    assert open_run(mlflow_places, error).info.status == "KILLED"


def test_an_interruption_is_passed_on(mlflow_places: Installation) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        tracked_run(mlflow_places, "tracking", {}, system_metrics=False),
    ):
        raise KeyboardInterrupt


def test_the_error_inside_a_run_is_passed_on(mlflow_places: Installation) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        tracked_run(mlflow_places, "tracking", {}, system_metrics=False),
    ):
        raise ZeroDivisionError


def test_runs_of_one_experiment_are_kept_together(mlflow_places: Installation) -> None:
    first, second = (open_run(mlflow_places).info for _ in range(2))
    assert first.run_id != second.run_id
    assert first.experiment_id == second.experiment_id


def test_a_deleted_experiment_is_restored(mlflow_places: Installation) -> None:
    def open_gone() -> str:
        with tracked_run(mlflow_places, "gone", {}, system_metrics=False) as run:
            return run.experiment_id

    experiment = open_gone()
    client(mlflow_places.tracking_uri).delete_experiment(experiment)
    assert open_gone() == experiment


def test_artifacts_are_kept_under_the_home(mlflow_places: Installation, run: TrackedRun) -> None:
    run.log_text("hello", "notes/note.txt")
    (note,) = mlflow_places.artifacts.glob("**/notes/note.txt")
    assert note.read_text() == "hello"


def test_texts_and_pictures_are_kept_at_their_paths(
    mlflow_places: Installation, run: TrackedRun
) -> None:
    run.log_report({"a/page.md": "ü"}, {"plots/curve.png": b"PNG"})
    (text,) = mlflow_places.artifacts.glob("**/a/page.md")
    (picture,) = mlflow_places.artifacts.glob("**/plots/curve.png")
    assert text.read_text() == "ü"
    assert picture.read_bytes() == b"PNG"


def test_a_file_is_kept_in_its_folder(
    mlflow_places: Installation, run: TrackedRun, tmp_path: Path
) -> None:
    (tmp_path / "weights.bin").write_bytes(b"123")
    run.log_file(tmp_path / "weights.bin", "weights")
    (stored,) = mlflow_places.artifacts.glob("**/weights/weights.bin")
    assert stored.read_bytes() == b"123"


def test_params_are_flattened_to_dotted_names(run: TrackedRun) -> None:
    run.log_params({"model": {"family": "mlp", "params": {}}, "seed": 3})
    params = kept(run).data.params
    assert params["model.family"] == "mlp"
    assert params["model.params"] == "{}"
    assert params["seed"] == "3"


def test_more_params_than_mlflow_takes_at_once_are_all_kept(run: TrackedRun) -> None:
    run.log_params({f"many.{number:03}": number for number in range(250)})
    assert sum(name.startswith("many.") for name in kept(run).data.params) == 250


def test_a_long_param_is_cut(run: TrackedRun) -> None:
    run.log_params({"long": "x" * 10_000})
    assert kept(run).data.params["long"] == "x" * 500


def test_metrics_keep_their_steps(run: TrackedRun) -> None:
    for step, loss in enumerate((0.5, 0.25)):
        run.log_metrics({"loss": loss}, step)
    history = run.client.get_metric_history(run.run_id, "loss")
    assert [(entry.step, entry.value) for entry in history] == [(0, 0.5), (1, 0.25)]


def test_tags_of_a_run_are_text(run: TrackedRun) -> None:
    run.set_tags({"rows": 12})
    assert kept(run).data.tags["rows"] == "12"


def test_the_dataset_is_an_input_with_digest_and_version(run: TrackedRun) -> None:
    run.log_dataset("flowers", "/tables/datasets/flowers", 4, "0123456789abcdef" * 3)
    (logged,) = kept(run).inputs.dataset_inputs
    assert logged.dataset.name == "flowers"
    assert logged.dataset.digest == ("0123456789abcdef" * 3)[:36]  # MLflow takes no more
    assert json.loads(logged.dataset.source) == {
        "path": "/tables/datasets/flowers",
        "delta_table_version": 4,
    }
    assert {tag.key: tag.value for tag in logged.tags}["version"] == "4"


def test_a_run_names_its_page(run: TrackedRun) -> None:
    assert run.path == f"#/experiments/{run.experiment_id}/runs/{run.run_id}"


def test_an_mlflow_that_is_not_there_is_told_before_it_is_imported(tmp_path: Path) -> None:
    installation = Installation(tmp_path, "http://127.0.0.1:9", "")
    with (
        pytest.raises(TransientError, match=r"MLflow cannot be reached at http://127\.0\.0\.1:9"),
        tracked_run(installation, "tracking", {}),
    ):
        pass


def test_a_database_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/nowhere/mlflow.db"
    with (
        pytest.raises(WorkError, match="the database of MLflow cannot be opened") as caught,
        tracked_run(Installation(tmp_path, uri, ""), "tracking", {}, system_metrics=False),
    ):
        pass
    assert f"now {uri}" in str(caught.value)


@pytest.fixture(params=[200, 503])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A server that answers every request with one status, and its address."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield request.param, f"http://127.0.0.1:{listening.server_port}/"
        listening.shutdown()
        thread.join()


def test_a_database_that_fails_is_raised_and_no_stack_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = client(f"sqlite:///{tmp_path}/mlflow.db")
    store.create_experiment("e")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("DROP TABLE runs")
    with pytest.raises(MlflowException, match="no such table: runs"):
        store.create_run("1")
    assert [record for record in caplog.records if record.exc_info] == []


def test_only_a_healthy_mlflow_is_reachable(server: tuple[int, str]) -> None:
    status, address = server
    if status == 200:
        check_reachable(address)
        return
    with pytest.raises(TransientError, match="cannot be reached"):
        check_reachable(address)


def test_a_database_needs_no_check() -> None:
    check_reachable("sqlite:////nowhere/mlflow.db")
