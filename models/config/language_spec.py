"""The parts of a pipeline file that only language models have."""

from typing import Literal

from pydantic import Field

from millrace.models.config import Spec
from millrace.models.config.model_uri import VersionName

DEFAULT_VARIANTS: tuple[str, ...] = ("openvino-fp32", "openvino-int8", "openvino-int4")


class LoraSpec(Spec):
    """Low-rank adapters to train instead of all weights (Hu et al. 2022); the keys are peft's."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    lora_alpha: float = Field(32.0, gt=0, description="The adapters' scale is lora_alpha ÷ r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before the adapters.")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        "all-linear",
        description="Names of the layers that get adapters; all-linear: all linear layers but the "
        "head.",
    )


class GenerationSpec(Spec):
    """How a language model is served; keys that vLLM has too have vLLM's names."""

    max_num_seqs: int = Field(32, ge=1, description="Sequences generated at the same time.")
    cache_size_gib: int = Field(1, ge=1, description="Memory of the KV cache, in GiB.")
    stream_interval: int | None = Field(
        None,
        ge=1,
        description="Tokens in each chunk of a stream, after the first token. When left out, vLLM "
        "sends each token, and OpenVINO sends the new tokens every 6 ms times the number of "
        "running streams, at least every 0.25 s.",
    )
    max_queue_size: int = Field(
        128, ge=1, description="Requests that may wait; further ones are refused at once."
    )
    enable_prefix_caching: bool = Field(
        True,
        description="Whether prompts with the same beginning share the KV cache of that beginning. "
        "It has no effect with a draft, because the engine does not support both.",
    )
    draft: VersionName | None = Field(
        None,
        description="Speculative decoding: a registered version with the same tokenizer that "
        "drafts tokens, which this model checks. NAME for its champion, NAME@ALIAS or "
        "NAME/VERSION, resolved when the run begins. A draft makes a single stream faster, and "
        "many streams at a time slower.",
    )
    num_assistant_tokens: int = Field(
        5, ge=1, description="Tokens that the draft proposes at a time."
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs over which vLLM splits the weights."
    )
