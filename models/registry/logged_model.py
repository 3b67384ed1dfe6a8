"""Logs a model's files and evidence to an MLflow run, as a logged model.

The steps are those of MLflow's `Model.log`. It is not called, because it sends a request for each
metric of the run, and copies to the model those of the first epoch.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.registry.tracking import TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.models import Model

Files = Mapping[str, Path]

SaveModel = Callable[["Model", Path, Files, Files], None]
"""A kind's function that writes a model's folder in MLflow's format.

Its arguments are MLflow's description of the model, which it completes and writes, the path of the
new folder, the model's files and the evidence, by name."""

NAME = "model"
COPIED_TAGS = ("mlflow.user", "mlflow.source.")
"""Tags of the run that the model gets too; a full name, or the beginning of names."""


def log_model(
    run: TrackedRun,
    files: Files,
    evidence: Files,
    save_model: SaveModel,
    metrics: Mapping[str, float],
) -> "LoggedModel":
    """Log a model to a run, with the run's parameters and with metrics, which the run gets too.

    Args:
        run: the open run.
        files: the model's files, by name.
        evidence: the evidence files, by name.
        save_model: the kind's function that writes the model's folder.
        metrics: what was measured on the model.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    store = run.client
    data = store.get_run(run.run_id).data
    logged = store.create_logged_model(
        run.experiment_id,
        NAME,
        source_run_id=run.run_id,
        tags={name: value for name, value in data.tags.items() if name.startswith(COPIED_TAGS)},
        params=data.params,
    )
    try:
        store.log_outputs(run.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        run.log_metrics(metrics, model_id=logged.model_id)
        described = Model(
            artifact_path=logged.artifact_location,
            model_uuid=logged.model_id,
            run_id=run.run_id,
            model_id=logged.model_id,
        )
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent, NAME)
            save_model(described, folder, files, evidence)
            store.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            store.finalize_logged_model(logged.model_id, LoggedModelStatus.FAILED)
        raise
    store.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    return logged
