"""The parts `model` and `training`."""

from typing import Any, Literal

from pydantic import Field, field_validator

from millrace.models.config import Spec
from millrace.models.config.compression_spec import (
    DistillationSpec,
    PruningSpec,
    QuantizationAwareSpec,
)
from millrace.models.config.language_spec import LoraSpec
from millrace.models.config.model_uri import VALID, VersionName, is_model_uri, version_name


class TokenizerSpec(Spec):
    """How texts become tokens."""

    source: str | None = Field(
        None,
        description="A tokenizer: a folder beside the pipeline file, or a name on the Hugging Face "
        "hub. When left out: the tokenizer of model.pretrained; without model.pretrained, a "
        "byte-level BPE that is trained on the train split.",
    )
    vocab_size: int = Field(
        8192, ge=260, le=1_000_000, description="Largest vocabulary of a trained tokenizer."
    )
    max_tokens: int = Field(
        128,
        ge=4,
        le=65_536,
        description="Most tokens of a text, special ones included; longer texts are cut.",
    )


class ModelSpec(Spec):
    """The family of the model, and its parameters."""

    family: str = Field(
        "mlp",
        description="mlp, cnn, text_classifier, gradient_boosting, causal_lm, or module:Class: a "
        "torch.nn.Module, from a module beside the pipeline file, whose constructor takes "
        "in_features (for a text: vocab_size, padding and max_tokens), num_classes and the params.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the family or the class."
    )
    pretrained: str | None = Field(
        None,
        description="A transformers model whose weights training starts from: a folder beside the "
        "pipeline file, a name on the Hugging Face hub, or for causal_lm a registered version: "
        "models:/NAME@ALIAS or models:/NAME/VERSION.",
    )
    revision: str | None = Field(
        None,
        description="Which weights model.pretrained stands for: a commit on the Hugging Face hub, "
        "or the SHA-256 of the checkpoint of a registered version. When left out: the newest "
        "commit, or the checkpoint of the named version, when the run begins.",
    )
    tokenizer: TokenizerSpec = Field(
        default_factory=TokenizerSpec, description="How a text becomes tokens."
    )
    lora: LoraSpec | None = Field(
        None, description="Adapters to train instead of all weights; causal_lm only."
    )

    @field_validator("pretrained")
    @classmethod
    def _check_model_uri(cls, value: str | None) -> str | None:
        if value is not None and is_model_uri(value) and version_name(value) is None:
            raise ValueError(f"a registered version is written {VALID}")
        return value


DEFAULT_WORKERS, DEFAULT_BATCH, DEFAULT_RATE = 2, 64, 3e-3


class TrainingSpec(Spec):
    """How the model is trained."""

    epochs: int = Field(20, ge=1, description="Passes over the train split.")
    batch_size: int | None = Field(
        None,
        ge=1,
        description="Rows per worker and step; null: 64, or more for a large table, so that an "
        "epoch has about 500 steps.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate; null: 0.003, and with a batch that was chosen for a large "
        "table more, up to 0.012.",
    )
    weight_decay: float = Field(
        1e-4, ge=0, description="Decoupled weight decay; biases and norms are left out."
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="adamw, or muon, which makes the updates of the matrices inside a decoder "
        "orthogonal, so that on a small budget fewer steps suffice; muon is for causal_lm with "
        "parallel: ddp only.",
    )
    max_grad_norm: float | None = Field(
        None, gt=0, description="Norm above which gradients are scaled down; null: no limit."
    )
    num_workers: int | None = Field(
        None,
        ge=1,
        description="Ray Train workers, one process each; null: one for each GPU, or 2 if there is "
        "none.",
    )
    seed: int = Field(
        0, ge=0, description="Seed of the initial weights and of the order of the rows."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Autocast type; auto is bf16 on a GPU that has it, else fp32."
    )
    max_failures: int = Field(
        3,
        ge=0,
        description="Largest number of worker failures after which training resumes from a "
        "checkpoint.",
    )
    checkpoint_every: int = Field(1, ge=1, description="Epochs between two checkpoints.")
    max_steps: int | None = Field(
        None, ge=1, description="Steps after which training ends early; causal_lm only."
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="Batches per worker in an optimizer step; causal_lm only."
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Whether activations are recomputed in the backward pass instead of stored; "
        "causal_lm only.",
    )
    warmup_ratio: float = Field(
        0.05, ge=0, lt=1, description="Share of steps with a rising learning rate; causal_lm only."
    )
    parallel: Literal["ddp", "fsdp", "tp"] = Field(
        "ddp",
        description="ddp: every worker has all weights. fsdp: parameters, gradients and optimizer "
        "states are split among the workers (FSDP2). tp: each layer is split among the workers, by "
        "the model's own plan. fsdp and tp are for causal_lm only.",
    )
    checkpoint_steps: int = Field(
        200, ge=1, description="Steps between two checkpoints; causal_lm only."
    )
    log_steps: int = Field(
        10, ge=1, description="Steps between two reports of loss and tokens/s; causal_lm only."
    )
    find_unused_parameters: bool | None = Field(
        None,
        description="Whether steps may leave parameters without a gradient. When left out, one "
        "trial step decides; set true for a module whose branches depend on the data.",
    )
    distillation: DistillationSpec | None = Field(
        None, description="Learn from a teacher's answers too; null: do not."
    )
    pruning: PruningSpec | None = Field(None, description="What to prune; null: nothing.")
    quantization_aware: QuantizationAwareSpec | None = Field(
        None, description="Round in training as static int8 variants do; null: do not."
    )
    compare: VersionName | None = Field(
        None,
        description="A registered version that the certificate shows beside the new one, measured "
        "on the same rows: NAME for its champion, NAME@ALIAS or NAME/VERSION. When left out: the "
        "teacher, if there is one.",
    )

    @property
    def workers(self) -> int:
        """Ray Train workers, where there is no GPU."""
        return self.num_workers or DEFAULT_WORKERS

    @property
    def batch_rows(self) -> int:
        """Rows per worker and step, where the size of the table does not matter."""
        return self.batch_size or DEFAULT_BATCH

    @property
    def peak_rate(self) -> float:
        """Peak learning rate, where the size of the table does not matter."""
        return self.learning_rate or DEFAULT_RATE
