"""The checkpoint (safetensors and tokenizer) in the MLflow run of a registered language model.

The files of a registered version are an exported variant, which cannot be trained further. The
digest of the checkpoint is a tag of the version, written at registration and checked when the
checkpoint is downloaded.
"""

import shutil
import tempfile
from pathlib import Path

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError, TransientError
from millrace.models.registry.version_files import ModelVersion

ARTIFACT = "checkpoint"
"""Folder of the checkpoint among the artifacts of a run."""
CHECKPOINT_TAG = "millrace.checkpoint_digest"


def checkpoint_digest(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of all files of a checkpoint."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return digest_of_all({file.relative_to(folder).as_posix(): file for file in files})


def fetched_checkpoint(version: ModelVersion, digest: str, tracking_uri: str, cache: Path) -> Path:
    """Return the local folder of a version's checkpoint; download it unless it is in the cache.

    Args:
        version: the registered version.
        digest: expected digest of the checkpoint.
        tracking_uri: address of the MLflow server with the version.
        cache: folder for downloaded checkpoints.

    Raises:
        InputError: the run has no checkpoint, or the checkpoint has another digest.
        TransientError: the artifact store does not answer, or the cache cannot be written.
    """
    folder = cache / version.model / f"{version.version}-{ARTIFACT}-{digest[:16]}"
    if folder.is_dir() and checkpoint_digest(folder) == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # the cached copy is damaged
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
        got = _downloaded(version, tracking_uri, Path(staging))
        found = checkpoint_digest(got)
        if found != digest:
            raise InputError(
                f"the checkpoint of {version.model} version {version.version} is not the one that "
                "was registered",
                seen=f"sha256 {found}",
                valid=f"sha256 {digest}",
                hint="train the model again, or name another version",
            )
        try:
            got.rename(folder)
        except OSError as error:  # another run was first, or the damaged copy is still there
            if not folder.is_dir() or checkpoint_digest(folder) != digest:
                raise TransientError(
                    f"the downloaded checkpoint cannot be written to {folder}",
                    seen=error,
                    hint="delete that folder, and try again",
                ) from error
    return folder


def _downloaded(version: ModelVersion, tracking_uri: str, folder: Path) -> Path:
    from mlflow.artifacts import download_artifacts, list_artifacts
    from mlflow.exceptions import MlflowException

    try:
        # The artifacts are listed first, because an MLflow server that proxies artifacts reports a
        # missing artifact as a failure of the server.
        kept = list_artifacts(
            run_id=version.run_id, artifact_path=ARTIFACT, tracking_uri=tracking_uri
        )
        if not kept:
            raise FileNotFoundError(f"the run has no artifact {ARTIFACT}")
        got = download_artifacts(
            run_id=version.run_id,
            artifact_path=ARTIFACT,
            dst_path=str(folder),
            tracking_uri=tracking_uri,
        )
    except (MlflowException, OSError) as error:
        gone = isinstance(error, FileNotFoundError) or (
            getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST"
        )
        raise (InputError if gone else TransientError)(
            f"the checkpoint of {version.model} version {version.version} cannot be fetched",
            seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint=f"check the artifacts of the MLflow run {version.run_id}",
        ) from error
    return Path(got)
