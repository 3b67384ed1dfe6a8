"""MLflow's model registry: versions, their evidence and their aliases.

A version's folder in MLflow is an `onnx` model with its weights inside `model.onnx`, and beside it
what is needed to use it: `encoding.json`, `certificate.json`, `golden.npz` and `pipeline.yaml`.
Its sha256 is a tag of the version, checked when it is registered and whenever it is fetched.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.arrays import Array
from models.digest import digest_of, digest_of_all
from models.errors import InputError, MillraceError, TransientError, WorkError
from models.features import Encoding
from models.onnx_session import execution_providers
from models.places import Places
from models.tracking import TrackedRun, check_reachable, client

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

CHAMPION = "champion"
CHALLENGER = "challenger"
DIGEST_TAG = "millrace.digest"
EVIDENCE_TAG = "millrace.evidence"
"""Digest of `EXTRA_FILES`, the certificate among them."""
_TAG_LENGTH = 5000
EXTRA_FILES = ("encoding.json", "certificate.json", "golden.npz", "pipeline.yaml")


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model.

    Attributes:
        model: registered model.
        version: its number; Triton serves it under the same one.
        digest: sha256 of `model.onnx`; empty if it was not registered by Millrace.
        run_id: run that made it.
        aliases: aliases that point at it.
        tags: its tags.
    """

    model: str
    version: int
    digest: str
    run_id: str
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Package:
    """The files of a fetched version, digest checked.

    Attributes:
        version: which version it is.
        model: the ONNX file.
        encoding: rows to tensors.
        folder: where the other files are.
    """

    version: ModelVersion
    model: Path
    encoding: Encoding
    folder: Path

    def text(self, name: str) -> str:
        """Return one of `EXTRA_FILES` as text."""
        return (self.folder / name).read_text()

    def golden(self) -> tuple[Array, Array]:
        """Return the golden batch and PyTorch's answers to it."""
        with np.load(self.folder / "golden.npz", allow_pickle=False) as arrays:
            return arrays["features"], arrays["answers"]


@dataclass(frozen=True)
class Registry:
    """The registry at one MLflow address.

    Attributes:
        tracking_uri: its address.
        cache: folder for fetched versions, by digest.
    """

    tracking_uri: str
    cache: Path

    def register(
        self,
        run: TrackedRun,
        model: str,
        onnx_file: Path,
        extra: Mapping[str, Path],
        tags: Mapping[str, str],
    ) -> ModelVersion:
        """Log a model with its evidence to a run and register it as a new version.

        Args:
            run: the open run.
            model: registered model, made if it is not there.
            onnx_file: the model, weights inside.
            extra: the files named in `EXTRA_FILES`.
            tags: tags of the version.

        Raises:
            WorkError: what MLflow keeps is not what was given.
        """
        import mlflow.onnx
        import onnx

        # `log_model` takes no address: MLflow keeps one for the whole process.
        mlflow.set_tracking_uri(self.tracking_uri)
        digest = digest_of(onnx_file)
        with np.load(extra["golden.npz"], allow_pickle=False) as golden:
            features, answers = golden["features"], golden["answers"]
        info = mlflow.onnx.log_model(
            onnx.load(onnx_file),
            name="model",
            signature=mlflow.models.infer_signature(features, answers),
            input_example=features[:2],
            save_as_external_data=False,
            extra_files=[str(extra[name]) for name in EXTRA_FILES],
            pip_requirements=["onnx", "onnxruntime"],
            onnx_execution_providers=execution_providers(),
            # Else MLflow takes the run that is active in this thread, if there is one.
            run_id=run.run_id,
        )
        self._check_logged(info.model_uri, digest)
        store = client(self.tracking_uri)
        _ensure_model(store, model)
        made = store.create_model_version(
            model,
            info.model_uri,
            run_id=run.run_id,
            tags={**tags, DIGEST_TAG: digest, EVIDENCE_TAG: digest_of_all(_evidence(extra))},
            model_id=info.model_id,
        )
        return _version_of(made, ())

    def by_alias(self, model: str, alias: str) -> ModelVersion | None:
        """Return the version that an alias points at, or None.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: it failed.
        """
        check_reachable(self.tracking_uri)
        store = client(self.tracking_uri)
        found = _found(lambda: store.get_model_version_by_alias(model, alias))
        return None if found is None else _version_of(found, tuple(found.aliases))

    def version(self, model: str, number: int) -> ModelVersion:
        """Return one version.

        Raises:
            InputError: there is no such version.
            TransientError: MLflow cannot be reached.
            WorkError: it failed.
        """
        check_reachable(self.tracking_uri)
        store = client(self.tracking_uri)
        found = _found(lambda: store.get_model_version(model, str(number)))
        if found is None:
            raise InputError(
                f"the registry has no {model} version {number}",
                hint="see the versions in the MLflow UI",
            )
        return _version_of(found, tuple(found.aliases))

    def champions(self) -> dict[str, ModelVersion]:
        """Return the champion of every registered model that has one.

        Raises:
            TransientError: MLflow cannot be reached.
            WorkError: it failed.
        """
        check_reachable(self.tracking_uri)
        with _registry_errors():
            models = _all_models(client(self.tracking_uri))
        found = {m.name: self.by_alias(m.name, CHAMPION) for m in models if CHAMPION in m.aliases}
        return {name: version for name, version in found.items() if version is not None}

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
        """Set tags of a version, and remove those that are None.

        Raises:
            WorkError: the registry failed.
        """
        store, number = client(self.tracking_uri), str(version.version)
        with _registry_errors():
            for name, value in tags.items():
                if value is not None:
                    store.set_model_version_tag(version.model, number, name, value[:_TAG_LENGTH])
                elif name in version.tags:
                    store.delete_model_version_tag(version.model, number, name)

    def author(self, version: ModelVersion) -> str:
        """Return the user whose run made a version; empty if that is not known."""
        from mlflow.exceptions import MlflowException

        try:
            run = client(self.tracking_uri).get_run(version.run_id)
        except MlflowException:
            return ""
        return run.data.tags.get("mlflow.user", "")

    def describe(self, version: ModelVersion, text: str) -> None:
        """Set the description of a version, Markdown that the MLflow UI shows on its page."""
        store = client(self.tracking_uri)
        store.update_model_version(version.model, str(version.version), description=text)

    def fetch(self, version: ModelVersion) -> Package:
        """Return the files of a version, from the cache if they are there.

        Raises:
            InputError: the version was not made by Millrace, or its files are not the ones that
                were registered.
        """
        if not version.digest:
            raise InputError(
                f"{version.model} version {version.version} has no digest",
                valid=f"a version registered by Millrace, with the tag {DIGEST_TAG}",
                hint="point the alias at another version",
            )
        folder = self.cache / version.model / f"{version.version}-{version.digest[:16]}"
        if not folder.exists():
            self._download(version, folder)
        model = folder / "model.onnx"
        if not _is_whole(folder, version):  # damaged since it was kept
            shutil.rmtree(folder)
            self._download(version, folder)
        encoding = Encoding.from_json((folder / "encoding.json").read_text())
        return Package(version, model, encoding, folder)

    def _download(self, version: ModelVersion, folder: Path) -> None:
        """Download into a staging folder, check, and only then give it its name."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        store = client(self.tracking_uri)
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache) as staging:
            try:
                got = Path(
                    download_artifacts(
                        # Not models:/NAME/N: its registry is one for the whole process.
                        artifact_uri=store.get_model_version_download_uri(
                            version.model, str(version.version)
                        ),
                        dst_path=f"{staging}/download",
                        tracking_uri=self.tracking_uri,
                    )
                )
            except (MlflowException, OSError) as error:
                raise _unfetched(version, error) from error
            kept = Path(staging) / "package"
            kept.mkdir()
            files = {"model.onnx": got / "model.onnx"}
            files |= {name: got / "extra_files" / name for name in EXTRA_FILES}
            for name, file in files.items():
                _copy(file, kept / name, version)
            # Before it gets its name: a download that went wrong is not kept, and tried again.
            _check_digests(kept, version)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not folder.exists():
                kept.rename(folder)

    def _check_logged(self, model_uri: str, digest: str) -> None:
        from mlflow.artifacts import download_artifacts

        with tempfile.TemporaryDirectory() as folder:
            got = Path(
                download_artifacts(model_uri, dst_path=folder, tracking_uri=self.tracking_uri),
                "model.onnx",
            )
            if digest_of(got) != digest:
                raise WorkError(
                    "MLflow keeps another file than the one that was certified",
                    seen=f"sha256 {digest_of(got)}",
                    valid=f"sha256 {digest}",
                    hint="check the artifact store",
                )


def _unfetched(version: ModelVersion, error: Exception) -> MillraceError:
    """Return why the files did not come: they are not there, or the store does not answer."""
    gone = isinstance(error, FileNotFoundError) or (
        getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
    )
    kind = InputError if gone else TransientError
    return kind(
        f"the files of {version.model} version {version.version} cannot be fetched",
        seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
        hint="check the artifact store of MLflow",
    )


def registry_of(places: Places) -> Registry:
    """Return the registry of an installation."""
    return Registry(places.tracking_uri, places.home / "cache")


def _check_digests(folder: Path, version: ModelVersion) -> None:
    """Raise unless the files are those that were registered.

    A version that an earlier Millrace registered has no digest of its evidence.
    """
    evidence = version.tags.get(EVIDENCE_TAG)
    found = {"model.onnx": digest_of(folder / "model.onnx")}
    wanted = {"model.onnx": version.digest}
    if evidence is not None:
        found["its evidence"] = digest_of_all(_evidence(_paths(folder)))
        wanted["its evidence"] = evidence
    if found != wanted:
        what = next(name for name in wanted if found[name] != wanted[name])
        raise InputError(
            f"{version.model} version {version.version} is not the file that was registered",
            seen=f"sha256 {found[what]} of {what}",
            valid=f"sha256 {wanted[what]}",
            hint="register the model again, or point the alias at another version",
        )


def _is_whole(folder: Path, version: ModelVersion) -> bool:
    try:
        _check_digests(folder, version)
    except (InputError, OSError):
        return False
    return True


def _paths(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in EXTRA_FILES}


def _evidence(files: Mapping[str, Path]) -> dict[str, Path]:
    return {name: files[name] for name in EXTRA_FILES}


def _copy(file: Path, to: Path, version: ModelVersion) -> None:
    if not file.is_file() or file.is_symlink():
        raise InputError(
            f"{version.model} version {version.version} has no {to.name}",
            valid=f"a version registered by Millrace: model.onnx, {', '.join(EXTRA_FILES)}",
            hint="point the alias at another version",
        )
    shutil.copyfile(file, to)


def _found(ask: Callable[[], "MlflowVersion"]) -> "MlflowVersion | None":
    """Return what MLflow answers, None where it has no such model, version or alias."""
    from mlflow.exceptions import MlflowException

    with _registry_errors():
        try:
            return ask()
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise


@contextmanager
def _registry_errors() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise WorkError("MLflow's registry failed", seen=str(error).splitlines()[0]) from error


def _all_models(store: Any) -> list[Any]:
    models: list[Any] = []
    token = None
    while True:
        page = store.search_registered_models(page_token=token)
        models += page
        token = page.token
        if not token:
            return models


def _ensure_model(store: Any, model: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        store.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version_of(found: "MlflowVersion", aliases: tuple[str, ...]) -> ModelVersion:
    tags = dict(found.tags)
    digest = tags.get(DIGEST_TAG, "")
    return ModelVersion(found.name, int(found.version), digest, found.run_id or "", aliases, tags)
