"""How Triton serves a language model: with the backend for OpenVINO GenAI or for vLLM."""

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import MODEL_JSON, engine_of
from millrace.serving.triton.language.draft_files import require_fit, tokens_of
from millrace.serving.triton.language.language_config import (
    VLLM_BACKEND,
    model_json,
    openvino_config,
    require_one_device,
    vllm_config,
)
from millrace.serving.triton.version_folder import Artifact


class TritonLanguage:
    """How Triton serves a language model; a `TritonKind`."""

    def config(
        self,
        name: str,
        artifact: Artifact,
        *,
        version_policy: pb.ModelVersionPolicy,
        parameters: Mapping[str, str] | None = None,
    ) -> pb.ModelConfig:
        """Return the configuration for the version's engine."""
        if engine_of(artifact.files) == "vllm":
            return vllm_config(name, version_policy=version_policy, parameters=parameters)
        return openvino_config(
            name,
            artifact.serving.generation,
            version_policy=version_policy,
            parameters=parameters,
        )

    def check(self, artifact: Artifact) -> None:
        """Raise InputError if an OpenVINO model is split among GPUs, or the draft is wrong."""
        if engine_of(artifact.files) == "openvino_genai":
            require_one_device(artifact.serving.generation)
        _require_draft(artifact)

    def backend_files(self, artifact: Artifact, folder: Path) -> Mapping[str, str]:
        """Return the additional file for vLLM's backend; the OpenVINO backend needs none."""
        if engine_of(artifact.files) != "vllm":
            return {}
        return {MODEL_JSON: model_json(folder, artifact.serving.generation)}

    def reserved_names(self, artifact: Artifact) -> Collection[str]:
        """Return the name of the additional file for vLLM's backend; none for OpenVINO."""
        return (MODEL_JSON,) if engine_of(artifact.files) == "vllm" else ()

    def special_backend(self, artifact: Artifact) -> str | None:
        """Return vLLM's backend if needed; None for OpenVINO, whose backend comes with Millrace."""
        return VLLM_BACKEND if engine_of(artifact.files) == "vllm" else None

    def interface(self, artifact: Artifact) -> Hashable:
        """Return the engine, because inputs and outputs depend only on the engine."""
        return engine_of(artifact.files)

    def signature(self, artifact: Artifact) -> None:
        """Return None, because language models answer in streams."""
        return


def _require_draft(artifact: Artifact) -> None:
    """Raise InputError if a draft is missing, is not configured, or does not fit the model."""
    wanted, draft = artifact.serving.generation.draft, artifact.draft
    if (wanted is None) != (draft is None):
        raise InputError(
            "the version's draft model is not the one that serving.generation.draft names",
            seen=draft or "no draft model",
            valid=wanted or "no draft model",
            hint="register the model again",
        )
    if draft is not None:
        require_fit(tokens_of(artifact.files, "the model"), draft)
