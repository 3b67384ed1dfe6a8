"""`config.pbtxt` and `model.json` of a language model for Triton's vLLM backend.

Its inputs, outputs and files: https://github.com/triton-inference-server/vllm_backend.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.language_spec import GenerationSpec
from millrace.models.inference.language_engine import AUTO_FIT, NO_SHARE
from millrace.serving.triton.language.draft_files import DRAFT

BACKEND = "vllm"
GIB = 2**30

FLAGS = (
    *("exclude_input_in_output", "return_finish_reason", "return_cumulative_logprob"),
    *("return_logprobs", "return_num_input_tokens", "return_num_output_tokens"),
)
INPUTS: Mapping[str, tuple[int, bool]] = {
    "text_input": (pb.TYPE_STRING, False),
    "stream": (pb.TYPE_BOOL, True),
    "sampling_parameters": (pb.TYPE_STRING, True),
    **dict.fromkeys(FLAGS, (pb.TYPE_BOOL, True)),
}
"""Type, and whether it may be left out."""
OUTPUTS: Mapping[str, tuple[int, int]] = {
    "text_output": (pb.TYPE_STRING, -1),
    "finish_reason": (pb.TYPE_STRING, -1),
    "cumulative_logprob": (pb.TYPE_FP32, -1),
    "logprobs": (pb.TYPE_STRING, -1),
    "num_input_tokens": (pb.TYPE_UINT32, 1),
    "num_output_tokens": (pb.TYPE_UINT32, -1),
}
"""Type and length: -1 for one element of each answer."""


def engine_arguments(model: Path, generation: GenerationSpec) -> dict[str, Any]:
    """Return how vLLM is to serve a model: keyword arguments of its engine.

    Args:
        model: the folder of the form, absolute: vLLM asks a hub for what is no folder. The draft is
            in it.
        generation: how it is served.
    """
    of_one_gpu = generation.cache_size_gib * GIB // generation.tensor_parallel_size
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": "auto",
        "tensor_parallel_size": generation.tensor_parallel_size,
        "max_num_seqs": generation.max_num_seqs,
        "max_model_len": AUTO_FIT,
        "kv_cache_memory_bytes": of_one_gpu,
        "gpu_memory_utilization": NO_SHARE,
        "enable_prefix_caching": generation.enable_prefix_caching,
    }
    if generation.stream_interval is not None:
        arguments["stream_interval"] = generation.stream_interval
    if generation.draft is not None:
        arguments["speculative_config"] = {
            "method": "draft_model",
            "model": str(model / DRAFT),
            "num_speculative_tokens": generation.num_assistant_tokens,
        }
    return arguments


def model_json(model: Path, generation: GenerationSpec) -> str:
    """Return `model.json` of a version whose folder that is, for the server too."""
    return json.dumps(engine_arguments(model, generation), indent=1)


def vllm_config(
    name: str,
    *,
    version_policy: pb.ModelVersionPolicy,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a language model; how it is served is in each version's folder.

    Args:
        name: the model, which is also its folder.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        parameters: more parameters, such as `millrace.serving.triton.model_config.loaded_anew()`.
    """
    config = pb.ModelConfig(
        name=name,
        backend=BACKEND,
        version_policy=version_policy,
        input=[
            pb.ModelInput(name=key, data_type=kind, dims=[1], optional=optional)
            for key, (kind, optional) in INPUTS.items()
        ],
        output=[
            pb.ModelOutput(name=key, data_type=kind, dims=[size])
            for key, (kind, size) in OUTPUTS.items()
        ],
        # the engine takes the GPUs that it needs
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_MODEL)],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
    )
    for key, value in {"REPORT_CUSTOM_METRICS": "true", **(parameters or {})}.items():
        config.parameters[key].string_value = value
    return config
