"""Where the MLflow of `up` keeps artifacts: in one folder, whatever an experiment says.

Whoever may make an experiment says where its artifacts lie. MLflow reads and writes there as the
user of its server, follows links, and opens object stores with that user's keys: an experiment at a
folder with a link in it gives away, and changes, every file of that user.
"""

from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.store.artifact import artifact_repository_registry as registry
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

LOCAL = ("", "file")
ELSEWHERE_DECIDED = ("runs", "models")
"""Addresses that MLflow turns into others, which it opens in the same way."""


def keep_artifacts_in(root: Path) -> None:
    """Let this process open no artifacts but those below a folder."""
    own = root.resolve()

    def opened(artifact_uri: str, *args: Any, **options: Any) -> ArtifactRepository:
        return _OwnArtifacts(own, artifact_uri, *args, **options)

    known = registry.get_registered_artifact_repositories()
    for scheme in [*known]:
        if scheme not in ELSEWHERE_DECIDED:
            registry._artifact_repository_registry.register(  # type: ignore[no-untyped-call]
                scheme, opened if scheme in LOCAL else _refused
            )


class _OwnArtifacts(LocalArtifactRepository):
    """Artifacts in a folder below the root, by its real path: links on the way are gone."""

    def __init__(self, root: Path, artifact_uri: str, *args: Any, **options: Any) -> None:
        super().__init__(artifact_uri, *args, **options)
        real = Path(self._artifact_dir).resolve()
        if not real.is_relative_to(root):
            raise _error()
        self._artifact_dir = str(real)


def _refused(*_: Any, **__: Any) -> ArtifactRepository:
    raise _error()


def _error() -> MlflowException:
    return MlflowException(
        "The artifacts of this server are in its own folder; it opens none elsewhere.",
        error_code=PERMISSION_DENIED,
    )
