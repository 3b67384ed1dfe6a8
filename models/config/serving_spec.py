"""The parts `promotion` and `serving`: which version goes live, and how Triton serves it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from millrace.models.config import Spec
from millrace.models.config.language_spec import GenerationSpec


class RequireSpec(Spec):
    """What a version must have before it gets traffic, whoever set the alias."""

    signed: bool = Field(
        True,
        description="A signature by a key that this home trusts. false counts only in a file that "
        "this home's owner names: in MILLRACE_PIPELINES or to `millrace score`.",
    )
    certificate: bool = Field(True, description="A certificate that says it held its gates.")
    max_metric_drop: float | None = Field(
        0.05,
        ge=0,
        description="Largest relative drop of the metric against the version that is live, on the "
        "test split that the new one was certified on; null does not compare. Going back to a "
        "version that was live is not compared.",
    )
    approval: bool = Field(
        False,
        description="The tag millrace.approved_by, set to a name other than that of the user who "
        "ran the training.",
    )


class PromotionSpec(Spec):
    """Who moves the alias champion, and what a version needs to go live."""

    mode: Literal["auto", "manual"] = Field(
        "manual",
        description="auto: a version that passed its gates and is no worse than the champion on "
        "the same test split becomes champion. manual: a person does it in the MLflow UI.",
    )
    require: RequireSpec = Field(
        default_factory=RequireSpec, description="What a champion must have to go live."
    )


def _wrap_word(value: object) -> object:
    """Let `accelerator: tensorrt` stand for `accelerator: {name: tensorrt}`."""
    return {"name": value} if isinstance(value, str) else value


class AcceleratorSpec(Spec):
    """The accelerator of the onnxruntime backend on a GPU; the keys are the backend's."""

    name: Literal["tensorrt"] = Field(
        "tensorrt",
        description="Engines are built from the ONNX file where it is loaded, which takes time.",
    )
    precision_mode: Literal["FP32", "FP16", "BF16", "INT8"] = Field(
        "FP32",
        description="What TensorRT before 11 may compute in; INT8 wants a variant with QDQ, "
        "such as onnx-int8-symmetric. TensorRT 11 always computes in the types of the variant.",
    )
    max_workspace_size_bytes: int = Field(
        2**30, ge=2**20, description="Largest memory of the GPU that kernels may use for a while."
    )
    trt_timing_cache_path: str | None = Field(
        None,
        min_length=1,
        description="Folder, on the machine of Triton, that keeps the times of kernels, so that "
        "the next engine is built sooner; null keeps nothing.",
    )


class ServingSpec(Spec):
    """How Triton serves the model; the keys are Triton's."""

    max_batch_size: int = Field(64, ge=1, description="Largest batch of one execution.")
    max_queue_delay_microseconds: int = Field(
        0, ge=0, description="How long dynamic batching may wait for a fuller batch."
    )
    instance_count: int = Field(1, ge=1, description="Instances in the instance_group.")
    intra_op_thread_count: int = Field(1, ge=1, description="Threads of each instance.")
    device: Literal["cpu", "gpu"] = Field(
        "cpu", description="Where the instances run: KIND_CPU or KIND_GPU."
    )
    accelerator: Annotated[AcceleratorSpec, BeforeValidator(_wrap_word)] | None = Field(
        None, description="tensorrt on a GPU, or null for CUDA alone."
    )
    latency_slo_ms: float | None = Field(
        None,
        gt=0,
        description="p99 of one row, in milliseconds, that a version must hold before it takes "
        "traffic; measured but not judged when left out.",
    )
    generation: GenerationSpec = Field(
        default_factory=GenerationSpec, description="How a causal_lm generates."
    )
    keep_versions: int = Field(
        3, ge=2, description="Versions that stay in the model repository of Triton."
    )
    quorum: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        1, description="Replicas that must answer before any of them switches: a count, or all."
    )

    @model_validator(mode="after")
    def _require_gpu(self) -> "ServingSpec":
        if self.accelerator is not None and self.device != "gpu":
            raise ValueError(f"serving.accelerator {self.accelerator.name} needs device: gpu")
        return self
