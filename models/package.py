"""The files of a registered version: what they are, and how they come from MLflow, checked."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from models.arrays import Array
from models.digest import digest_of, digest_of_all
from models.errors import InputError, MillraceError, TransientError
from models.features import TEXT, Encoding, text_request
from models.model_input import FEATURES
from models.tracking import client

DIGEST_TAG = "millrace.digest"
EVIDENCE_TAG = "millrace.evidence"
"""Digest of `EXTRA_FILES`, the certificate among them."""
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
            return arrays[self.encoding.input.name], arrays["answers"]

    def golden_request(self) -> dict[str, Array]:
        """Return the golden batch as a client sends it."""
        with np.load(self.folder / "golden.npz", allow_pickle=False) as arrays:
            if self.encoding.tokenizer is None:
                return {FEATURES: arrays[FEATURES]}
            return text_request(json.loads(arrays[TEXT].item()))


def fetched(version: ModelVersion, tracking_uri: str, cache: Path) -> Package:
    """Return the files of a version, from the cache if they are there.

    Args:
        version: which one.
        tracking_uri: of the MLflow that has it.
        cache: folder for fetched versions, by digest.

    Raises:
        InputError: the version was not made by Millrace, or its files are not the ones that
            were registered.
        TransientError: the artifact store does not answer.
    """
    if not version.digest:
        raise InputError(
            f"{version.model} version {version.version} has no digest",
            valid=f"a version registered by Millrace, with the tag {DIGEST_TAG}",
            hint="point the alias at another version",
        )
    folder = cache / version.model / f"{version.version}-{version.digest[:16]}"
    if not folder.exists():
        _download(version, tracking_uri, folder)
    model = folder / "model.onnx"
    if not _is_whole(folder, version):  # damaged since it was kept
        shutil.rmtree(folder)
        _download(version, tracking_uri, folder)
    encoding = Encoding.from_json((folder / "encoding.json").read_text())
    return Package(version, model, encoding, folder)


def _download(version: ModelVersion, tracking_uri: str, folder: Path) -> None:
    """Download into a staging folder, check, and only then give it its name."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    store = client(tracking_uri)
    cache = folder.parent.parent
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as staging:
        try:
            got = Path(
                download_artifacts(
                    # Not models:/NAME/N: its registry is one for the whole process.
                    artifact_uri=store.get_model_version_download_uri(
                        version.model, str(version.version)
                    ),
                    dst_path=f"{staging}/download",
                    tracking_uri=tracking_uri,
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


def _check_digests(folder: Path, version: ModelVersion) -> None:
    """Raise unless the files are those that were registered.

    A version that an earlier Millrace registered has no digest of its evidence.
    """
    evidence = version.tags.get(EVIDENCE_TAG)
    found = {"model.onnx": digest_of(folder / "model.onnx")}
    wanted = {"model.onnx": version.digest}
    if evidence is not None:
        found["its evidence"] = digest_of_all(evidence_of(_paths(folder)))
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


def evidence_of(files: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files that are the evidence of a version, by name."""
    return {name: files[name] for name in EXTRA_FILES}


def _copy(file: Path, to: Path, version: ModelVersion) -> None:
    if not file.is_file() or file.is_symlink():
        raise InputError(
            f"{version.model} version {version.version} has no {to.name}",
            valid=f"a version registered by Millrace: model.onnx, {', '.join(EXTRA_FILES)}",
            hint="point the alias at another version",
        )
    shutil.copyfile(file, to)
