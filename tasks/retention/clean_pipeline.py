"""Removes the old versions, files of runs, snapshots and predictions of one pipeline."""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshot_retention import (
    find_snapshots,
    plan_snapshots,
    remove_snapshots,
)
from millrace.models.data.snapshot_use import find_held_versions
from millrace.models.data.snapshots import DATASETS
from millrace.models.data.table_files import Removed, remove_replaced_files
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_retention import (
    ARTIFACTS_TAG,
    StoredRuns,
    VersionPlan,
    find_references,
    plan_versions,
)
from millrace.serving.batch.prediction_retention import drop_partitions, find_old_partitions
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import ReleaseState, derive_state
from millrace.tasks.batch.batch_run import EXPERIMENT, VERSION
from millrace.tasks.retention.cleaned import Cleaned

if TYPE_CHECKING:
    from mlflow.entities import Run

TABLES = {"predictions": "predictions", "dead_letters": "dead letters"}


@dataclass(frozen=True)
class PipelineCleaner:
    """Removes what one pipeline's retention does not keep.

    Attributes:
        pipeline: the pipeline.
        installation: where its tables, runs and versions are.
        now: the time.
        dry_run: whether only to report.
    """

    pipeline: Pipeline
    installation: Installation
    now: datetime
    dry_run: bool

    def clean(self) -> Iterator[Cleaned]:
        """Remove and yield, one kind after another.

        Raises:
            TransientError: MLflow cannot be reached, or a table cannot be read.
            OSError: a folder cannot be written.
        """
        stored = StoredRuns(self.installation.tracking_uri, self.installation.artifacts)
        experiments = (self.pipeline.name, f"{self.pipeline.name}{EXPERIMENT}")
        running = stored.list_runs(experiments, "attributes.status = 'RUNNING'")
        every = stored.list_versions()
        plan = self._plan_versions(every, running)
        yield self._clean_versions(stored, plan)
        kept = [each for each in every if each not in plan.removed]
        if self.pipeline.retention.artifacts is not None:
            yield self._clean_artifacts(stored, experiments, kept)
        yield self._clean_snapshots(kept, running)
        yield from self._clean_predictions()

    def _plan_versions(self, every: list[ModelVersion], running: list["Run"]) -> VersionPlan:
        name = self.pipeline.name
        events = ledger_of(self.installation).releases(name)
        needed = {
            **find_references(every, name),
            **_scored_by(running),
            **find_released(derive_state(events)),
        }
        own = [each for each in every if each.model == name]
        return plan_versions(own, self.pipeline.retention.versions, needed)

    def _clean_versions(self, stored: StoredRuns, plan: VersionPlan) -> Cleaned:
        skipped = ""
        for version in plan.removed:
            if self.dry_run:
                continue
            try:
                stored.remove_version(version)
            except InputError as error:
                skipped = f"{error.what}: {error.seen}"
            cache = self.installation.home / "cache" / version.model
            for folder in cache.glob(f"{version.version}-*"):
                shutil.rmtree(folder, ignore_errors=True)
        return Cleaned(
            "versions",
            self.pipeline.name,
            tuple(f"version {each.version}" for each in plan.removed),
            {f"version {number}": why for number, why in plan.kept.items()},
            skipped=skipped,
        )

    def _clean_artifacts(
        self, stored: StoredRuns, experiments: Iterable[str], kept: Iterable[ModelVersion]
    ) -> Cleaned:
        before = self.now - timedelta(days=self.pipeline.retention.artifacts or 0)
        needed = {version.run_id: f"version {version.version}" for version in kept}
        old = stored.list_runs(
            list(experiments), f"attributes.end_time < {int(before.timestamp() * 1000)}"
        )
        removed, skipped = [], ""
        for run in old:
            if run.info.run_id in needed or ARTIFACTS_TAG in run.data.tags:
                continue
            try:
                if not self.dry_run:
                    stored.remove_artifacts(run, self.now.isoformat(timespec="seconds"))
            except InputError as error:
                skipped = f"{error.what}: {error.seen}"
                continue
            removed.append(f"run {run.info.run_id}")
        names = {
            f"run {id}": why for id, why in needed.items() if id in {r.info.run_id for r in old}
        }
        return Cleaned("artifacts", self.pipeline.name, tuple(removed), names, skipped=skipped)

    def _clean_snapshots(self, kept: Iterable[ModelVersion], running: list["Run"]) -> Cleaned:
        name = self.pipeline.name
        uri = self.installation.table(DATASETS, name)
        versions = find_snapshots(uri)
        if not versions:
            return Cleaned("snapshots", name)
        needed = {
            **_trained_on(name, kept),
            **_read_by(name, running),
            **dict.fromkeys(find_held_versions(uri), "a running job reads it"),
        }
        plan = plan_snapshots(versions, self.pipeline.retention.snapshots, needed)
        removed = remove_snapshots(uri, plan, self._left_before, dry_run=self.dry_run)
        if not running:  # a training reads what was made of the snapshot that it trains on
            for table in kind_of_family(self.pipeline.model.family).derived_tables:
                removed += self._remove_replaced(table)
        return Cleaned(
            "snapshots",
            name,
            tuple(f"snapshot {version}" for version in plan.removed),
            {f"snapshot {version}": why for version, why in plan.kept.items()},
            removed.files,
            removed.size,
        )

    def _clean_predictions(self) -> Iterator[Cleaned]:
        days = self.pipeline.retention.predictions
        for table, kind in TABLES.items():
            uri = self.installation.table(table, self.pipeline.name)
            dropped: tuple[str, ...] = ()
            if days is not None:
                before = (self.now - timedelta(days=days)).date()
                dropped = find_old_partitions(uri, before)
                if dropped and not self.dry_run:
                    drop_partitions(uri, before)
            removed = self._remove_replaced(table)
            yield Cleaned(kind, self.pipeline.name, dropped, {}, removed.files, removed.size)

    def _remove_replaced(self, table: str) -> Removed:
        uri = self.installation.table(table, self.pipeline.name)
        return remove_replaced_files(uri, self.now, self._left_before, dry_run=self.dry_run)

    @property
    def _left_before(self) -> datetime | None:
        days = self.pipeline.retention.staging
        return None if days is None else self.now - timedelta(days=days)


def find_released(state: ReleaseState) -> dict[int, str]:
    """Return the versions that serving needs, and why."""
    found: dict[int, str] = {}
    if state.superseded is not None:
        found[state.superseded] = "served before the live version"
    for event, why in (
        (state.accepted, "batch jobs score with it"),
        (state.proved, "about to go live"),
        (state.step, "in a rollout"),
        (state.live, "live"),
    ):
        if event is not None:
            found[event.version] = why
    return found


def _scored_by(running: Iterable["Run"]) -> dict[int, str]:
    """Return the versions that running batch jobs score with."""
    numbers = (run.data.tags.get(VERSION, "") for run in running)
    return {int(number): "a running job scores with it" for number in numbers if number.isdigit()}


def _trained_on(dataset: str, versions: Iterable[ModelVersion]) -> dict[int, str]:
    """Return the snapshots of a dataset that versions were trained on."""
    found = {}
    for each in versions:
        name, _, number = each.tags.get("millrace.dataset", "").partition(" version ")
        if name == dataset and number.isdigit():
            found[int(number)] = f"{each.model} version {each.version} was trained on it"
    return found


def _read_by(dataset: str, running: Iterable["Run"]) -> dict[int, str]:
    """Return the snapshots of a dataset that running trainings read."""
    found = {}
    for run in running:
        for given in run.inputs.dataset_inputs if run.inputs else ():
            if given.dataset.name == dataset:
                source = json.loads(given.dataset.source)
                found[int(source["delta_table_version"])] = "a running training reads it"
    return found
