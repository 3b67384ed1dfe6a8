"""MLflow tracking: opens a run, logs parameters, metrics, files and pictures, and ends the run.

MLflow takes seconds to import, so it is imported inside the functions here.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.common.printable import one_line, redact
from millrace.models.common.reachable import require_database, require_http, require_tcp
from millrace.models.common.slow_step import report_while
from millrace.models.registry.artifact_store import require_own
from millrace.models.registry.mlflow_client import client_type
from millrace.models.registry.mlflow_database import prepare_database
from millrace.models.registry.mlflow_pages import KIND, KIND_OF_OURS, for_mlflow
from millrace.models.registry.open_runs import FOLDER, Note, OpenRun, lock_left_note

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("millrace")

HURRIED = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_PARAM_LENGTH = 500
MAX_TAG, MAX_NOTE, MAX_NAME = 1000, 5000, 200
DELTA, SCORED = "delta_table", "scored_input"
"""Types of a run's dataset: a snapshot that was trained on, whose rows retention keeps while the
run needs them, and rows that a batch job scored."""
DATA_PAGE = "/api/2.0/mlflow/experiments/search?max_results=1"
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


@dataclass(frozen=True)
class TrackedRun:
    """One MLflow run; its methods may be called while the run is open.

    Attributes:
        tracking_uri: address of the run's MLflow.
        experiment_id: id of its experiment.
        run_id: its id.
    """

    tracking_uri: str
    experiment_id: str
    run_id: str

    @property
    def client(self) -> "MlflowClient":
        """MLflow's client for the run's tracking store."""
        return client(self.tracking_uri)

    @property
    def path(self) -> str:
        """Path of the run's page below the address of an MLflow UI."""
        return f"#/experiments/{self.experiment_id}/runs/{self.run_id}"

    def log_params(self, params: Mapping[str, object]) -> None:
        """Log parameters, flattened to dotted names."""
        from mlflow.entities import Param

        flat = [Param(name, redact(str(v))[:_PARAM_LENGTH]) for name, v in flatten(params)]
        for start in range(0, len(flat), 100):
            self.client.log_batch(self.run_id, params=flat[start : start + 100])

    def log_metrics(
        self, metrics: Mapping[str, float], step: int = 0, model_id: str | None = None
    ) -> None:
        """Log metrics of one step; if a logged model is named, log them to the model too."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        entries = [
            Metric(name, float(value), now, step, model_id=model_id)
            for name, value in metrics.items()
        ]
        self.client.log_batch(self.run_id, metrics=entries)

    def log_text(self, text: str, path: str) -> None:
        """Log a text as an artifact."""
        self.client.log_text(self.run_id, text, path)

    def log_report(self, texts: Mapping[str, str], pictures: Mapping[str, bytes]) -> None:
        """Log texts and pictures as artifacts, in one upload.

        Args:
            texts: texts, by path.
            pictures: PNG files, by path.
        """
        contents = {path: text.encode() for path, text in texts.items()} | dict(pictures)
        with tempfile.TemporaryDirectory() as folder:
            for path, content in contents.items():
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            self.client.log_artifacts(self.run_id, folder)

    def log_file(self, file: Path, folder: str | None = None) -> None:
        """Log a file, or the files of a folder, as artifacts."""
        if file.is_dir():
            self.client.log_artifacts(self.run_id, str(file), folder)
        else:
            self.client.log_artifact(self.run_id, str(file), folder)

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Set tags of the run."""
        for name, value in tags.items():
            self.client.set_tag(self.run_id, name, redact(str(value)))

    def rename(self, name: str) -> None:
        """Set the run's name, which replaces MLflow's random one."""
        from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

        # `update_run` would read the whole run, with its metrics.
        self.client.set_tag(self.run_id, MLFLOW_RUN_NAME, name)

    def describe(self, text: str) -> None:
        """Set the description of the run, Markdown that the MLflow UI shows on its page."""
        from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

        self.set_tags({MLFLOW_RUN_NOTE: for_mlflow(text)[:MAX_NOTE]})

    def log_dataset(self, name: str, uri: str, version: int, digest: str) -> None:
        """Log a dataset snapshot as the run's input."""
        source = {"path": redact(uri), "delta_table_version": version}
        self._log_input(
            name, digest, DELTA, source, {"version": version}, context="training", version=version
        )

    def log_scored_input(self, name: str, digest: str, rows: int | None) -> None:
        """Log the rows that a batch job scores as the run's input.

        Args:
            name: the input, as the user named it.
            digest: digest of its manifest.
            rows: number of rows; None: not known.
        """
        profile = {} if rows is None else {"num_rows": rows}
        source = {"path": redact(name)}
        self._log_input(
            redact(name)[-MAX_NAME:], digest, SCORED, source, profile, context="scoring"
        )

    def _log_input(
        self,
        name: str,
        digest: str,
        source_type: str,
        source: Mapping[str, object],
        profile: Mapping[str, object],
        *,
        context: str,
        version: int | None = None,
    ) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=name,
            digest=digest[:36],
            source_type=source_type,
            source=_json(source),
            profile=_json(profile),
        )
        tags = [InputTag("mlflow.data.context", context)]
        tags += [] if version is None else [InputTag("version", str(version))]
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])


def client(tracking_uri: str) -> "MlflowClient":
    """Return a client for MLflow's tracking and registry at one address."""
    made = client_type()
    _quiet()
    prepare_database(tracking_uri)
    return made(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def check_reachable(tracking_uri: str) -> None:
    """Check that MLflow can be reached, because MLflow's own client would retry for minutes.

    Raises:
        TransientError: no MLflow answers at its HTTP address, or its database cannot be reached.
    """
    if tracking_uri.startswith(("http://", "https://")):
        address = tracking_uri.rstrip("/")
        require_http(
            f"{address}/health",
            service="MLflow",
            setting="MLFLOW_TRACKING_URI",
            data=f"{address}{DATA_PAGE}",
        )
    elif (server := database_server(tracking_uri)) is not None:
        require_tcp(server, service="the database of MLflow", setting="MLFLOW_TRACKING_URI")


def database_server(uri: str) -> str | None:
    """Return host:port of a database server; None for a file, or if the address is not known.

    SQLAlchemy parses the address, because it accepts passwords that are not valid in a URI.
    """
    if "://" not in uri or uri.startswith(("sqlite", "file:")):
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(uri)
    except (ArgumentError, ValueError):
        return None
    port = found.port or DATABASE_PORTS.get(found.get_backend_name())
    return f"{found.host}:{port}" if found.host and port else None


@contextmanager
def tracked_run(
    installation: Installation,
    experiment: str,
    tags: Mapping[str, str],
    system_metrics: bool = True,
) -> Iterator[TrackedRun]:
    """Open an MLflow run, and end it as FINISHED, FAILED or KILLED, whatever the block raises.

    Args:
        installation: the installation, with the address of MLflow.
        experiment: name of the experiment, which is created if it does not exist.
        tags: tags of the new run.
        system_metrics: whether to sample CPU, memory and GPU while the run is open.

    Raises:
        WorkError: MLflow's experiment cannot be opened.
    """
    check_reachable(installation.tracking_uri)
    with report_while("opening MLflow"):  # the first database of a machine is migrated
        import mlflow

        _quiet()
        mlflow.set_tracking_uri(installation.tracking_uri)
        mlflow.set_registry_uri(installation.tracking_uri)
        experiment_id = _experiment(installation, experiment)
    with mlflow.start_run(
        experiment_id=experiment_id, tags=dict(tags), log_system_metrics=system_metrics
    ) as run:
        opened = OpenRun(installation.run, Note(installation.tracking_uri, run.info.run_id))
        opened.write()
        try:
            yield TrackedRun(installation.tracking_uri, experiment_id, run.info.run_id)
        except Exception as error:
            _end(opened, "FAILED", str(error)[:MAX_TAG])
            raise
        except BaseException:  # Ctrl-C, a signal or a cancelled task; MLflow would say FAILED
            _end(opened, "KILLED")
            raise
        _end(opened, "FINISHED")


def _quiet() -> None:
    """Make MLflow log errors only.

    When a database fails, MLflow logs a stack trace and also raises the error, which Millrace
    reports. So these logs are hidden too.
    """
    levels = {"mlflow": logging.ERROR, "alembic": logging.ERROR}
    for name, level in {**levels, "mlflow.store.db.utils": logging.CRITICAL}.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # setting it empties the caches of all loggers
            logger.setLevel(level)


def _end(opened: OpenRun, status: str, why: str = "") -> None:
    """End the active run; if MLflow fails now, the next command ends the run."""
    import mlflow

    opened.ends_as(status, why)
    try:
        check_reachable(opened.tracking_uri)
        if why:
            mlflow.set_tag("millrace.error", why)
        mlflow.end_run(status)
        opened.forget()
    except Exception as error:  # an error of the run itself is the one to report
        if status == "FINISHED" and not opened.is_noted:
            raise
        log.warning("the MLflow run could not be set to %s: %s", status, one_line(str(error)))
        opened.close()
        with _hurried(), suppress(Exception):
            mlflow.end_run(status)


@contextmanager
def _hurried() -> Iterator[None]:
    """Let MLflow's client wait only a second and not retry, because MLflow has just failed."""
    before = {name: os.environ.get(name) for name in HURRIED}
    os.environ.update(HURRIED)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _experiment(installation: Installation, name: str) -> str:
    """Return the id of an experiment; create it if necessary.

    Artifacts of an embedded MLflow are stored in the home folder.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    prepare_database(installation.tracking_uri)
    require_database(installation.tracking_uri, service="MLflow", setting="MLFLOW_TRACKING_URI")
    embedded = not installation.tracking_uri.startswith(("http://", "https://"))
    location = f"{installation.artifacts.as_uri()}/{name}" if embedded else None
    try:
        store = client(installation.tracking_uri)
        known = store.get_experiment_by_name(name)
        if known is not None and known.lifecycle_stage == "deleted":
            store.restore_experiment(known.experiment_id)
        if known is not None:
            require_own(known.artifact_location, installation)
        found = str(known.experiment_id if known else store.create_experiment(name, location))
        if known is None or known.tags.get(KIND) != KIND_OF_OURS:
            store.set_experiment_tag(found, KIND, KIND_OF_OURS)
        return found
    except (MlflowException, SQLAlchemyError) as error:
        raise WorkError(
            f"MLflow's experiment {name!r} cannot be opened",
            seen=str(error).splitlines()[0],
            hint=f"check MLFLOW_TRACKING_URI (now {installation.tracking_uri})",
        ) from error


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _json(values: Mapping[str, object]) -> str:
    import json

    return json.dumps(values)


def end_left_runs(folder: Path) -> None:
    """End the MLflow runs whose processes are gone; if MLflow fails, keep the note of the run.

    Args:
        folder: `Installation.run`, the folder of the notes.
    """
    for file in (folder / FOLDER).glob("*.json"):
        with suppress(OSError), lock_left_note(file) as found:
            if found is None:
                continue
            note = Note(**found)
            with suppress(TransientError):
                check_reachable(note.tracking_uri)
                _end_run(note)
                file.unlink(missing_ok=True)


def _end_run(note: Note) -> None:
    from mlflow.exceptions import MlflowException

    try:
        store = client(note.tracking_uri)
        if store.get_run(note.run_id).info.status != "RUNNING":
            return
        if note.why:
            store.set_tag(note.run_id, "millrace.error", note.why)
        store.set_terminated(note.run_id, note.status)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise TransientError("MLflow could not end a run", seen=error) from error
