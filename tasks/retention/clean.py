"""Removes what the retention of pipeline files no longer keeps."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.config.retention_spec import RetentionSpec
from millrace.tasks.retention.clean_home import clean_home
from millrace.tasks.retention.clean_pipeline import PipelineCleaner
from millrace.tasks.retention.cleaned import Cleaned, describe

PIPELINE_FILES = "pipeline files"
"""Kind of what stands for files that could not be read."""


def clean(
    pipelines: Collection[Pipeline], installation: Installation, *, dry_run: bool = False
) -> Iterator[Cleaned]:
    """Remove and yield, one kind after another.

    What cannot be removed, or cannot be looked at, is in `Cleaned.skipped`; the rest is removed.
    Logs, and what killed commands left, stay as long as any pipeline file of the home says: if one
    cannot be read, they stay.

    Args:
        pipelines: the pipelines, each with its retention; none: those of the home.
        installation: the installation.
        dry_run: whether only to report.
    """
    now = datetime.now(UTC)
    of_home, unread = load_pipelines(installation.pipeline_files)
    if unread:
        yield Cleaned(PIPELINE_FILES, skipped=unread)
    named = {
        **{f"named in the pipeline {each.name}": each.model_dump_json() for each in pipelines},
        **read_texts(installation.pipeline_files),
    }
    for pipeline in pipelines or of_home:
        yield from PipelineCleaner(pipeline, installation, now, named, dry_run).clean()
    if not unread:
        shared = longest_retention([each.retention for each in (*pipelines, *of_home)])
        yield from clean_home(installation, shared, now, dry_run=dry_run)


def load_pipelines(files: Iterable[Path]) -> tuple[list[Pipeline], tuple[str, ...]]:
    """Return the pipelines of files, and which files cannot be read, with the reasons."""
    found, unread = [], []
    for file in files:
        try:
            found.append(load_pipeline(file))
        except InputError as error:
            unread.append(f"{file}: {describe(error)}")
    return found, tuple(unread)


def read_texts(files: Iterable[Path]) -> dict[str, str]:
    """Return the text of pipeline files, by "named in FILE"; also of those with a mistake."""
    found = {}
    for file in files:
        with suppress(OSError):
            found[f"named in {file.name}"] = file.read_text(errors="replace")
    return found


def longest_retention(specs: Collection[RetentionSpec]) -> RetentionSpec:
    """Return the retention of what pipelines share: the longest of all."""
    values = {
        name: [getattr(spec, name) for spec in specs or (RetentionSpec(),)]
        for name in ("logs", "staging")
    }
    return RetentionSpec(
        **{name: None if None in days else max(days) for name, days in values.items()}
    )
