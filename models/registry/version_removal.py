"""Removal of registered versions and of the files of MLflow runs.

A version is deleted from the registry, as a user would delete it in MLflow's UI, and its files are
deleted. Its tags stay as a tag of its run, so that lineage can still say what the version was. The
tag names the files until they are gone, so a removal that was stopped is finished by the next one.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from millrace.models.common.errors import InputError
from millrace.models.registry.registry_errors import registry_errors, unless_missing
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_retention import (
    ARTIFACTS_TAG,
    FILES,
    KEPT_TAGS,
    REMOVED_TAG,
    StoredRuns,
)

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run

_LOGGED = re.compile(r"models:/(m-[^/@]+)")
"""Source of a version with files of its own, in contrast to `models:/NAME/N`, which is a copy."""


@dataclass(frozen=True)
class Removal:
    """Removes versions and files from one MLflow.

    Attributes:
        stored: the runs and versions.
    """

    stored: StoredRuns

    def remove_version(self, version: ModelVersion) -> bool:
        """Delete a version and its files; a tag of its run keeps what the version was.

        Returns:
            Whether the version is gone; it stays if by now an alias points at it, or if it was
            copied.

        Raises:
            InputError: its files are where Millrace does not delete anything.
            WorkError: MLflow failed; a TransientError if it may pass.
            OSError: its files cannot be deleted.
        """
        name, number = version.model, str(version.version)
        with registry_errors(f"{name} version {number} was not removed: "):
            found = self._find_version(name, number)
            if found is None:  # another `millrace clean`, or a user, was faster
                return True
            if found.aliases or self._others(f"models:/{name}/{number}", version):
                return False
            logged = self._find_own_files(version)
            self._note(version, logged)
            client(self.stored.tracking_uri).delete_model_version(name, number)
            if logged is not None:
                self._delete_files(logged)
                self._note(version, None)
        return True

    def finish_removals(self, model: str) -> None:
        """Delete the files of a model's versions whose removal was stopped half-way.

        Raises:
            InputError: files are where Millrace does not delete anything.
            WorkError: MLflow failed; a TransientError if it may pass.
            OSError: files cannot be deleted.
        """
        condition = f"tags.`{REMOVED_TAG}` LIKE '%\"{FILES}\"%'"
        for run in self.stored.list_runs([model], condition):
            record = json.loads(run.data.tags[REMOVED_TAG])
            with registry_errors(f"the files of a version of {model} were not removed: "):
                if self._find_version(record["model"], record["version"]) is not None:
                    continue  # it was stopped before the version was deleted
                logged = self._find_logged(record.pop(FILES))
                if logged is not None:
                    self._delete_files(logged)
                store = client(self.stored.tracking_uri)
                store.set_tag(run.info.run_id, REMOVED_TAG, json.dumps(record))

    def remove_artifacts(self, run: "Run", at: str) -> None:
        """Delete the files of a run; its parameters, metrics and tags stay.

        Args:
            run: the run.
            at: the time, ISO 8601, for the run's tag.

        Raises:
            InputError: its files are where Millrace does not delete anything.
            WorkError: MLflow failed; a TransientError if it may pass.
            OSError: its files cannot be deleted.
        """
        with registry_errors(f"the files of the run {run.info.run_id} were not removed: "):
            self._require_own_folder(run.info.artifact_uri, run.info.run_id)
            self._delete(run.info.artifact_uri)
            client(self.stored.tracking_uri).set_tag(run.info.run_id, ARTIFACTS_TAG, at)

    def _note(self, version: ModelVersion, logged: "LoggedModel | None") -> None:
        """Set the tag of a version's run that says what the version was, and where its files are.

        A run that was deleted in MLflow's UI keeps no such tag.
        """
        tags = {name: version.tags.get(f"millrace.{name}") for name in KEPT_TAGS}
        record = {
            "model": version.model,
            "version": version.version,
            **{name: value for name, value in tags.items() if value is not None},
            **({} if logged is None else {FILES: logged.model_id}),
        }
        if version.run_id:
            with unless_missing():
                store = client(self.stored.tracking_uri)
                store.set_tag(version.run_id, REMOVED_TAG, json.dumps(record))

    def _find_own_files(self, version: ModelVersion) -> "LoggedModel | None":
        """Return the logged model with a version's files; None if another version needs it."""
        named = _LOGGED.fullmatch(version.source)
        logged = self._find_logged(named.group(1)) if named else None
        if logged is None:
            return None
        places = (version.source, str(logged.artifact_location))
        if any(self._others(place, version) for place in places):
            return None
        self._require_own_folder(logged.artifact_location, logged.model_id)
        return logged

    def _find_logged(self, id: str) -> "LoggedModel | None":
        with unless_missing():
            return client(self.stored.tracking_uri).get_logged_model(id)
        return None

    def _find_version(self, model: str, number: int | str) -> Any:
        """Return a version as MLflow has it; None if it is gone."""
        with unless_missing():
            return client(self.stored.tracking_uri).get_model_version(model, str(number))
        return None

    def _others(self, source: str, version: ModelVersion) -> list[Any]:
        """Return the versions with a source, without the given version."""
        store = client(self.stored.tracking_uri)
        own = (version.model, str(version.version))
        found = store.search_model_versions(f"source_path = '{source}'")
        return [each for each in found if (each.name, str(each.version)) != own]

    def _delete_files(self, logged: "LoggedModel") -> None:
        self._require_own_folder(logged.artifact_location, logged.model_id)
        self._delete(logged.artifact_location)
        client(self.stored.tracking_uri).delete_logged_model(logged.model_id)

    def _require_own_folder(self, location: str, owner: str) -> None:
        """Refuse to delete the artifacts of a run or of a logged model where they are not its own.

        Whoever may create an experiment in MLflow names the folder of its artifacts, so only a
        folder that is named after its owner is deleted, and a local one only in the own folder.

        Raises:
            InputError: the location is another folder.
        """
        parts = urlsplit(location)
        folder = Path(unquote(parts.path))
        is_local = parts.scheme in ("", "file")
        is_own = folder.parts[-2:] == (owner, "artifacts")
        own_root = self.stored.artifacts.resolve()
        if not is_own or (is_local and not folder.resolve().is_relative_to(own_root)):
            raise InputError(
                "the artifacts of a run are where Millrace does not delete anything",
                seen=location,
                valid=f"a folder {owner}/artifacts in MLflow's artifact store",
                hint="delete them by hand, if they are no longer needed",
            )

    def _delete(self, location: str) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        store: Any = get_artifact_repository(location, tracking_uri=self.stored.tracking_uri)
        store.delete_artifacts()
