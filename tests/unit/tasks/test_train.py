"""The steps of training: what is told while it runs, and what a run keeps of it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.models.training import trainer
from millrace.models.training.event_log import Reported, Resumed, TrainEvent, WorkersFailed
from millrace.models.training.trainer import TrainResult
from millrace.tasks import train as module
from millrace.tasks.kinds.graph.graph_train import describe_epoch
from millrace.tasks.kinds.steps import Prepared, Trained, steps_of
from millrace.tasks.train import TrainingLog, prepare_training, train_on_ray

EPOCH = {
    "epoch": 2,
    "train_loss": 0.5,
    "validation_loss": 0.25,
    "validation_accuracy": 0.875,
    "samples_per_second": 12345.6,
    "quantized": 1,
}
STEP = {"step": 20, "epoch": 0.5, "loss": 2.3456, "tokens_per_second": 9876.5}
GRAPH, LANGUAGE = kind_named("graph"), kind_named("language")


class Run:
    """A run that keeps what it is told."""

    run_id, tracking_uri = "r1", "sqlite://"

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.files: list[tuple[Path, str | None]] = []
        self.tags: dict[str, str] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.metrics.append((step, metrics))

    def log_file(self, file: Path, folder: str | None = None) -> None:
        self.files.append((file, folder))

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags.update(tags)


class Bar:
    """A progress bar that keeps what it shows."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, str]] = []

    def update(self, done: int, note: str = "") -> None:
        self.shown.append((done, note))


def tell(kind: Any, *events: TrainEvent) -> tuple[Run, Bar]:
    """Let training tell events; return the run and the bar that took them."""
    run, bar = Run(), Bar()
    unit = "epoch" if kind is GRAPH else "step"
    log = TrainingLog(steps_of(kind), unit, run, bar)  # type: ignore[arg-type]
    for event in events:
        log(event)
    return run, bar


def test_the_report_of_an_epoch_is_shown_and_sent() -> None:
    run, bar = tell(GRAPH, Reported(EPOCH))
    assert bar.shown == [
        (2, "validation_loss 0.2500  validation_accuracy 0.8750  12,346 samples/s")
    ]
    ((step, metrics),) = run.metrics
    assert step == 2
    names = {"samples_per_second": "worker.samples_per_second"}
    sent = {names.get(name, name): float(value) for name, value in EPOCH.items()}
    del sent["epoch"]
    assert metrics == sent
    assert {type(value) for value in metrics.values()} == {float}


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({}, "loss 2.346  9,876 tokens/s"),
        ({"perplexity": 12.34}, "loss 2.346  validation perplexity 12.3  9,876 tokens/s"),
    ],
)
def test_the_report_of_steps_is_shown_and_sent(more: dict[str, float], note: str) -> None:
    run, bar = tell(LANGUAGE, Reported({**STEP, **more}))
    assert bar.shown == [(20, note)]
    ((step, metrics),) = run.metrics
    assert (step, metrics["epoch"]) == (20, 0.5)
    assert "step" not in metrics


def test_an_event_is_left_as_it_was() -> None:
    event = Reported(dict(EPOCH))
    tell(GRAPH, event)
    assert event == Reported(EPOCH)


def test_a_file_that_lacks_a_column_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r1.csv").write_text("x,y\n" + "1,0\n2,1\n" * 9)
    (tmp_path / "r2.csv").write_text("z,y\n1,0\n")
    dataset = {"source": "r*.csv", "target": "y", "columns": {"x": {"nullable": True}}}
    pipeline = Pipeline.model_validate({"name": "t", "dataset": dataset}).with_folder(tmp_path)
    home = Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))
    with caplog.at_level(logging.WARNING, "millrace"):
        module.ingest_dataset.fn(pipeline, home)
    has = "(it has z, which the table does not have)"
    assert caplog.messages == [f"r2.csv has no column x; its rows have null there {has}"]


def test_each_worker_that_failed_is_told_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "millrace"):
        run, bar = tell(GRAPH, WorkersFailed({0: "OSError: gone", 3: "killed"}))
    assert caplog.messages == ["worker 0 failed: OSError: gone", "worker 3 failed: killed"]
    assert not run.metrics
    assert not bar.shown


@pytest.mark.parametrize(
    ("kind", "done", "line"),
    [
        (GRAPH, 2, "resumed from the checkpoint of epoch 2"),
        (LANGUAGE, 40, "resumed from the checkpoint of step 40"),
        (GRAPH, 0, "restarted from the beginning: there was no checkpoint yet"),
    ],
)
def test_where_training_resumed_is_told(
    kind: Any, done: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "millrace"):
        run, _ = tell(kind, Resumed(done))
    assert caplog.messages == [line]
    assert not run.metrics


PREPARED: Prepared[str] = Prepared(
    job=SimpleNamespace(num_workers=2, unit="epoch"),  # type: ignore[arg-type]
    details="what only the kind knows",
    total=3,
    summary="1,000 rows",
    weights="model.safetensors",
    artifact="weights",
)


@pytest.fixture
def fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Trained[Any], Run]]:
    """Train without Ray: one report, and the recoveries that are given."""
    monkeypatch.setattr(module, "await_mlflow", lambda uri: None)
    installation = Installation(tmp_path, "sqlite://", "")

    def train(*recoveries: int) -> tuple[Trained[Any], Run]:
        def fit(job: Any, storage: Path, name: str, on_event: Any) -> TrainResult:
            assert (job, storage, name) == (PREPARED.job, tmp_path / "training", "r1")
            on_event(Reported(EPOCH))
            return TrainResult(tmp_path / "checkpoint_2", (EPOCH,), recoveries)

        monkeypatch.setattr(trainer, "fit", fit)
        run: Any = Run()
        return train_on_ray.fn(GRAPH, installation, PREPARED, run), run

    return train


def test_what_training_left_is_kept_with_the_run(fitted: Any, tmp_path: Path) -> None:
    trained, run = fitted()
    assert trained == Trained(PREPARED, tmp_path / "checkpoint_2", (EPOCH,), ())
    assert trained.details == "what only the kind knows"
    assert trained.weights == tmp_path / "checkpoint_2" / "model.safetensors"
    assert run.files == [(trained.weights, "weights")]
    assert [step for step, _ in run.metrics] == [2]
    assert not run.tags


def test_recoveries_are_a_tag_of_the_run(fitted: Any) -> None:
    trained, run = fitted(0, 2)
    assert trained.recoveries == (0, 2)
    assert run.tags == {
        "millrace.recoveries": "restarted from the beginning: there was no checkpoint yet; "
        "resumed from the checkpoint of epoch 2"
    }


@pytest.mark.parametrize("tags", [{}, {"millrace.teacher": "digits version 1"}])
def test_what_a_kind_says_before_training_is_a_tag_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tags: dict[str, str]
) -> None:
    prepared = replace(PREPARED, tags=tags)
    steps = SimpleNamespace(prepare=lambda *given: prepared)
    monkeypatch.setattr(module, "steps_of", lambda kind: steps)
    run, nothing = Run(), None
    pipeline = SimpleNamespace(model=ModelSpec(), folder=Path())
    given: Any = (GRAPH, pipeline, nothing, nothing, run)
    assert prepare_training.fn(*given) is prepared
    assert run.tags == tags


def test_what_fails_in_training_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object) -> TrainResult:
        raise WorkError("training failed")

    monkeypatch.setattr(trainer, "fit", fit)
    run: Any = Run()
    with pytest.raises(WorkError, match="training failed"):
        train_on_ray.fn(GRAPH, Installation(tmp_path, "sqlite://", ""), PREPARED, run)
    assert not run.files


@pytest.mark.parametrize(
    ("waited", "told"), [(0.09, ""), (0.42, "  42% of the time waiting for rows")]
)
def test_a_long_wait_for_rows_is_told(waited: float, told: str) -> None:
    text = describe_epoch({**EPOCH, "data_wait_share": waited})
    assert text == (f"validation_loss 0.2500  validation_accuracy 0.8750  12,346 samples/s{told}")
