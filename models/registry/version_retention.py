"""Which registered versions others build on, and the runs and versions that one MLflow has.

`millrace.models.registry.version_removal` removes them.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.models.registry.registry_errors import registry_errors, unless_missing
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import ModelVersion

if TYPE_CHECKING:
    from mlflow.entities import Run

REMOVED_TAG = "millrace.removed_version"
"""Tag of a run: the version that it made and that was removed, as JSON."""
FILES = "files"
"""Key in `REMOVED_TAG`: the id of the logged model whose files are still to be deleted."""
ARTIFACTS_TAG = "millrace.artifacts_removed"
"""Tag of a run: when its files were removed, ISO 8601."""
KEPT_TAGS = ("certificate", "candidate", "dataset", "dataset_digest", "digest")
"""Tags of a version, without `millrace.`, that stay known after its removal."""


def find_references(versions: Iterable[ModelVersion], model: str) -> dict[int, str]:
    """Return which versions of a model other versions build on, and which ones do.

    A version that was copied in MLflow has no files of its own: it names the version that it is a
    copy of.

    Args:
        versions: the versions of all models.
        model: the model.
    """
    found: dict[int, str] = {}
    for each in versions:
        for uri, what in (
            (each.source, "copied as"),
            (each.tags.get("millrace.base", ""), "base of"),
            (each.tags.get("millrace.draft", ""), "draft model of"),
        ):
            other, _, number = uri.removeprefix("models:/").partition("/")
            if other == model and number.isdigit():
                found[int(number)] = f"{what} {each.model} version {each.version}"
    return found


@dataclass(frozen=True)
class StoredRuns:
    """The runs and versions in one MLflow.

    Attributes:
        tracking_uri: address of MLflow.
        artifacts: the only local folder in which files are deleted.
    """

    tracking_uri: str
    artifacts: Path

    def list_versions(self) -> list[ModelVersion]:
        """Return the versions of all models, with their aliases.

        Raises:
            WorkError: MLflow failed; a TransientError if it may pass.
        """
        with registry_errors("the versions cannot be listed: "):
            store = client(self.tracking_uri)
            found = list(_pages(store.search_model_versions))
            aliases = {name: _aliases(store, name) for name in {each.name for each in found}}
        return [
            ModelVersion.registered(
                *(each.name, each.version, each.run_id, each.source),
                each.tags,
                aliases[each.name].get(str(each.version), ()),
            )
            for each in found
        ]

    def list_runs(self, experiments: Collection[str] | None, condition: str) -> list["Run"]:
        """Return the runs that meet a condition of MLflow.

        Args:
            experiments: names of the experiments; None: all experiments.
            condition: the condition, as MLflow's `filter_string`.

        Raises:
            WorkError: MLflow failed; a TransientError if it may pass.
        """
        with registry_errors("the runs cannot be listed: "):
            store = client(self.tracking_uri)
            if experiments is None:
                known = list(_pages(store.search_experiments))
            else:
                known = [store.get_experiment_by_name(name) for name in experiments]
            ids = [each.experiment_id for each in known if each is not None]
            if not ids:
                return []
            return list(_pages(store.search_runs, experiment_ids=ids, filter_string=condition))

    def find_removed(self, model: str, number: int) -> dict[str, Any] | None:
        """Return what is known of a version that was removed; None if nothing is."""
        start = json.dumps({"model": model, "version": number})[:-1]
        condition = f"tags.`{REMOVED_TAG}` LIKE '{start}%'"
        for run in self.list_runs([model], condition):
            record: dict[str, Any] = json.loads(run.data.tags[REMOVED_TAG])
            if (record["model"], record["version"]) == (model, number):
                record.pop(FILES, None)
                return {**record, "run_id": run.info.run_id}
        return None


def _aliases(store: Any, model: str) -> dict[str, list[str]]:
    """Return the aliases of a model's versions, by the version's number."""
    by_version: dict[str, list[str]] = {}
    with unless_missing():  # the model was removed meanwhile
        for alias, number in store.get_registered_model(model).aliases.items():
            by_version.setdefault(str(number), []).append(alias)
    return by_version


def _pages(search: Any, **options: Any) -> Iterator[Any]:
    """Yield the results of a search of MLflow, page by page."""
    token = None
    while True:
        page = search(**options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
