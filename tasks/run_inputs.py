"""Logs what a training run is made from: its parameters, its pipeline file and its dataset."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from threading import Thread

from millrace.models.common.errors import InputError
from millrace.models.common.printable import redact
from millrace.models.common.user_code import module_path
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.open_source import FUNCTION
from millrace.models.registry.tracking import TrackedRun, flatten
from millrace.tasks.tracking_outage import await_mlflow

ALWAYS = ("name", "dataset.source", "dataset.target", "model.family")
"""Parameters of a run that are logged even with their defaults."""
CODE, PACKAGES = "code", "requirements.txt"
"""Artifacts of a run: the user's own modules, and the packages that were installed."""


def log_inputs(pipeline: Pipeline, snapshot: Snapshot, run: TrackedRun) -> None:
    """Log what a run is made from; a second call changes nothing.

    Its parameters are those that differ from their defaults; the file has all of them.
    """
    run.log_params(changed_params(pipeline))
    texts = {"pipeline.yaml": resolved_yaml(pipeline), PACKAGES: installed_packages()}
    run.log_report({**texts, **own_modules(pipeline)}, {})
    run.log_dataset(snapshot.name, snapshot.uri, snapshot.version, snapshot.digest)


def changed_params(pipeline: Pipeline) -> dict[str, object]:
    """Return the keys of a pipeline that differ from their defaults, by their dotted names."""
    needed = {"source": pipeline.dataset.source, "target": pipeline.dataset.target}
    least = Pipeline.model_validate({"name": pipeline.name, "dataset": needed})
    defaults = dict(flatten(least.model_dump(mode="json")))
    given = flatten(pipeline.model_dump(mode="json"))
    return {
        name: value
        for name, value in given
        if name in ALWAYS or name not in defaults or defaults[name] != value
    }


def installed_packages() -> str:
    """Return the packages of this environment with their versions, as pip freezes them."""
    found = {each.name: each.version for each in distributions() if each.name}
    names = sorted(found, key=str.lower)
    return "".join(f"{name}=={found[name]}\n" for name in names)


def own_modules(pipeline: Pipeline) -> dict[str, str]:
    """Return the source of the user's modules that a pipeline names, by artifact path.

    Passwords in addresses are left out, as in the pipeline file.
    """
    found = {}
    for reference in (pipeline.model.family, pipeline.dataset.source):
        if FUNCTION.fullmatch(reference):
            with suppress(InputError, OSError, UnicodeDecodeError):
                path = module_path(reference, pipeline.folder)
                found[f"{CODE}/{path.name}"] = redact(path.read_text())
    return found


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
