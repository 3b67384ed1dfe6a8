"""The parts of a pipeline file that only language models have."""

from typing import Literal

from pydantic import Field

from millrace.models.config import Spec
from millrace.models.config.model_uri import VersionName

DEFAULT_VARIANTS: tuple[str, ...] = ("openvino-fp32", "openvino-int8", "openvino-int4")


class LoraSpec(Spec):
    """Low-rank adapters in place of all weights (Hu et al. 2022); the keys are peft's."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    lora_alpha: float = Field(32.0, gt=0, description="Their scale is lora_alpha ÷ r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before them.")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        "all-linear",
        description="Names of the layers that get adapters; all-linear is all but the head.",
    )


class GenerationSpec(Spec):
    """How a language model is served; the keys are vLLM's where it has them."""

    max_num_seqs: int = Field(32, ge=1, description="Sequences that are generated at a time.")
    cache_size_gib: int = Field(1, ge=1, description="Memory of keys and values, in GiB.")
    stream_interval: int | None = Field(
        None,
        ge=1,
        description="Tokens between two pieces of a stream, after the first token. By default, "
        "with OpenVINO as many as come in 6 ms for each stream under way, at most 0.25 s; with "
        "vLLM one.",
    )
    max_queue_size: int = Field(
        128, ge=1, description="Requests that may wait; one more is refused at once."
    )
    enable_prefix_caching: bool = Field(
        True,
        description="Whether prompts that begin alike share their keys and values; with a draft "
        "they do not, as the engine cannot have both.",
    )
    draft: VersionName | None = Field(
        None,
        description="A registered version that drafts tokens for this one to check, of the same "
        "tokenizer: NAME for its champion, NAME@ALIAS or NAME/VERSION, as they are when the run "
        "begins. It helps single streams, and costs many at a time.",
    )
    num_assistant_tokens: int = Field(5, ge=1, description="Tokens that are drafted at a time.")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share the weights (vLLM).")
