"""Removes the old versions, files of runs, snapshots and predictions of one pipeline."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import DEAD_LETTERS, PREDICTIONS
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_retention import (
    ARTIFACTS_TAG,
    StoredRuns,
    VersionPlan,
    find_references,
    plan_versions,
)
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import ReleaseState, derive_state
from millrace.tasks.batch.batch_run import EXPERIMENT, VERSION
from millrace.tasks.retention.clean_tables import TableCleaner
from millrace.tasks.retention.cleaned import Cleaned

if TYPE_CHECKING:
    from mlflow.entities import Run

TABLES = {PREDICTIONS: "predictions", DEAD_LETTERS: "dead letters"}


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
        tables = TableCleaner(self.pipeline, self.installation, self.now, self.dry_run)
        yield tables.clean_snapshots(kept, running)
        for table, kind in TABLES.items():
            yield tables.clean_predictions(table, kind)

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
