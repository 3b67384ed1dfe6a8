"""The parts `promotion` and `serving`: which version goes live, and how Triton serves it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from millrace.models.config import Spec
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.models.config.slo_spec import SloSpec


def _wrap_value(value: object) -> object:
    """Accept `live_metric: 0.9` as short for `live_metric: {value: 0.9}`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"value": value} if is_number else value


class LiveMetricSpec(Spec):
    """What a version's own predictions must reach on labels that came back."""

    value: float = Field(
        ge=0,
        description="Least accuracy, or for numbers the largest rmse, of its own predictions, as "
        "`millrace feedback` found it.",
    )
    labels: int = Field(200, ge=1, description="Least number of these predictions with a label.")


class RequireSpec(Spec):
    """What a version needs before it gets traffic, whoever set the alias."""

    signed: bool = Field(
        True,
        description="Require a signature by a key that this home folder trusts. false has an "
        "effect only in a pipeline file that the owner of the home folder lists in "
        "MILLRACE_PIPELINES or gives to `millrace score`.",
    )
    certificate: bool = Field(
        True, description="Require a certificate that the version passed its gates."
    )
    max_metric_drop: float | None = Field(
        0.05,
        ge=0,
        description="Largest relative drop of the metric against the live version, on the test "
        "split that the new version was certified on; null: do not compare. A rollback to a "
        "version that was live is not compared.",
    )
    approval: bool = Field(
        False,
        description="Require the tag millrace.approved_by, set to a name other than that of the "
        "user who ran the training.",
    )
    live_metric: Annotated[LiveMetricSpec | None, BeforeValidator(_wrap_value)] = Field(
        None,
        description="Require that the version's own predictions were right often enough on labels "
        "that came back, as `millrace feedback` found. A number alone is its `value`. null: not "
        "required.",
    )
    slo: bool = Field(
        False,
        description="Require a serving profile that proves serving.slo, made by `millrace profile` "
        "on this kind of machine with the engine that serves here.",
    )


class PromotionSpec(Spec):
    """Who moves the alias champion, and what a version needs to go live."""

    mode: Literal["auto", "manual"] = Field(
        "manual",
        description="auto: a version that passed its gates and is no worse than the champion on "
        "the same test split becomes champion. manual: a person moves the alias in the MLflow UI.",
    )
    require: RequireSpec = Field(
        default_factory=RequireSpec, description="What a champion needs to go live."
    )


def _wrap_word(value: object) -> object:
    """Accept `accelerator: tensorrt` as short for `accelerator: {name: tensorrt}`."""
    return {"name": value} if isinstance(value, str) else value


class AcceleratorSpec(Spec):
    """The accelerator of the onnxruntime backend on a GPU; the keys are the backend's."""

    name: Literal["tensorrt"] = Field(
        "tensorrt",
        description="TensorRT engines are built when a server loads the ONNX file, which takes "
        "time.",
    )
    precision_mode: Literal["FP32", "FP16", "BF16", "INT8"] = Field(
        "FP32",
        description="Precision that TensorRT before version 11 may compute in; INT8 needs a "
        "variant with QDQ nodes, such as onnx-int8-symmetric. TensorRT 11 always computes in the "
        "types of the variant.",
    )
    max_workspace_size_bytes: int = Field(
        2**30, ge=2**20, description="Largest temporary GPU memory of kernels, in bytes."
    )
    trt_timing_cache_path: str | None = Field(
        None,
        min_length=1,
        description="Folder on Triton's machine for the measured times of kernels, so that the "
        "next engine is built faster; null: store none.",
    )


class RequestLogSpec(Spec):
    """What is kept of the requests by the names of the columns, and of their answers."""

    sample: float = Field(0.1, gt=0, le=1, description="Share of the requests that is kept.")
    keep_days: int = Field(30, ge=1, description="Days after which a request is removed.")
    max_gib: float = Field(
        1.0, gt=0, description="Most disk for all of them; the oldest days are removed first."
    )
    masked: tuple[str, ...] = Field(
        (), description="Columns whose values are not kept; a key is kept as `_key`."
    )


class ServingSpec(Spec):
    """How Triton serves the model; the keys are Triton's."""

    max_batch_size: int = Field(
        64, ge=1, description="Most rows of a request, and of one execution."
    )
    preferred_batch_size: int | None = Field(
        None,
        ge=1,
        description="Rows of a batch that is computed at once when so many wait; null: "
        "max_batch_size.",
    )
    max_queue_delay_microseconds: int = Field(
        0, ge=0, description="Longest wait of dynamic batching for a fuller batch."
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
        description="Largest p99 latency of one row, in milliseconds, with which a version gets "
        "traffic; when left out, the latency is measured but not judged.",
    )
    slo: SloSpec | None = Field(
        None,
        description="The load and the latency of a serving profile; see `millrace profile`. null: "
        "no goal.",
    )
    generation: GenerationSpec = Field(
        default_factory=GenerationSpec, description="How a causal_lm generates."
    )
    keep_versions: int = Field(
        3, ge=2, description="Versions that stay in the model repository of Triton."
    )
    request_log: RequestLogSpec | None = Field(
        None, description="Keep a sample of the requests by column and of the answers; null: none."
    )
    quorum: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        1,
        description="Replicas that must answer before any of them switches to a new version: a "
        "count, or all.",
    )
    replicas: ReplicasSpec = Field(
        default_factory=ReplicasSpec,
        description="How many Tritons `millrace up` runs. They serve all models of the home, so "
        "the largest `min` and the largest `max` of the pipeline files that it schedules count.",
    )

    @property
    def on_gpu(self) -> bool:
        """Whether the instances run on a GPU."""
        return self.device == "gpu"

    @model_validator(mode="after")
    def _require_gpu(self) -> "ServingSpec":
        if self.accelerator is not None and self.device != "gpu":
            raise ValueError(f"serving.accelerator {self.accelerator.name} needs device: gpu")
        return self

    @model_validator(mode="after")
    def _require_room(self) -> "ServingSpec":
        if (
            self.preferred_batch_size is not None
            and self.preferred_batch_size > self.max_batch_size
        ):
            raise ValueError(
                f"serving.preferred_batch_size {self.preferred_batch_size} is above "
                f"serving.max_batch_size, {self.max_batch_size}"
            )
        return self
