"""Removes the old versions of one model, and the files of its old runs."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.common.retention_plan import plan_retention
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.registry.tracking import check_reachable
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_removal import Removal
from millrace.models.registry.version_retention import ARTIFACTS_TAG, StoredRuns, find_references
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import derive_state
from millrace.tasks.batch.batch_run import EXPERIMENT
from millrace.tasks.retention.cleaned import Cleaned, describe
from millrace.tasks.retention.needed_versions import (
    find_aliased,
    find_named,
    find_released,
    find_scoring,
    find_unfinished,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

RUNNING = "attributes.status = 'RUNNING'"


@dataclass(frozen=True)
class RegistryCleaner:
    """Removes what a model's retention does not keep in MLflow.

    Attributes:
        model: the model.
        retention: what stays.
        installation: where its versions and runs are.
        versions: the versions of all models, read before the runs.
        running: the open runs of all experiments.
        named: texts that may name versions, by what is then said of the version.
    """

    model: str
    retention: RetentionSpec
    installation: Installation
    versions: Collection[ModelVersion]
    running: Collection["Run"]
    named: Mapping[str, str]

    @classmethod
    def read(
        cls,
        model: str,
        retention: RetentionSpec,
        installation: Installation,
        named: Mapping[str, str],
    ) -> "RegistryCleaner":
        """Read what MLflow has.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(installation.tracking_uri)
        stored = StoredRuns(installation.tracking_uri, installation.artifacts)
        # A run that registers a version later than this is found to be running, or has ended.
        versions = stored.list_versions()
        running = stored.list_runs(None, RUNNING)
        return cls(model, retention, installation, versions, running, named)

    def clean_versions(self, *, dry_run: bool) -> Cleaned:
        """Remove the old versions with their files.

        A version that cannot be removed does not keep others from being removed.

        Raises:
            WorkError: MLflow failed.
        """
        own = {each.version: each for each in self.versions if each.model == self.model}
        plan = plan_retention(own, self.retention.versions, self._find_needed(own))
        removed, kept, skipped = [], dict(plan.kept), []
        if not dry_run:
            skipped += self._finish_removals()
        for number in plan.removed:
            try:
                if dry_run or self._removal.remove_version(own[number]):
                    removed.append(number)
                else:
                    kept[number] = "needed by now"
            except (MillraceError, OSError) as error:
                skipped.append(describe(error))
        if not dry_run:
            self._clear_cache(removed)
        return Cleaned(
            "versions",
            self.model,
            tuple(f"version {number}" for number in removed),
            {f"version {number}": kept[number] for number in sorted(kept)},
            skipped=tuple(skipped),
        )

    def remove(self, number: int) -> None:
        """Remove one version with its files, whatever the retention keeps.

        Raises:
            InputError: somebody needs the version.
            WorkError: MLflow or the artifact store failed.
        """
        own = {each.version: each for each in self.versions if each.model == self.model}
        why = self._find_needed(own).get(number)
        if why is None and number in own and not self._removal.remove_version(own[number]):
            why = "needed by now"
        if why is not None:
            raise InputError(
                f"{self.model} version {number} is not deleted, because it is needed",
                seen=why,
                valid="a version without an alias that nothing uses",
                hint="give the alias to another version (`millrace promote`), or wait for the job",
            )
        self._clear_cache([number])

    def clean_artifacts(
        self, kept: Collection[ModelVersion], now: datetime, *, dry_run: bool
    ) -> Cleaned:
        """Remove the files of old runs.

        Args:
            kept: versions whose runs keep their files.
            now: the time.
            dry_run: whether only to report.

        Raises:
            WorkError: MLflow failed.
        """
        before = now - timedelta(days=self.retention.artifacts or 0)
        needed = {version.run_id: f"version {version.version}" for version in kept}
        ended = f"attributes.end_time < {int(before.timestamp() * 1000)}"
        old = self._stored.list_runs((self.model, f"{self.model}{EXPERIMENT}"), ended)
        removed, skipped = [], []
        for run in old:
            if run.info.run_id in needed or ARTIFACTS_TAG in run.data.tags:
                continue
            try:
                if not dry_run:
                    self._removal.remove_artifacts(run, now.isoformat(timespec="seconds"))
            except (MillraceError, OSError) as error:
                skipped.append(describe(error))
            else:
                removed.append(f"run {run.info.run_id}")
        ids = {run.info.run_id for run in old}
        names = {f"run {id}": why for id, why in needed.items() if id in ids}
        return Cleaned("artifacts", self.model, tuple(removed), names, skipped=tuple(skipped))

    @cached_property
    def own_runs(self) -> list["Run"]:
        """The open trainings and batch jobs of the model.

        Raises:
            WorkError: MLflow failed.
        """
        return self._stored.list_runs((self.model, f"{self.model}{EXPERIMENT}"), RUNNING)

    def _find_needed(self, own: Mapping[int, ModelVersion]) -> dict[int, str]:
        """Return the versions that somebody needs, and why; the last reason counts."""
        events = ledger_of(self.installation).releases(self.model)
        parameters = "\n".join(value for run in self.running for value in run.data.params.values())
        return {
            **find_named({**self.named, "a running training uses it": parameters}, self.model),
            **find_references(self.versions, self.model),
            **find_unfinished(own.values(), self.running),
            **find_scoring(self.own_runs),
            **find_released(derive_state(events)),
            **find_aliased(own.values()),
        }

    def _finish_removals(self) -> list[str]:
        try:
            self._removal.finish_removals(self.model)
        except (MillraceError, OSError) as error:
            return [describe(error)]
        return []

    def _clear_cache(self, removed: Collection[int]) -> None:
        for number in removed:
            folders = (self.installation.home / "cache" / self.model).glob(f"{number}-*")
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _stored(self) -> StoredRuns:
        return StoredRuns(self.installation.tracking_uri, self.installation.artifacts)

    @property
    def _removal(self) -> Removal:
        return Removal(self._stored)
