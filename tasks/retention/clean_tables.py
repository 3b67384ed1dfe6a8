"""Removes the old snapshots, tokens and predictions of one pipeline."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.models.common.installation import Installation
from millrace.models.common.retention_plan import RetentionPlan, plan_retention
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.derived_tables import remove_derived
from millrace.models.data.snapshot_retention import find_snapshots, remove_snapshots
from millrace.models.data.snapshot_use import find_held_versions
from millrace.models.data.snapshots import DATASETS, PREDICTIONS, read_digests
from millrace.models.data.table_files import Removed, remove_replaced_files
from millrace.models.registry.tracking import DELTA
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.batch.job_state import find_unfinished
from millrace.serving.batch.prediction_retention import drop_partitions, find_old_partitions
from millrace.tasks.retention.cleaned import Cleaned

if TYPE_CHECKING:
    from mlflow.entities import Run


@dataclass(frozen=True)
class TableCleaner:
    """Removes what a pipeline's retention does not keep in its tables.

    Attributes:
        pipeline: the pipeline.
        installation: where its tables are.
        now: the time.
        dry_run: whether only to report.
    """

    pipeline: Pipeline
    installation: Installation
    now: datetime
    dry_run: bool

    def clean_snapshots(self, kept: Iterable[ModelVersion], running: Collection["Run"]) -> Cleaned:
        """Remove the rows of old snapshots and what was made of them.

        Args:
            kept: versions whose snapshots keep their rows.
            running: open trainings and batch jobs.

        Raises:
            TransientError: another `millrace clean` removes snapshots of the dataset.
            OSError: a table's folder cannot be written.
            DeltaError: a table cannot be read.
        """
        name, newest = self.pipeline.name, self.pipeline.retention.snapshots
        uri = self.installation.table(DATASETS, name)
        versions = find_snapshots(uri)
        if not versions:
            return Cleaned("snapshots", name)
        held = find_held_versions(uri)
        needed = {
            **find_trained_on(name, kept),
            **find_read(name, running),
            **dict.fromkeys(held, "a running job reads it"),
        }
        plan = plan_retention(versions, newest, needed)
        removed = remove_snapshots(uri, plan.removed, self._left_before, dry_run=self.dry_run)
        if newest is not None and not running and not held:  # a training reads derived tables
            removed += self._remove_derived(uri, plan)
        return Cleaned(
            "snapshots",
            name,
            tuple(f"snapshot {version}" for version in plan.removed),
            {f"snapshot {version}": why for version, why in plan.kept.items()},
            removed.files,
            removed.size,
        )

    def clean_predictions(self, table: str, kind: str) -> Cleaned:
        """Remove old partitions, and replaced files, of the predictions or the dead letters.

        Args:
            table: `PREDICTIONS` or `DEAD_LETTERS`.
            kind: the kind of what is removed, for the report.

        Raises:
            TransientError: other commits came first, again and again.
            OSError: the table's folder cannot be written.
            DeltaError: the table cannot be read.
        """
        name, days = self.pipeline.name, self.pipeline.retention.predictions
        if days is None:
            return Cleaned(kind, name)
        uri = self.installation.table(table, name)
        before = (self.now - timedelta(days=days)).date()
        dropped = find_old_partitions(uri, before)
        if dropped and not self.dry_run:
            drop_partitions(uri, before)
        jobs = find_unfinished(self.installation.table(PREDICTIONS, name))
        removed = remove_replaced_files(uri, self.now, spared=jobs, dry_run=self.dry_run)
        return Cleaned(kind, name, dropped, {}, removed.files, removed.size)

    def _remove_derived(self, uri: str, plan: RetentionPlan) -> Removed:
        digests = read_digests(uri)
        kept = {digests[version] for version in plan.kept}
        removed = Removed()
        for table in kind_of_family(self.pipeline.model.family).derived_tables:
            derived = self.installation.table(table, self.pipeline.name)
            removed += remove_derived(derived, kept, self.now, dry_run=self.dry_run)
        return removed

    @property
    def _left_before(self) -> datetime | None:
        days = self.pipeline.retention.staging
        return None if days is None else self.now - timedelta(days=days)


def find_trained_on(dataset: str, versions: Iterable[ModelVersion]) -> dict[int, str]:
    """Return the snapshots of a dataset that versions were trained on."""
    return {
        each.dataset[1]: f"{each.model} version {each.version} was trained on it"
        for each in versions
        if each.dataset is not None and each.dataset[0] == dataset
    }


def find_read(dataset: str, running: Iterable["Run"]) -> dict[int, str]:
    """Return the snapshots of a dataset that running trainings read."""
    found = {}
    for run in running:
        for given in run.inputs.dataset_inputs if run.inputs else ():
            if (given.dataset.name, given.dataset.source_type) == (dataset, DELTA):
                source = json.loads(given.dataset.source)
                found[int(source["delta_table_version"])] = "a running training reads it"
    return found
