"""Removes the old versions, files of runs, snapshots and predictions of one pipeline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import DEAD_LETTERS, PREDICTIONS
from millrace.tasks.retention.clean_registry import RegistryCleaner
from millrace.tasks.retention.clean_tables import TableCleaner
from millrace.tasks.retention.cleaned import Cleaned, describe, skip_if_it_fails

TABLES = {PREDICTIONS: "predictions", DEAD_LETTERS: "dead letters"}


@dataclass(frozen=True)
class PipelineCleaner:
    """Removes what one pipeline's retention does not keep.

    Attributes:
        pipeline: the pipeline.
        installation: where its tables, runs and versions are.
        now: the time.
        named: texts that may name versions, by what is then said of the version.
        dry_run: whether only to report.
    """

    pipeline: Pipeline
    installation: Installation
    now: datetime
    named: Mapping[str, str]
    dry_run: bool

    def clean(self) -> Iterator[Cleaned]:
        """Remove and yield, one kind after another.

        What cannot be removed, or cannot be looked at, is in `Cleaned.skipped`.
        """
        yield from self._clean_registry()
        for table, kind in TABLES.items():
            work = partial(self._tables.clean_predictions, table, kind)
            yield skip_if_it_fails(kind, self.pipeline.name, work)

    def _clean_registry(self) -> Iterator[Cleaned]:
        """Remove what depends on the versions in MLflow."""
        name, retention = self.pipeline.name, self.pipeline.retention
        try:
            registry = RegistryCleaner.read(name, retention, self.installation, self.named)
            cleaned = registry.clean_versions(dry_run=self.dry_run)
            running = registry.own_runs
        except MillraceError as error:  # without the versions, nobody knows what they need
            yield Cleaned("versions", name, skipped=(describe(error),))
            return
        yield cleaned
        gone = {(name, number) for number in cleaned.removed}
        kept = [
            each
            for each in registry.versions
            if (each.model, f"version {each.version}") not in gone
        ]
        if retention.artifacts is not None:
            work = partial(registry.clean_artifacts, kept, self.now, dry_run=self.dry_run)
            yield skip_if_it_fails("artifacts", name, work)
        work = partial(self._tables.clean_snapshots, kept, running)
        yield skip_if_it_fails("snapshots", name, work)

    @property
    def _tables(self) -> TableCleaner:
        return TableCleaner(self.pipeline, self.installation, self.now, self.dry_run)
