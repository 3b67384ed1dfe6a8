"""`config.pbtxt` of a language model, for Millrace's backend `openvino_genai` and Triton's `vllm`.

Inputs, outputs and files of `vllm`: https://github.com/triton-inference-server/vllm_backend.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.inference.language_engine import AUTO_FIT, NO_SHARE
from millrace.serving.triton.version_folder import DRAFT

OPENVINO_BACKEND, VLLM_BACKEND = "openvino_genai", "vllm"
GIB = 2**30

OPENVINO_INPUTS = {
    "text_input": pb.TYPE_STRING,
    "messages": pb.TYPE_STRING,
    "stream": pb.TYPE_BOOL,
    "sampling_parameters": pb.TYPE_STRING,
    "exclude_input_in_output": pb.TYPE_BOOL,
    "return_finish_reason": pb.TYPE_BOOL,
    "return_num_input_tokens": pb.TYPE_BOOL,
    "return_num_output_tokens": pb.TYPE_BOOL,
}
"""Inputs of `openvino_genai`; all are optional, but a request needs `text_input` or `messages`."""
OPENVINO_OUTPUTS: Mapping[str, tuple[int, int]] = {
    "text_output": (pb.TYPE_STRING, -1),
    "finish_reason": (pb.TYPE_STRING, -1),
    "num_input_tokens": (pb.TYPE_UINT32, 1),
    "num_output_tokens": (pb.TYPE_UINT32, -1),
}
"""Outputs of `openvino_genai`: type and length; -1: one element for each answer."""
VLLM_INPUTS = {
    "text_input": pb.TYPE_STRING,
    "stream": pb.TYPE_BOOL,
    "sampling_parameters": pb.TYPE_STRING,
    "exclude_input_in_output": pb.TYPE_BOOL,
    "return_finish_reason": pb.TYPE_BOOL,
    "return_cumulative_logprob": pb.TYPE_BOOL,
    "return_logprobs": pb.TYPE_BOOL,
    "return_num_input_tokens": pb.TYPE_BOOL,
    "return_num_output_tokens": pb.TYPE_BOOL,
}
"""Inputs of `vllm`; all but `text_input` are optional."""
VLLM_OUTPUTS: Mapping[str, tuple[int, int]] = {
    "text_output": (pb.TYPE_STRING, -1),
    "finish_reason": (pb.TYPE_STRING, -1),
    "cumulative_logprob": (pb.TYPE_FP32, -1),
    "logprobs": (pb.TYPE_STRING, -1),
    "num_input_tokens": (pb.TYPE_UINT32, 1),
    "num_output_tokens": (pb.TYPE_UINT32, -1),
}
"""Outputs of `vllm`: type and length; -1: one element for each answer."""


def require_one_device(generation: GenerationSpec) -> None:
    """Raise InputError if the settings split a model among GPUs; openvino_genai runs on a CPU."""
    if generation.tensor_parallel_size != 1:
        raise InputError(
            "serving.generation.tensor_parallel_size above 1 needs GPUs",
            seen=generation.tensor_parallel_size,
            valid=f"1 with the backend {OPENVINO_BACKEND}",
            hint="set it to 1, or serve a vllm variant, which can split a model among GPUs",
        )


def openvino_config(
    name: str,
    generation: GenerationSpec,
    *,
    version_policy: pb.ModelVersionPolicy,
    num_threads: int = 0,
    max_model_len: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a language model for `openvino_genai`.

    There is only one instance, because several would compete for the CPU cores, and the engine
    batches the requests in flight. The engine's precision is not set here: each version has it in
    `engine.json`.

    Args:
        name: the model's name, which is also its folder.
        generation: the settings of generation.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        num_threads: threads of the engine; 0: all cores.
        max_model_len: the largest number of tokens of prompt and answer together; 0: the model's
            context.
        parameters: more parameters, such as `millrace.serving.triton.model_config.loaded_anew()`.

    Raises:
        InputError: the settings split the model among GPUs.
    """
    require_one_device(generation)
    values = {
        "max_num_seqs": str(generation.max_num_seqs),
        "cache_size_gib": str(generation.cache_size_gib),
        "max_queue_size": str(generation.max_queue_size),
        "enable_prefix_caching": str(generation.enable_prefix_caching).lower(),
        "num_threads": str(num_threads),
        "max_model_len": str(max_model_len),
        **(parameters or {}),
    }
    if generation.stream_interval is not None:
        values["stream_interval"] = str(generation.stream_interval)
    if generation.draft is not None:
        values["draft_model"] = DRAFT
        values["num_assistant_tokens"] = str(generation.num_assistant_tokens)
    config = _streaming_config(name, version_policy, OPENVINO_INPUTS, OPENVINO_OUTPUTS, values)
    config.backend = OPENVINO_BACKEND
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    return config


def vllm_config(
    name: str,
    *,
    version_policy: pb.ModelVersionPolicy,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a language model for vLLM; `model_json` has further settings.

    Args:
        name: the model's name, which is also its folder.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        parameters: more parameters, such as `millrace.serving.triton.model_config.loaded_anew()`.
    """
    values = {"REPORT_CUSTOM_METRICS": "true", **(parameters or {})}
    config = _streaming_config(name, version_policy, VLLM_INPUTS, VLLM_OUTPUTS, values)
    config.backend = VLLM_BACKEND
    config.input[0].optional = False
    # with KIND_MODEL the engine chooses its GPUs itself
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_MODEL)
    return config


def _streaming_config(
    name: str,
    version_policy: pb.ModelVersionPolicy,
    inputs: Mapping[str, int],
    outputs: Mapping[str, tuple[int, int]],
    parameters: Mapping[str, str],
) -> pb.ModelConfig:
    config = pb.ModelConfig(
        name=name,
        version_policy=version_policy,
        input=[
            pb.ModelInput(name=key, data_type=kind, dims=[1], optional=True)
            for key, kind in inputs.items()
        ],
        output=[
            pb.ModelOutput(name=key, data_type=kind, dims=[size])
            for key, (kind, size) in outputs.items()
        ],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
    )
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def engine_arguments(model: Path, generation: GenerationSpec) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's engine for a model.

    Args:
        model: the absolute path of the model's folder, which also has the draft. vLLM would look
            up any other name on the Hugging Face hub.
        generation: the settings of generation.
    """
    cache_of_one_gpu = generation.cache_size_gib * GIB // generation.tensor_parallel_size
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": "auto",
        "tensor_parallel_size": generation.tensor_parallel_size,
        "max_num_seqs": generation.max_num_seqs,
        "max_model_len": AUTO_FIT,
        "kv_cache_memory_bytes": cache_of_one_gpu,
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
    """Return the text of a version's `model.json`, which vLLM's backend reads.

    Args:
        model: the version's folder, as the server sees it.
        generation: the settings of generation.
    """
    return json.dumps(engine_arguments(model, generation), indent=1)
