"""How Triton is told of a version, whatever kind of model it is."""

from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import MODEL_JSON
from millrace.serving.triton.language.draft_files import require_fit, tokens_of
from millrace.serving.triton.language.language_config import (
    model_json,
    openvino_config,
    require_one_device,
    vllm_config,
)
from millrace.serving.triton.model_config import model_config
from millrace.serving.triton.onnx_graph import signature_of
from millrace.serving.triton.version_folder import Artifact


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
    if artifact.engine == "vllm":
        return vllm_config(name, version_policy=version_policy, parameters=parameters)
    if artifact.kind == "language":
        return openvino_config(
            name,
            artifact.serving.generation,
            version_policy=version_policy,
            parameters=parameters,
        )
    return model_config(
        name,
        signature_of(artifact),
        artifact.serving,
        version_policy=version_policy,
        labels=artifact.labels,
        parameters=parameters,
    )


def require_servable(artifact: Artifact) -> None:
    """Raise InputError if a version is nothing that Triton can serve."""
    if artifact.kind != "language":
        signature_of(artifact)
        return
    if artifact.engine == "openvino_genai":
        require_one_device(artifact.serving.generation)
    _require_draft(artifact)


def files_of_the_backend(artifact: Artifact, place: Path) -> dict[str, str]:
    """Return what a version's backend reads beside the model's files, by name.

    Args:
        artifact: the version.
        place: its folder, where it is published and as the server sees it.
    """
    if artifact.engine != "vllm":
        return {}
    return {MODEL_JSON: model_json(place, artifact.serving.generation)}


def one_config_for(one: Artifact, other: Artifact) -> bool:
    """Return whether one `config.pbtxt` can describe both versions to their clients."""
    if "language" in (one.kind, other.kind):
        return one.engine == other.engine
    return signature_of(one).served == signature_of(other).served


def _require_draft(artifact: Artifact) -> None:
    """Raise InputError unless there is a draft where one is asked for, and it fits."""
    asked, draft = artifact.serving.generation.draft, artifact.draft
    if (asked is None) != (draft is None):
        raise InputError(
            "what is to be staged is not what serving.generation.draft says",
            seen=draft or "no draft",
            valid=asked or "no draft",
            hint="register the model again",
        )
    if draft is not None:
        require_fit(tokens_of(artifact.files, "the model"), draft)
