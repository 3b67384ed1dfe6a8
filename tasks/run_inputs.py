"""Logs what a training run is made from: its parameters, its pipeline file and its dataset."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread

from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks.tracking_outage import await_mlflow


def log_inputs(pipeline: Pipeline, snapshot: Snapshot, run: TrackedRun) -> None:
    """Log parameters, pipeline file and dataset; a second call changes nothing."""
    run.log_params(pipeline.model_dump(mode="json"))
    run.log_text(resolved_yaml(pipeline), "pipeline.yaml")
    run.log_dataset(snapshot.name, snapshot.uri, snapshot.version, snapshot.digest)


@contextmanager
def inputs_of_failed(pipeline: Pipeline, snapshot: Snapshot, run: TrackedRun) -> Iterator[None]:
    """Log the inputs if the block fails, so that the page of a failed run has them too."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # the first error is the one to report
            log_inputs(pipeline, snapshot, run)
        raise


@contextmanager
def log_inputs_beside(pipeline: Pipeline, snapshot: Snapshot, run: TrackedRun) -> Iterator[None]:
    """Log the inputs in a thread beside the block, in which this process waits for a training.

    If MLflow fails meanwhile, they are logged after the block, as soon as MLflow answers.
    """
    logged: Future[None] = Future()

    def log() -> None:
        try:
            log_inputs(pipeline, snapshot, run)
        except Exception as error:
            logged.set_exception(error)
        else:
            logged.set_result(None)

    # The thread does not keep an interrupted process alive, as one of an executor would.
    Thread(target=log, name="log-inputs", daemon=True).start()
    yield
    if logged.exception() is not None:
        await_mlflow(run.tracking_uri)
        log_inputs(pipeline, snapshot, run)
