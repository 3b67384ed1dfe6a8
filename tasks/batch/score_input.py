"""Which rows a batch job scores: those that the user names, or the table of the dataset."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
from pyarrow import fs

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshot_use import hold_snapshot
from millrace.models.data.snapshots import DATASETS
from millrace.models.data.sources.find_files import resolve
from millrace.serving.batch.input.find_input import Input, open_input
from millrace.serving.batch.job import Job


def input_of(pipeline: Pipeline, installation: Installation, source: str | None, date: str) -> str:
    """Return the path or URI of the input: the named one, or the table of the dataset.

    Args:
        pipeline: the pipeline.
        installation: the installation with the table of the dataset.
        source: as for `named_input`.
        date: date of the partition.

    Raises:
        InputError: no input is named, and the pipeline has no table.
    """
    named = named_input(pipeline, source, date)
    if named is not None:
        return named
    table = installation.table(DATASETS, pipeline.name)
    if not deltalake.DeltaTable.is_deltatable(table):
        raise InputError(
            "there is nothing to score",
            seen=f"no --input, no batch.input, and no table at {table}",
            hint="name the rows with --input",
        )
    return table


def named_input(pipeline: Pipeline, source: str | None, date: str) -> str | None:
    """Return the absolute path or URI of the input.

    Return None if neither the user nor the pipeline names an input.

    Args:
        pipeline: the pipeline; its `batch.input` is relative to its folder.
        source: the input, relative to the current folder; None: the pipeline's `batch.input`.
        date: date of the partition.
    """
    named, folder = source, Path.cwd()
    if named is None and pipeline.batch.input is not None:
        named, folder = pipeline.batch.input.replace("{date}", date), pipeline.folder
    return named if named is None or "://" in named else str(folder / named)


@contextmanager
def open_held_input(source: str, job: Job, installation: Installation) -> Iterator[Input]:
    """Find the input of a batch job; keep its rows during the block if a dataset's table has them.

    The version is held before its files are opened, since `clean` and `forget` change the files of
    versions that nobody holds.

    Args:
        source: as for `open_input`, which raises the errors.
        job: the job that scores the rows.
        installation: where the tables of the datasets are.
    """
    while is_dataset(source, installation):
        version = deltalake.DeltaTable(source).version()
        with hold_snapshot(source, version):
            found = open_input(source, job)
            if found.manifest["version"] == version:
                yield found
                return
    yield open_input(source, job)


def is_dataset(source: str, installation: Installation) -> bool:
    """Return whether a path or URI, in whatever spelling, is the table of a dataset."""
    name = os.path.basename(source.rstrip("/"))
    if _place_of(source) != _place_of(installation.table(DATASETS, name)):
        return False
    return not Path(source).is_file() and deltalake.DeltaTable.is_deltatable(source)


def _place_of(uri: str) -> tuple[str, str]:
    """Return the kind of a file system and a path on it, which is the same in every spelling."""
    filesystem, path = resolve(uri, Path.cwd())
    if isinstance(filesystem, fs.LocalFileSystem):
        path = os.path.realpath(path)
    return filesystem.type_name, path.rstrip("/")
