"""The pipeline file: one model from its data to its serving, as frozen pydantic models.

The `description` of a key is its documentation; `millrace schema` gives it to editors. Unknown keys
are refused; `millrace.models.config.pipeline_file` turns pydantic's errors into `InputError`.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from millrace.models.config import Spec
from millrace.models.config.batch_spec import BatchSpec, ScheduleSpec
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.export_spec import ExportSpec
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.model_kind import find_misfits, with_default_variants
from millrace.models.config.model_uri import model_of
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.config.serving_spec import PromotionSpec, ServingSpec
from millrace.models.config.training_spec import ModelSpec, TrainingSpec


def _wrap_word(value: object) -> object:
    """Accept `promotion: auto` as short for `promotion: {mode: auto}`."""
    return {"mode": value} if isinstance(value, str) else value


NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
NAME = "a small letter, then at most 62 small letters, digits, - or _"
"""The rule for a model's name.

It excludes dots, because names with a dot are for Millrace's own models in Triton.
"""


class Pipeline(Spec):
    """One model, from its data to its serving."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="Name of the dataset's table, the MLflow experiment and registered model, and "
        f"the Triton model: {NAME}."
    )
    dataset: DatasetSpec = Field(description="Where the rows come from.")
    model: ModelSpec = Field(default_factory=ModelSpec, description="What is trained.")
    training: TrainingSpec = Field(default_factory=TrainingSpec, description="How it is trained.")
    export: ExportSpec = Field(default_factory=ExportSpec, description="Variants to export.")
    promotion: Annotated[PromotionSpec, BeforeValidator(_wrap_word)] = Field(
        default_factory=PromotionSpec, description="Who moves the alias champion: auto or manual."
    )
    serving: ServingSpec = Field(default_factory=ServingSpec, description="How Triton serves it.")
    rollout: RolloutSpec = Field(
        default_factory=RolloutSpec, description="How traffic moves to a new version."
    )
    batch: BatchSpec = Field(default_factory=BatchSpec, description="How rows are scored.")
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec, description="When flows run.")
    retention: RetentionSpec = Field(
        default_factory=RetentionSpec, description="What `millrace clean` removes."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_variants(cls, values: Any) -> Any:
        return with_default_variants(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _require_fitting_family(self) -> Self:
        names = ("model", "training", "export", "serving", "rollout", "batch")
        parts = {name: getattr(self, name) for name in names}
        if found := next(find_misfits(self.model.family, parts), None):
            raise ValueError(found)
        return self

    @model_validator(mode="after")
    def _require_missed_dates(self) -> Self:
        kept = self.retention.predictions
        if kept is not None and kept <= self.batch.catch_up:
            raise ValueError(
                f"retention.predictions: {kept} days; the scheduled run scores the missed dates of "
                f"the last {self.batch.catch_up} days again (batch.catch_up), so keep more days"
            )
        return self

    @model_validator(mode="after")
    def _require_other_draft(self) -> Self:
        draft = self.serving.generation.draft
        if draft is not None and model_of(draft) == self.name:
            raise ValueError(
                f"serving.generation.draft: {draft} is this model itself; name a smaller model"
            )
        return self

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @property
    def folder(self) -> Path:
        """Folder of the pipeline file, from which relative paths and user modules start."""
        return self._folder

    def with_model(self, model: ModelSpec) -> "Pipeline":
        """Return this pipeline with another model."""
        return self.model_copy(update={"model": model})

    def with_generation(self, generation: GenerationSpec) -> "Pipeline":
        """Return this pipeline with other generation settings."""
        serving = self.serving.model_copy(update={"generation": generation})
        return self.model_copy(update={"serving": serving})

    def with_folder(self, folder: Path) -> "Pipeline":
        """Return this pipeline as if its file were in `folder`."""
        copied = self.model_copy()
        copied._folder = folder.resolve()
        return copied
