"""Which rows a batch job scores: those that the user names, or the table of the dataset."""

from pathlib import Path

import deltalake

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline


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
    table = installation.table("datasets", pipeline.name)
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
