"""Which registered versions and which files of MLflow runs are removed, and their removal.

A version is deleted from the registry, as a user would delete it in MLflow's UI, and its files are
deleted. Its tags stay as a tag of its run, so that lineage can still say what the version was.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from millrace.models.common.errors import InputError
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import ModelVersion

if TYPE_CHECKING:
    from mlflow.entities import Run

REMOVED_TAG = "millrace.removed_version"
"""Tag of a run: the version that it made and that was removed, as JSON."""
ARTIFACTS_TAG = "millrace.artifacts_removed"
"""Tag of a run: when its files were removed, ISO 8601."""
KEPT_TAGS = ("certificate", "candidate", "dataset", "dataset_digest", "digest")
"""Tags of a version, without `millrace.`, that stay known after its removal."""


@dataclass(frozen=True)
class VersionPlan:
    """Which versions of a model stay.

    Attributes:
        kept: why, by number.
        removed: the versions that go, the oldest first.
    """

    kept: Mapping[int, str]
    removed: tuple[ModelVersion, ...]


def plan_versions(
    versions: Collection[ModelVersion], newest: int | None, needed: Mapping[int, str]
) -> VersionPlan:
    """Decide which versions stay: the newest, those with an alias, and those somebody needs.

    Args:
        versions: all versions of a model.
        newest: number of the newest versions to keep; None: all.
        needed: who needs a version, by its number.
    """
    ordered = sorted(versions, key=lambda each: each.version)
    recent = ordered if newest is None else ordered[-newest:]
    kept: dict[int, str] = {}
    for each in ordered:
        if each.aliases:
            kept[each.version] = f"alias {', '.join(each.aliases)}"
        elif each.version in needed:
            kept[each.version] = needed[each.version]
        elif each in recent:
            kept[each.version] = "recent"
    return VersionPlan(kept, tuple(each for each in ordered if each.version not in kept))


def find_references(versions: Iterable[ModelVersion], model: str) -> dict[int, str]:
    """Return which versions of a model other versions build on, and which ones do.

    Args:
        versions: the versions of all models.
        model: the model.
    """
    found: dict[int, str] = {}
    for each in versions:
        for name, what in (("millrace.base", "base"), ("millrace.draft", "draft model")):
            other, _, number = each.tags.get(name, "").removeprefix("models:/").partition("/")
            if other == model and number.isdigit():
                found[int(number)] = f"{what} of {each.model} version {each.version}"
    return found


@dataclass(frozen=True)
class StoredRuns:
    """The runs and versions in one MLflow, and the removal of their files.

    Attributes:
        tracking_uri: address of MLflow.
        artifacts: the only local folder in which files are deleted.
    """

    tracking_uri: str
    artifacts: Path

    def list_versions(self, model: str | None = None) -> list[ModelVersion]:
        """Return the versions of a model or of all models, with their aliases."""
        store = client(self.tracking_uri)
        wanted = f"name = '{model}'" if model else ""
        found = list(_pages(store.search_model_versions, filter_string=wanted))
        aliases: dict[str, dict[str, list[str]]] = {}
        for name in {each.name for each in found}:
            by_version = aliases.setdefault(name, {})
            for alias, number in store.get_registered_model(name).aliases.items():
                by_version.setdefault(str(number), []).append(alias)
        return [
            ModelVersion.registered(
                *(each.name, each.version, each.run_id, each.source),
                each.tags,
                aliases[each.name].get(str(each.version), ()),
            )
            for each in found
        ]

    def list_runs(self, experiments: Collection[str], condition: str) -> list["Run"]:
        """Return the runs of some experiments, by their names, that meet a condition of MLflow."""
        store = client(self.tracking_uri)
        ids = [
            found.experiment_id
            for name in experiments
            if (found := store.get_experiment_by_name(name)) is not None
        ]
        if not ids:
            return []
        return list(_pages(store.search_runs, experiment_ids=ids, filter_string=condition))

    def remove_version(self, version: ModelVersion) -> None:
        """Delete a version and its files; a tag of its run keeps what the version was.

        An alias that points at it by now protects it.
        """
        store = client(self.tracking_uri)
        number = str(version.version)
        if store.get_model_version(version.model, number).aliases:
            return
        tags = {name: version.tags.get(f"millrace.{name}") for name in KEPT_TAGS}
        record = {
            "model": version.model,
            "version": version.version,
            **{name: value for name, value in tags.items() if value is not None},
        }
        if version.run_id:
            store.set_tag(version.run_id, REMOVED_TAG, json.dumps(record))
        store.delete_model_version(version.model, number)
        others = store.search_model_versions(f"run_id = '{version.run_id}'")
        if version.source not in {each.source for each in others}:
            self._delete_model_files(version)

    def _delete_model_files(self, version: ModelVersion) -> None:
        store = client(self.tracking_uri)
        if version.source.startswith("models:/m-"):
            logged = store.get_logged_model(version.source.removeprefix("models:/"))
            self._delete(logged.artifact_location, logged.model_id)
            store.delete_logged_model(logged.model_id)

    def find_removed(self, model: str, number: int) -> dict[str, Any] | None:
        """Return what is known of a version that was removed; None if nothing is."""
        start = json.dumps({"model": model, "version": number})[:-1]
        condition = f"tags.`{REMOVED_TAG}` LIKE '{start}%'"
        for run in self.list_runs([model], condition):
            record: dict[str, Any] = json.loads(run.data.tags[REMOVED_TAG])
            if (record["model"], record["version"]) == (model, number):
                return {**record, "run_id": run.info.run_id}
        return None

    def remove_artifacts(self, run: "Run", at: str) -> None:
        """Delete the files of a run; its parameters, metrics and tags stay.

        Args:
            run: the run.
            at: the time, ISO 8601, for the run's tag.
        """
        self._delete(run.info.artifact_uri, run.info.run_id)
        client(self.tracking_uri).set_tag(run.info.run_id, ARTIFACTS_TAG, at)

    def _delete(self, location: str, owner: str) -> None:
        """Delete the artifacts of a run or of a logged model.

        Whoever may create an experiment in MLflow names the folder of its artifacts, so only a
        folder that is named after its owner is deleted, and a local one only in the own folder.

        Raises:
            InputError: the location is another folder.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        parts = urlsplit(location)
        folder = Path(unquote(parts.path))
        is_local = parts.scheme in ("", "file")
        is_own = folder.parts[-2:] == (owner, "artifacts")
        if not is_own or (
            is_local and not folder.resolve().is_relative_to(self.artifacts.resolve())
        ):
            raise InputError(
                "the artifacts of a run are where Millrace does not delete anything",
                seen=location,
                valid=f"a folder {owner}/artifacts in MLflow's artifact store",
                hint="delete them by hand, if they are no longer needed",
            )
        store: Any = get_artifact_repository(location, tracking_uri=self.tracking_uri)
        store.delete_artifacts()


def _pages(search: Any, **options: Any) -> Iterator[Any]:
    """Yield the results of a search of MLflow, page by page."""
    token = None
    while True:
        page = search(**options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
