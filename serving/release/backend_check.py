"""Whether a server has the backend that a version needs, asked before anything is staged."""

import json
from secrets import token_hex

from millrace.models.common.errors import WorkError
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language import vllm_config
from millrace.serving.triton.names import TRIAL
from millrace.serving.triton.version_folder import Artifact

ABSENT = "unable to find backend library"
"""What Triton says of a backend that it does not have."""


def require_backend(artifact: Artifact, client: TritonClient) -> None:
    """Raise if a server cannot serve a version for want of its backend.

    Only vLLM's is asked for: the others come with the server, or with any. Triton lists no
    backends, so it is told to load a model without files, which always fails: where the backend is,
    for want of the files.

    Raises:
        WorkError: it has no such backend.
        TransientError: the server cannot be reached.
    """
    if artifact.engine != vllm_config.BACKEND:
        return
    name = f"{vllm_config.BACKEND}{TRIAL}{token_hex(4)}"
    try:
        client.load_without_files(name, json.dumps({"backend": vllm_config.BACKEND}))
    except WorkError as error:
        if ABSENT not in str(error.seen):
            return
        raise WorkError(
            "this Triton has no vllm backend, which the version's form needs",
            seen=f"the server at {client.endpoint.grpc}",
            valid="NVIDIA's container for vLLM (tritonserver:…-vllm-python-py3), on a GPU",
            hint="name such a server in MILLRACE_TRITON, or export an openvino form",
        ) from error
