"""Removes what the retention of pipeline files no longer keeps."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.retention_spec import RetentionSpec
from millrace.tasks.retention.clean_home import clean_home
from millrace.tasks.retention.clean_pipeline import PipelineCleaner
from millrace.tasks.retention.cleaned import Cleaned


def clean(
    pipelines: Collection[Pipeline],
    installation: Installation,
    used_logs: Collection[Path],
    *,
    dry_run: bool = False,
) -> Iterator[Cleaned]:
    """Remove and yield, one kind after another.

    Args:
        pipelines: the pipelines, each with its retention.
        installation: the installation.
        used_logs: the logs that services write.
        dry_run: whether only to report.
    """
    now = datetime.now(UTC)
    for pipeline in pipelines:
        yield from PipelineCleaner(pipeline, installation, now, dry_run).clean()
    shared = longest_retention([pipeline.retention for pipeline in pipelines])
    yield from clean_home(installation, shared, now, used_logs, dry_run=dry_run)


def longest_retention(specs: Collection[RetentionSpec]) -> RetentionSpec:
    """Return the retention of what pipelines share: the longest of all."""
    values = {
        name: [getattr(spec, name) for spec in specs or (RetentionSpec(),)]
        for name in ("logs", "staging")
    }
    return RetentionSpec(
        **{name: None if None in days else max(days) for name, days in values.items()}
    )
