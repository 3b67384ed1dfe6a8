"""`config.pbtxt` of a causal language model."""

from collections.abc import Mapping

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton.language.draft_files import DRAFT

BACKEND = "openvino_genai"

INPUTS: Mapping[str, int] = {
    "text_input": pb.TYPE_STRING,
    "messages": pb.TYPE_STRING,
    "stream": pb.TYPE_BOOL,
    "sampling_parameters": pb.TYPE_STRING,
    "exclude_input_in_output": pb.TYPE_BOOL,
    "return_finish_reason": pb.TYPE_BOOL,
    "return_num_input_tokens": pb.TYPE_BOOL,
    "return_num_output_tokens": pb.TYPE_BOOL,
}
"""All may be left out; a request has one of the first two."""
OUTPUTS: Mapping[str, tuple[int, int]] = {
    "text_output": (pb.TYPE_STRING, -1),
    "finish_reason": (pb.TYPE_STRING, -1),
    "num_input_tokens": (pb.TYPE_UINT32, 1),
    "num_output_tokens": (pb.TYPE_UINT32, -1),
}
"""Type and length: -1 for one element of each answer."""


def require_one_device(generation: GenerationSpec) -> None:
    """Raise InputError if the model is to be shared between GPUs: this backend runs on a CPU."""
    if generation.tensor_parallel_size != 1:
        raise InputError(
            "serving.generation.tensor_parallel_size is for GPUs",
            seen=generation.tensor_parallel_size,
            valid=f"1 with the backend {BACKEND}",
            hint="serve a vllm candidate to share a model between GPUs",
        )


def language_config(
    name: str,
    generation: GenerationSpec,
    *,
    version_policy: pb.ModelVersionPolicy,
    num_threads: int = 0,
    max_model_len: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a language model.

    One instance only: more would share the cores, and the engine batches what is in flight. In what
    numbers it computes is a matter of the version: `engine.json` beside its files says so.

    Args:
        name: the model, which is also its folder.
        generation: how it is served.
        version_policy: `millrace.serving.triton.model_config.latest(n)` or `specific(versions)`.
        num_threads: of the engine; 0 for all cores.
        max_model_len: tokens of prompt and answer together; 0 for what the model has.
        parameters: more parameters, such as `millrace.serving.triton.model_config.loaded_anew()`.

    Raises:
        InputError: it is to be shared between GPUs.
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
    config = pb.ModelConfig(
        name=name,
        backend=BACKEND,
        version_policy=version_policy,
        input=[
            pb.ModelInput(name=key, data_type=kind, dims=[1], optional=True)
            for key, kind in INPUTS.items()
        ],
        output=[
            pb.ModelOutput(name=key, data_type=kind, dims=[size])
            for key, (kind, size) in OUTPUTS.items()
        ],
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
    )
    for key, value in values.items():
        config.parameters[key].string_value = value
    return config
