"""Triton's configuration of a version of any kind of model."""

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Protocol

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.model_kind import kind_named, load_object
from millrace.serving.triton.model_config import Signature
from millrace.serving.triton.version_folder import Artifact

PROFILE = "serving_profile"
"""Parameter of a configuration: digest of the serving profile whose settings it has."""


class TritonKind(Protocol):
    """How Triton serves one kind of model: its configuration, checks and files."""

    def config(
        self,
        name: str,
        artifact: Artifact,
        *,
        version_policy: pb.ModelVersionPolicy,
        parameters: Mapping[str, str] | None = None,
    ) -> pb.ModelConfig:
        """Return the configuration of a model that serves a version; see `config_of`."""
        ...

    def check(self, artifact: Artifact) -> None:
        """Raise InputError if Triton cannot serve the version."""
        ...

    def backend_files(self, artifact: Artifact, folder: Path) -> Mapping[str, str]:
        """Return the contents of the additional files that the backend reads, by file name.

        Args:
            artifact: the version.
            folder: the folder of the published version, as the server sees it.
        """
        ...

    def reserved_names(self, artifact: Artifact) -> Collection[str]:
        """Return the names of `backend_files`, which are not allowed for files of the model."""
        ...

    def special_backend(self, artifact: Artifact) -> str | None:
        """Return the backend that a Triton server may lack; None if every Triton has it."""
        ...

    def interface(self, artifact: Artifact) -> Hashable:
        """Return the properties that one `config.pbtxt` sets for all loaded versions of a model.

        Versions can be loaded together if these properties are equal.
        """
        ...

    def signature(self, artifact: Artifact) -> Signature | None:
        """Return the inputs and outputs of a version; None if the version answers in streams."""
        ...


def triton_kind(artifact: Artifact) -> TritonKind:
    """Return how Triton serves the version's kind of model."""
    found: TritonKind = load_object(kind_named(artifact.kind).triton)()
    return found


def config_of(
    name: str,
    artifact: Artifact,
    *,
    version_policy: pb.ModelVersionPolicy,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a model that serves a version.

    Args:
        name: the model's name, which is also its folder.
        artifact: the version.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        parameters: further parameters of the model's backend.

    Raises:
        InputError: Triton cannot serve the version.
    """
    kind = triton_kind(artifact)
    if artifact.profile:
        parameters = {PROFILE: artifact.profile, **(parameters or {})}
    return kind.config(name, artifact, version_policy=version_policy, parameters=parameters)


def one_config_for(one: Artifact, other: Artifact) -> bool:
    """Return whether one `config.pbtxt` can describe both versions to their clients."""
    return triton_kind(one).interface(one) == triton_kind(other).interface(other)
