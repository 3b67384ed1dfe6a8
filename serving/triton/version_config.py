"""The configuration of a version for Triton, whatever kind of model it is."""

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Protocol

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.model_kind import kind_named, load_object
from millrace.serving.triton.model_config import Signature
from millrace.serving.triton.version_folder import Artifact


class TritonKind(Protocol):
    """How Triton serves a kind of model."""

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
        """Raise InputError if a version is nothing that Triton can serve."""
        ...

    def backend_files(self, artifact: Artifact, folder: Path) -> Mapping[str, str]:
        """Return what the backend reads beside the model's files, by name.

        Args:
            artifact: the version.
            folder: where it is published, as the server sees it.
        """
        ...

    def reserved_names(self, artifact: Artifact) -> Collection[str]:
        """Return the names of `backend_files`, which no file of the model may have."""
        ...

    def special_backend(self, artifact: Artifact) -> str | None:
        """Return the backend that not every Triton has; None where every one serves the version."""
        ...

    def interface(self, artifact: Artifact) -> Hashable:
        """Return what one `config.pbtxt` must agree on: equal versions can be loaded together."""
        ...

    def signature(self, artifact: Artifact) -> Signature | None:
        """Return inputs and outputs of a version; None if it answers in streams."""
        ...


def triton_kind(artifact: Artifact) -> TritonKind:
    """Return what Triton has to know of a version's kind."""
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
        name: the model, which is also its folder.
        artifact: the version.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        parameters: more parameters of its backend.

    Raises:
        InputError: it is nothing that Triton can serve.
    """
    kind = triton_kind(artifact)
    return kind.config(name, artifact, version_policy=version_policy, parameters=parameters)


def one_config_for(one: Artifact, other: Artifact) -> bool:
    """Return whether one `config.pbtxt` can describe both versions to their clients."""
    return triton_kind(one).interface(one) == triton_kind(other).interface(other)
