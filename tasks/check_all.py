"""`millrace check --full`: ingests all rows into a folder that is deleted, and builds the model.

The rows go through the ingestion itself, with the types of the newest snapshot, so that what it
says is what a run would do. Of the home, only the folder for staging is written, not the tables;
MLflow and Ray are not asked.
"""

import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import SPLITS, Split
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.data.publish_decision import is_unchanged
from millrace.models.data.read_source import Progress
from millrace.models.data.snapshots import Snapshot, count_rows
from millrace.models.data.spool import staging_folder
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks.kinds.steps import steps_of


@dataclass(frozen=True)
class FullCheck:
    """What a check of all rows found.

    Attributes:
        snapshot: the snapshot that a run would make; its rows are gone.
        split_rows: number of rows of each split.
        unchanged: whether the newest snapshot has these rows, so that a run publishes nothing.
        model: the training that was prepared, in words; empty if the model was not built, because
            the pipeline names registered versions.
    """

    snapshot: Snapshot
    split_rows: Mapping[Split, int]
    unchanged: bool
    model: str


def check_all(
    pipeline: Pipeline,
    stored: Snapshot | None,
    installation: Installation,
    on_progress: Progress | None = None,
    *,
    builds: bool = True,
) -> FullCheck:
    """Read and check all rows, decide whether they would be published, and build the model.

    The model is built and answers one batch. For a language model, its base model and its
    tokenizer are loaded, and the sequences are made.

    Args:
        pipeline: the pipeline, with the folder of its file.
        stored: the newest snapshot; None if there is none.
        installation: where the rows are kept meanwhile, so that `forget` finds what a killed check
            leaves. If there is no home yet, they are in the system's folder for temporary files.
        on_progress: called with the number of rows read so far.
        builds: whether to build the model; false for one that does not fit into memory.

    Raises:
        InputError: a run would refuse the source, its rows or the model.
        TransientError: a source on the network cannot be read.
    """
    with _private_folder(installation, pipeline.name) as folder:
        place = _place_in(folder, installation.ingest_memory)
        try:
            snapshot = ingest(pipeline, place, on_progress, typed_by=stored)
        except InputError as error:
            raise _without_folder(error, str(folder)) from error
        steps, model = steps_of(kind_of_family(pipeline.model.family)), ""
        if builds and not steps.names_versions(pipeline):
            run = TrackedRun(place.tracking_uri, "", "check")
            model = steps.prepare(pipeline, place, snapshot, run).summary
        return FullCheck(
            snapshot=snapshot,
            split_rows={
                name: count_rows(snapshot, name, pipeline.dataset.split) for name in SPLITS
            },
            unchanged=is_unchanged(snapshot, stored),
            model=model,
        )


def _private_folder(installation: Installation, name: str) -> AbstractContextManager[Path]:
    if installation.home.is_dir():
        return staging_folder(installation.staging, f"check-{name}")
    return staging_folder(Path(tempfile.gettempdir()), f"millrace-check-{name}")


def _place_in(folder: Path, ingest_memory: int | None) -> Installation:
    """Return an installation of its own in a folder."""
    return Installation(
        home=folder,
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        tables_uri=str(folder / "tables"),
        ingest_memory=ingest_memory,
    ).prepared()


def _without_folder(error: InputError, folder: str) -> InputError:
    """Return an error whose next step does not name a table in the deleted folder."""
    values: dict[str, Any] = {"seen": error.seen, "valid": error.valid}
    hint = error.hint
    if hint is not None and folder in hint:
        hint = "fix the data, or declare what is allowed in dataset.columns (type, nullable, min, "
        hint += "max, categories); `millrace run` stores the bad rows in a table"
    return InputError(error.what, **values, hint=hint)
