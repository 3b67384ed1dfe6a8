"""The pipeline file: one model from its data to its serving, as frozen pydantic models.

Every key is documented by its `description`, which is also what `millrace schema` gives to an
editor. Unknown keys are refused; `models.pipeline_file` turns pydantic's errors into ours.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

ColumnType = Literal["float", "int", "bool", "string", "category", "vector"]
Split = Literal["train", "validation", "test"]


class Spec(BaseModel):
    """Base of every part of a pipeline file: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnSpec(Spec):
    """What a column must hold. A row that does not is put into quarantine with the reason."""

    type: ColumnType | None = Field(
        None,
        description="float, int, bool, string, category (string or integer codes with a known set "
        "of values) or vector (a list of floats of one length). Inferred when left out.",
    )
    min: float | None = Field(None, description="Smallest value allowed.")
    max: float | None = Field(None, description="Largest value allowed.")
    nullable: bool = Field(
        False, description="Accept nulls and NaN; a feature's are replaced by the train mean."
    )
    categories: tuple[str | int | bool, ...] | None = Field(
        None, description="The values allowed; taken from the data when left out."
    )


class SplitSpec(Spec):
    """Shares of the three splits. They must add up to 1."""

    train: float = Field(0.8, gt=0, lt=1, description="Share of rows to train on.")
    validation: float = Field(0.1, gt=0, lt=1, description="Share of rows to choose by.")
    test: float = Field(0.1, gt=0, lt=1, description="Share of rows that only the gates see.")

    @model_validator(mode="after")
    def _adds_up(self) -> "SplitSpec":
        if abs(self.train + self.validation + self.test - 1) > 1e-6:
            raise ValueError("train, validation and test must add up to 1")
        return self


def _one_as_list(value: object) -> object:
    """Let `key: id` stand for `key: [id]`."""
    return [value] if isinstance(value, str) else value


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_as_list, json_schema_input_type=tuple[str, ...] | str),
]
"""Names of columns; one alone may be written without the list."""


class DatasetSpec(Spec):
    """Where the rows come from, and what they must look like."""

    source: str = Field(
        description="A file, a glob or a URI of Parquet, CSV or JSON Lines; a Delta table; "
        "sklearn:NAME; or module:function that yields pyarrow record batches, from a folder "
        "beside the pipeline file."
    )
    format: Literal["auto", "parquet", "csv", "jsonl", "delta"] = Field(
        "auto", description="Format of the source; by its ending when auto."
    )
    target: str = Field(description="The column to predict.")
    key: Names = Field(
        (), description="Columns that identify a row; a hash of the whole row when left out."
    )
    features: Names | None = Field(
        None, description="Columns to learn from; all but the key and the target when left out."
    )
    columns: dict[str, ColumnSpec] = Field(
        default_factory=dict, description="Declared columns; the others are inferred and then held."
    )
    split: SplitSpec = Field(default_factory=SplitSpec, description="Shares of the splits.")
    max_quarantine: float = Field(
        0.05, ge=0, le=1, description="Share of bad rows above which ingestion fails."
    )


class ModelSpec(Spec):
    """The family of the model, and its parameters."""

    family: str = Field(
        "mlp",
        description="mlp, cnn, or module:Class: a torch.nn.Module, from a folder beside the "
        "pipeline file, whose constructor takes in_features, num_classes and the params.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the family or the class."
    )


class TrainingSpec(Spec):
    """How the model is trained."""

    epochs: int = Field(20, ge=1, description="Passes over the train split.")
    batch_size: int = Field(64, ge=1, description="Rows per worker and step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of AdamW.")
    weight_decay: float = Field(1e-4, ge=0, description="Weight decay of AdamW.")
    num_workers: int = Field(2, ge=1, description="Ray Train workers, one process each.")
    seed: int = Field(0, ge=0, description="Seed of weights and order.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Autocast type; auto is bf16 on a GPU that has it, else fp32."
    )
    max_failures: int = Field(
        3, ge=0, description="Failures of workers to recover from by the last checkpoint."
    )
    checkpoint_every: int = Field(1, ge=1, description="Epochs between two checkpoints.")
    find_unused_parameters: bool | None = Field(
        None,
        description="Whether steps may leave parameters without a gradient. Left out, one step "
        "tells; say true for a module whose branches depend on the data.",
    )


FormName = Literal[
    "onnx-fp32",
    "onnx-optimized",
    "onnx-fp16",
    "onnx-int8-dynamic",
    "onnx-int8-static",
    "onnx-int8-static-s8",
    "onnx-int8-static-entropy",
    "onnx-int8-static-percentile",
    "onnx-int8-smooth",
    "onnx-int8-mixed",
    "onnx-int8-weights",
    "onnx-int4-weights",
]
"""The forms of `export.forms`."""


class ExportLimits(Spec):
    """What the process of one conversion, or of one measurement, may take."""

    seconds: float = Field(600.0, gt=0, description="Wall time.")
    memory_gib: float = Field(16.0, gt=0, description="Address space, in GiB.")


class ExportSpec(Spec):
    """Which forms of the model to make, and what they may lose."""

    candidates: tuple[FormName, ...] = Field(
        ("onnx-fp32", "onnx-int8-dynamic", "onnx-int8-static"),
        min_length=1,
        description="Forms to export and measure, the preferred ones first: of two that are as "
        "good, the first is chosen.",
    )
    objective: Literal["latency", "throughput", "size", "metric"] = Field(
        "latency",
        description="What the chosen candidate is best at, among those that pass: p50 of one row, "
        "rows per second in full batches, bytes, or the task metric.",
    )
    max_metric_loss: float = Field(
        0.01, ge=0, le=1, description="Largest loss of the metric against PyTorch, relative."
    )
    max_size_mib: float | None = Field(
        None, gt=0, description="Largest file, in MiB; null for any."
    )
    limits: ExportLimits = Field(
        default_factory=lambda: ExportLimits(), description="What one conversion may take."
    )
    calibration_rows: int = Field(
        512, ge=1, description="Rows of the train split that calibrate static quantization."
    )
    golden_rows: int = Field(
        32, ge=1, le=4096, description="Rows of the golden batch, kept with the version."
    )


class RequireSpec(Spec):
    """What a version must have before it takes traffic, whoever set the alias."""

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
    """Who moves the alias champion, and what it takes to go live."""

    mode: Literal["auto", "manual"] = Field(
        "manual",
        description="auto: a version that passed its gates and is no worse than the champion on "
        "the same test split becomes champion. manual: a person does it in the MLflow UI.",
    )
    require: RequireSpec = Field(
        default_factory=RequireSpec, description="What a champion must have to go live."
    )


class ServingSpec(Spec):
    """How Triton serves the model; the words are Triton's own."""

    max_batch_size: int = Field(64, ge=1, description="Largest batch of one execution.")
    max_queue_delay_microseconds: int = Field(
        0, ge=0, description="How long dynamic batching may wait for a fuller batch."
    )
    instance_count: int = Field(1, ge=1, description="Instances in the instance_group.")
    intra_op_thread_count: int = Field(1, ge=1, description="Threads of each instance.")
    latency_slo_ms: float | None = Field(
        None,
        gt=0,
        description="p99 of one row, in milliseconds, that a version must hold before it takes "
        "traffic; measured but not judged when left out.",
    )
    keep_versions: int = Field(
        3, ge=2, description="Versions that stay in the model repository of Triton."
    )
    quorum: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        1, description="Replicas that must answer before any of them switches: a count, or all."
    )


class JudgeSpec(Spec):
    """What a candidate must show before it gets more traffic, and how sure that must be."""

    level: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Largest probability that a rollout promotes a candidate which is worse than "
        "the limits below; it is shared out over all steps and tests.",
    )
    min_agreement: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="Share of rows that both versions must answer alike; of each request that "
        "both answered, one row counts.",
    )
    max_slowdown: float = Field(
        1.3, gt=1, description="Latency of the candidate over the champion's, geometric means."
    )
    max_failures: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="Share of requests that the candidate fails and the champion answers.",
    )
    tolerance: float = Field(
        0.01,
        ge=0,
        description="Relative difference up to which two numbers are alike; where an output has "
        "several columns, its largest one must be the same.",
    )


class RolloutSpec(Spec):
    """How a new version comes to all traffic."""

    kind: Literal["direct", "canary", "shadow"] = Field(
        "direct",
        description="direct: at once. canary: by rising shares of the requests. shadow: it answers "
        "nobody, and its answers are compared with the champion's.",
    )
    steps: tuple[Annotated[float, Field(gt=0, lt=100)], ...] = Field(
        (1, 10, 50), min_length=1, description="Percent of the requests in each step of a canary."
    )
    hold_s: float = Field(600, gt=0, description="Seconds that a step lasts before it is judged.")
    compare_percent: float = Field(
        10,
        gt=0,
        le=100,
        description="Percent of all requests that both versions answer in a canary, at most.",
    )
    sticky_key: str = Field(
        "sticky_key",
        min_length=1,
        description="The request parameter by whose value requests stay with one version.",
    )
    judge: JudgeSpec = Field(default_factory=JudgeSpec, description="What it takes to go on.")

    @model_validator(mode="after")
    def _rises(self) -> "RolloutSpec":
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError("steps must rise, like [1, 10, 50]")
        return self


class BatchSpec(Spec):
    """How batch inference scores."""

    batch_size: int = Field(4096, ge=1, description="Rows per call of the model.")
    num_actors: int | None = Field(
        None, ge=1, description="Actors that score; one per core when left out."
    )
    input: str | None = Field(
        None,
        description="Rows to score: a file, a folder, a glob, a URI or a Delta table; the newest "
        "snapshot of the dataset when left out.",
    )


def _cron(line: str) -> str:
    try:
        CronSim(line, datetime.now(UTC))
    except CronSimError as error:
        raise ValueError(f"is not a cron line like '0 3 * * 1': {error}") from error
    return line


def _timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("is not a time zone like UTC or Europe/Berlin") from error
    return name


Cron = Annotated[str, AfterValidator(_cron)]
Timezone = Annotated[str, AfterValidator(_timezone)]


class ScheduleSpec(Spec):
    """Cron lines of the scheduled deployments, in `timezone`; null switches one off."""

    train: Cron | None = Field("0 3 * * 1", description="When to retrain.")
    score: Cron | None = Field("0 2 * * *", description="When to score.")
    timezone: Timezone = Field("UTC", description="Timezone of the cron lines.")


def _mode_from_word(value: object) -> object:
    """Let `promotion: auto` stand for `promotion: {mode: auto}`."""
    return {"mode": value} if isinstance(value, str) else value


NAME = "a small letter, then at most 62 small letters, digits, - or _"
"""A model's name, in words. It has no dot: models that Millrace makes for itself have one."""


class Pipeline(Spec):
    """One model, from its data to its serving."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")] = Field(
        description="Name of the dataset's table, the MLflow experiment and registered model, and "
        f"the Triton model: {NAME}."
    )
    dataset: DatasetSpec = Field(description="Where the rows come from.")
    model: ModelSpec = Field(default_factory=ModelSpec, description="What is trained.")
    training: TrainingSpec = Field(default_factory=TrainingSpec, description="How.")
    export: ExportSpec = Field(default_factory=ExportSpec, description="What is shipped.")
    promotion: Annotated[PromotionSpec, BeforeValidator(_mode_from_word)] = Field(
        default_factory=PromotionSpec, description="Who moves the alias champion: auto or manual."
    )
    serving: ServingSpec = Field(default_factory=ServingSpec, description="How Triton serves it.")
    rollout: RolloutSpec = Field(
        default_factory=RolloutSpec, description="How a new version comes to all traffic."
    )
    batch: BatchSpec = Field(default_factory=BatchSpec, description="How rows are scored.")
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec, description="When.")

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @property
    def folder(self) -> Path:
        """Folder of the pipeline file: relative paths and user modules are found from here."""
        return self._folder

    def located(self, folder: Path) -> "Pipeline":
        """Return this pipeline as read from `folder`."""
        twin = self.model_copy()
        twin._folder = folder.resolve()
        return twin
