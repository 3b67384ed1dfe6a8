"""MLflow's model registry: versions, their evidence and their aliases.

A version's folder in MLflow holds the model's files and the files of its evidence: see
`models/registry/version_files.py`. The SHA-256 digests of these files are tags of the version. The
digests are checked when the version is registered and whenever it is fetched.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from millrace.models.common.digest import digest_of, digest_of_all, digest_of_model
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.common.printable import one_line
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.artifact_store import StoredFolder
from millrace.models.registry.logged_model import SaveModel, log_model
from millrace.models.registry.mlflow_pages import MODEL_PAGE, for_mlflow
from millrace.models.registry.model_names import require_model_name
from millrace.models.registry.read_back import read_back
from millrace.models.registry.registry_errors import MISSING, registry_errors
from millrace.models.registry.signing import SIGNATURE_TAG, Trust, trust_of
from millrace.models.registry.tracking import TrackedRun, check_reachable, client
from millrace.models.registry.version_files import (
    CERTIFICATE_TAG,
    CHAMPION,
    DIGEST_TAG,
    EVIDENCE_TAG,
    KIND_TAG,
    PASSED,
    UNNUMBERED,
    ModelVersion,
    Package,
    fetched,
)
from millrace.models.registry.version_record import with_record

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

log = logging.getLogger("millrace")

_TAG_LENGTH = 5000


def prepare_registration() -> None:
    """Begin to list the installed packages, in a thread.

    MLflow does it when it logs the first model of a process, to check the model's requirements, and
    takes more than a second. A training that waits for its workers has that time.
    """
    from mlflow.utils import requirements_utils

    def list_packages() -> None:
        with suppress(Exception):  # then MLflow does it itself
            requirements_utils._init_modules_to_packages_map()  # type: ignore[no-untyped-call]

    Thread(target=list_packages, name="list-packages", daemon=True).start()


@dataclass(frozen=True)
class Registry:
    """The model registry of one MLflow.

    Attributes:
        tracking_uri: address of MLflow.
        cache: local folder in which fetched versions are kept.
        trust: signs versions that are registered, and decides which versions are trusted.
    """

    tracking_uri: str
    cache: Path
    trust: Trust

    def register(
        self,
        run: TrackedRun,
        model: str,
        kind: ModelKind,
        files: Mapping[str, Path],
        evidence: Mapping[str, Path],
        tags: Mapping[str, str],
        save_model: SaveModel,
        description: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> ModelVersion:
        """Log a model with its evidence to a run and register it as a new version.

        Args:
            run: the open run.
            model: name of the registered model, which is created if it does not exist.
            kind: what kind of model it is.
            files: the model's files, by name.
            evidence: the files of `kind.evidence_files`, by name.
            tags: tags of the version.
            save_model: the kind's function that writes the model's folder in MLflow's format.
            description: the description of the version's page, Markdown.
            metrics: what was measured on the model, for the run and the model.

        Raises:
            WorkError: the files that MLflow stored are not the files that were logged.
        """
        import mlflow

        # MLflow's own store of versions looks for the logged model at this address.
        mlflow.set_tracking_uri(self.tracking_uri)
        beside = {name: evidence[name] for name in kind.evidence_files}
        info = log_model(run, files, beside, save_model, metrics or {})
        digest = digest_of_model({name: digest_of(file) for name, file in files.items()})
        own = {DIGEST_TAG: digest, EVIDENCE_TAG: digest_of_all(beside), KIND_TAG: kind.name}
        described = (model, UNNUMBERED, run.run_id, info.model_uri, {**tags, **own}, ())
        logged = ModelVersion.registered(*described)
        stored = StoredFolder(info.artifact_location, self.tracking_uri)
        with read_back(logged, stored, self.cache) as keep:
            store = client(self.tracking_uri)
            made = _of_registered_model(
                store,
                model,
                lambda: store.create_model_version(
                    model,
                    info.model_uri,
                    run_id=run.run_id,
                    tags=with_record(logged.tags),
                    description=for_mlflow(description),
                    model_id=info.model_id,
                ),
            )
            # The version is signed only now, because the signature covers its number. If the
            # process ends before that, the version has no signature and no alias, and nothing uses
            # it.
            signed = self.sign(_version_of(made, ()))
            if logged.tags.get(CERTIFICATE_TAG) == PASSED:
                keep(signed, self.cache)
        if sends_requests(self.tracking_uri):
            _delete_repeated(store, made)
        return signed

    def sign(self, version: ModelVersion) -> ModelVersion:
        """Sign a version as it is in the registry, and return it with its signature."""
        signature = self.trust.keys.sign(version)
        self.set_tags(version, {SIGNATURE_TAG: signature})
        return replace(version, tags={**version.tags, SIGNATURE_TAG: signature})

    def by_alias(self, model: str, alias: str) -> ModelVersion | None:
        """Return the version that an alias points at; None if there is no such model or alias.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(self.tracking_uri)
        found = _find(
            lambda: client(self.tracking_uri).get_model_version_by_alias(model, alias),
            f"the {alias} of {one_line(model)} cannot be read: ",
        )
        return None if found is None else _version_of(found, tuple(found.aliases))

    def version(self, model: str, number: int) -> ModelVersion:
        """Return one version.

        Raises:
            InputError: the version does not exist.
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(self.tracking_uri)
        found = _find(
            lambda: client(self.tracking_uri).get_model_version(model, str(number)),
            f"{one_line(model)} version {number} cannot be read: ",
        )
        if found is None:
            raise InputError(
                f"the registry has no {model} version {number}",
                hint="see the versions in the MLflow UI",
            )
        return _version_of(found, tuple(found.aliases))

    def newest_versions(self, model: str) -> list[ModelVersion]:
        """Return the newest versions of a model without their aliases, at most 100, newest first.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(self.tracking_uri)
        with registry_errors(f"the versions of {one_line(model)} cannot be listed: "):
            found = client(self.tracking_uri).search_model_versions(
                f"name='{model}'", max_results=100, order_by=["version_number DESC"]
            )
        return [_version_of(each, ()) for each in found]

    def of_run(self, run_id: str) -> ModelVersion | None:
        """Return the version that a run registered; None if it registered none.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(self.tracking_uri)
        with registry_errors(f"the versions of the run {run_id} cannot be listed: "):
            found = client(self.tracking_uri).search_model_versions(f"run_id='{run_id}'")
        return _version_of(found[0], ()) if found else None

    def champions(self, model: str | None = None) -> dict[str, ModelVersion]:
        """Return the champions by model name: of all registered models, or only of `model`.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        names = self._with_champion() if model is None else [model]
        found = {name: self.by_alias(name, CHAMPION) for name in names}
        return {name: version for name, version in found.items() if version is not None}

    def models(self) -> list[str]:
        """Return the names of all registered models.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: MLflow failed.
        """
        check_reachable(self.tracking_uri)
        with registry_errors("the models cannot be listed: "):
            return [each.name for each in _all_models(client(self.tracking_uri))]

    def _with_champion(self) -> list[str]:
        check_reachable(self.tracking_uri)
        with registry_errors("the champions cannot be listed: "):
            models = _all_models(client(self.tracking_uri))
        return [each.name for each in models if CHAMPION in each.aliases]

    def set_alias(self, version: ModelVersion, alias: str) -> None:
        """Point an alias at a version."""
        store = client(self.tracking_uri)
        store.set_registered_model_alias(version.model, alias, str(version.version))

    def set_tags(self, version: ModelVersion, tags: Mapping[str, object]) -> None:
        """Set tags of a version."""
        store = client(self.tracking_uri)
        for name, value in tags.items():
            store.set_model_version_tag(version.model, str(version.version), name, str(value))

    def change_tags(self, version: ModelVersion, tags: Mapping[str, str | None]) -> None:
        """Set tags of a version; remove tags whose value is None.

        Raises:
            WorkError: MLflow's registry failed.
        """
        store, number = client(self.tracking_uri), str(version.version)
        with registry_errors():
            for name, value in tags.items():
                if value is not None:
                    store.set_model_version_tag(version.model, number, name, value[:_TAG_LENGTH])
                elif name in version.tags:
                    store.delete_model_version_tag(version.model, number, name)

    def author(self, version: ModelVersion) -> str:
        """Return the user whose run made a version; empty if the user is not known."""
        from mlflow.exceptions import MlflowException

        try:
            run = client(self.tracking_uri).get_run(version.run_id)
        except MlflowException:
            return ""
        return run.data.tags.get("mlflow.user", "")

    def describe(self, version: ModelVersion, text: str) -> None:
        """Set the description of a version, Markdown that the MLflow UI shows on its page."""
        store = client(self.tracking_uri)
        shown = for_mlflow(text)
        store.update_model_version(version.model, str(version.version), description=shown)

    def add_to_description(self, version: ModelVersion, text: str) -> None:
        """Add Markdown to the description of a version, unless it is in it already."""
        store, number = client(self.tracking_uri), str(version.version)
        before = store.get_model_version(version.model, number).description
        if before and for_mlflow(text) in before:
            return
        self.describe(version, f"{before}\n\n{text}" if before else text)

    def replace_section(self, version: ModelVersion, heading: str, text: str) -> None:
        """Write Markdown at the end of a version's description, in place of the former section.

        Args:
            version: the version.
            heading: the section's first line, which the text begins with.
            text: the section.
        """
        store, number = client(self.tracking_uri), str(version.version)
        before = store.get_model_version(version.model, number).description or ""
        kept = before.partition(heading)[0].rstrip()
        self.describe(version, f"{kept}\n\n{text}" if kept else text)

    def fetch(self, version: ModelVersion) -> Package:
        """Return the files of a version, from the cache if they are in it.

        Raises:
            InputError: the version is not trusted, was not made by Millrace, or its files are not
                the files that were registered.
            TransientError: the artifact store does not answer.
        """
        untrusted = self.require_trusted(version)
        return replace(fetched(version, self.tracking_uri, self.cache), untrusted=untrusted)

    def require_trusted(self, version: ModelVersion) -> str:
        """Return why a version is used although it is not signed; empty if it is signed.

        Raises:
            InputError: the version is not signed by a key that this home trusts, and a signature
                is required.
        """
        untrusted = self.trust.require(version)
        if untrusted:
            log.warning("%s version %s: %s", version.model, version.version, untrusted)
        return untrusted

    def fetch_to_sign(self, version: ModelVersion) -> Package:
        """Return the files of a version that is about to be signed, after a check of the digests.

        Raises:
            InputError: the version was not made by Millrace, or its files are not the files that
                were registered.
            TransientError: the artifact store does not answer.
        """
        require_model_name(version.model)
        return fetched(version, self.tracking_uri, self.cache)


def registry_of(installation: Installation, given: Pipeline | None = None) -> Registry:
    """Return the registry of an installation.

    Args:
        installation: the installation.
        given: the pipeline that was given to a command; its `promotion.require.signed` counts.
    """
    return Registry(
        installation.tracking_uri, installation.home / "cache", trust_of(installation, given)
    )


def _find(ask: Callable[[], "MlflowVersion"], what: str) -> "MlflowVersion | None":
    """Return MLflow's answer; None if it has no such model, version or alias."""
    from mlflow.exceptions import MlflowException

    with registry_errors(what):
        try:
            return ask()
        except MlflowException as error:
            if error.error_code in MISSING:
                return None
            raise


def _all_models(store: Any) -> list[Any]:
    models: list[Any] = []
    token = None
    while True:
        page = store.search_registered_models(page_token=token)
        models += page
        token = page.token
        if not token:
            return models


def _of_registered_model(
    store: Any, model: str, create: "Callable[[], MlflowVersion]"
) -> "MlflowVersion":
    """Return the version that `create` makes; make the registered model first if there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return create()
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    try:
        store.create_registered_model(model, description=for_mlflow(MODEL_PAGE))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return create()


def sends_requests(tracking_uri: str) -> bool:
    """Return whether MLflow's client sends requests, and not statements to a database."""
    return tracking_uri.startswith("http")


def _delete_repeated(store: Any, made: "MlflowVersion") -> None:
    """Delete the duplicates of a new version, which were made from the same logged model.

    MLflow's client repeats a request that was not answered in time, although the server may have
    executed it.
    """
    for each in store.search_model_versions(f"run_id='{made.run_id}'"):
        is_same = (each.name, each.source) == (made.name, made.source)
        if is_same and each.version != made.version and SIGNATURE_TAG not in each.tags:
            log.warning(
                "deleting version %s of %s, a duplicate of version %s: MLflow did not answer in "
                "time, so its client repeated the request",
                each.version,
                each.name,
                made.version,
            )
            store.delete_model_version(each.name, str(each.version))


def _version_of(found: "MlflowVersion", aliases: tuple[str, ...]) -> ModelVersion:
    described = (found.name, found.version, found.run_id, found.source)
    return ModelVersion.registered(*described, found.tags, aliases)
