"""An ONNX graph on Triton: the ONNX Runtime backends, and what a client sees of it."""

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.digest import ONNX_FILE
from millrace.models.common.errors import InputError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.graph.onnx_signature import of_text, read_signature
from millrace.serving.triton.model_config import Signature, model_config
from millrace.serving.triton.version_folder import Artifact


class TritonGraph:
    """How Triton serves a graph; a `TritonKind`."""

    def config(
        self,
        name: str,
        artifact: Artifact,
        *,
        version_policy: pb.ModelVersionPolicy,
        parameters: Mapping[str, str] | None = None,
    ) -> pb.ModelConfig:
        """Return the configuration: tensors as the graph declares them, dynamic batching."""
        return model_config(
            name,
            signature_of(artifact),
            artifact.serving,
            version_policy=version_policy,
            labels=artifact.labels,
            parameters=parameters,
        )

    def check(self, artifact: Artifact) -> None:
        """Raise InputError if the file is no graph that Triton can serve."""
        signature_of(artifact)

    def backend_files(self, artifact: Artifact, folder: Path) -> Mapping[str, str]:
        """Return nothing: the backend reads the graph alone."""
        return {}

    def reserved_names(self, artifact: Artifact) -> Collection[str]:
        """Return none."""
        return ()

    def special_backend(self, artifact: Artifact) -> None:
        """Return None: the ONNX Runtime backends are Triton's own, or come with Millrace."""
        return

    def interface(self, artifact: Artifact) -> Hashable:
        """Return backend, inputs and outputs."""
        return signature_of(artifact).served

    def signature(self, artifact: Artifact) -> Signature:
        """Return inputs and outputs."""
        return signature_of(artifact)


def signature_of(artifact: Artifact) -> Signature:
    """Return inputs, outputs and backend of a version.

    Raises:
        InputError: its files are nothing that Triton can serve, or it is no graph.
    """
    if ONNX_FILE not in artifact.files:
        raise InputError(f"a {artifact.kind} model has no tensors of its own", valid="a graph")
    found = read_signature(artifact.files[ONNX_FILE])
    return found if artifact.tokenizer is None else of_text(found)


def artifact_of_graph(
    onnx: Path,
    sha256: str,
    labels: tuple[str, ...] = (),
    serving: ServingSpec | None = None,
    tokenizer: str | None = None,
    rules: str | None = None,
    kind: str = "graph",
) -> Artifact:
    """Return the artifact that is one ONNX file.

    Args:
        onnx: the file.
        sha256: its digest.
        labels: class names, in the order of the output.
        serving: how Triton serves it.
        tokenizer: contents of `tokenizer.json`, for a graph that reads text.
        rules: contents of `features.json`, for a graph that reads columns.
        kind: of the model.
    """
    serving = serving or ServingSpec()
    return Artifact({ONNX_FILE: onnx}, sha256, kind, labels, serving, tokenizer, rules=rules)
