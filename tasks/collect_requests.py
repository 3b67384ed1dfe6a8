"""Brings the requests that front steps have logged into their tables, for all models."""

from collections.abc import Iterator
from contextlib import suppress

from deltalake.exceptions import DeltaError

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import RequestLogSpec
from millrace.models.data.schema import Column
from millrace.models.data.snapshots import open_snapshot
from millrace.serving.request_table import Collected, collect_requests, logged_models
from millrace.serving.triton.repository import Repository


def collect_all(installation: Installation) -> Iterator[tuple[str, Collected]]:
    """Collect and yield, one model after another; the first fault is raised after the last model.

    Raises:
        OSError, DeltaError: a file or a table cannot be read or written; the files stay.
    """
    first: Exception | None = None
    for model in logged_models(installation):
        try:
            collected = collect_model(installation, model)
        except (OSError, DeltaError) as error:
            first = first or error
            continue
        yield model, collected
    if first is not None:
        raise first


def collect_model(installation: Installation, model: str) -> Collected:
    """Collect one model's requests, and remove what its `serving.request_log` no longer keeps.

    Raises:
        OSError: as for `collect_all`.
    """
    spec = _spec_of(installation, model)
    return collect_requests(installation, model, spec, dataset_columns(installation, model))


def _spec_of(installation: Installation, model: str) -> RequestLogSpec | None:
    """Return what the newest staged version that keeps requests says; None if none does."""
    if not installation.model_repository.is_dir():  # no release was ever made here
        return None
    repository = Repository(installation.model_repository, installation.staging)
    for version in reversed(repository.versions(model).get(model, ())):
        with suppress(MillraceError):  # a damaged folder is staged again by a release
            spec = repository.artifact(model, version).serving.request_log
            if spec is not None:
                return spec
    return None


def dataset_columns(installation: Installation, model: str) -> tuple[Column, ...]:
    """Return the columns of a model's dataset; none without a snapshot."""
    try:
        return open_snapshot(installation, model).schema.columns
    except MillraceError:
        return ()
