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
        "hub; model.pretrained's when left out, else a byte-level BPE is learnt from the train "
        "split.",
    )
    vocab_size: int = Field(
        8192, ge=260, le=1_000_000, description="Tokens of one that is learnt, at most."
    )
    max_tokens: int = Field(
        128,
        ge=4,
        le=65_536,
        description="Tokens of a text, special ones included; it is cut there.",
    )


class ModelSpec(Spec):
    """The family of the model, and its parameters."""

    family: str = Field(
        "mlp",
        description="mlp, cnn, text_classifier, gradient_boosting, causal_lm, or module:Class: a "
        "torch.nn.Module, from a folder beside the pipeline file, whose constructor takes "
        "in_features (of a text vocab_size, padding and max_tokens), num_classes and the params.",
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
        description="Commit of the Hugging Face hub, or SHA-256 of the checkpoint of a registered "
        "version; the newest, which a run then keeps to, when left out.",
    )
    tokenizer: TokenizerSpec = Field(
        default_factory=TokenizerSpec, description="How a text becomes tokens."
    )
    lora: LoraSpec | None = Field(
        None, description="Adapters to train in place of all weights; causal_lm only."
    )

    @field_validator("pretrained")
    @classmethod
    def _check_model_uri(cls, value: str | None) -> str | None:
        if value is not None and is_model_uri(value) and version_name(value) is None:
            raise ValueError(f"a registered version is written {VALID}")
        return value


class TrainingSpec(Spec):
    """How the model is trained."""

    epochs: int = Field(20, ge=1, description="Passes over the train split.")
    batch_size: int = Field(64, ge=1, description="Rows per worker and step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        1e-4, ge=0, description="Decoupled weight decay; biases and norms are left out."
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="adamw, or muon for the matrices inside a decoder, whose steps are made "
        "orthogonal: fewer of them do on a small budget; causal_lm with parallel ddp only.",
    )
    max_grad_norm: float | None = Field(
        None, gt=0, description="Norm above which a step's gradients are scaled down; null for any."
    )
    num_workers: int = Field(2, ge=1, description="Ray Train workers, one process each.")
    seed: int = Field(0, ge=0, description="Seed of weights and order.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Autocast type; auto is bf16 on a GPU that has it, else fp32."
    )
    max_failures: int = Field(
        3, ge=0, description="Failures of workers to recover from by the last checkpoint."
    )
    checkpoint_every: int = Field(1, ge=1, description="Epochs between two checkpoints.")
    max_steps: int | None = Field(
        None, ge=1, description="Steps to end after, before the last epoch; causal_lm only."
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="Batches of each worker in a step; causal_lm only."
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Whether activations are computed again in the backward pass instead of kept; "
        "causal_lm only.",
    )
    warmup_ratio: float = Field(
        0.05, ge=0, lt=1, description="Share of the steps in which the rate rises; causal_lm only."
    )
    parallel: Literal["ddp", "fsdp", "tp"] = Field(
        "ddp",
        description="ddp: every worker has all weights. fsdp: they share parameters, gradients and "
        "optimizer (FSDP2). tp: they share each layer, by the model's own plan; causal_lm only.",
    )
    checkpoint_steps: int = Field(
        200, ge=1, description="Steps between two checkpoints; causal_lm only."
    )
    log_steps: int = Field(
        10, ge=1, description="Steps between two reports of loss and tokens/s; causal_lm only."
    )
    find_unused_parameters: bool | None = Field(
        None,
        description="Whether steps may leave parameters without a gradient. Left out, one step "
        "tells; say true for a module whose branches depend on the data.",
    )
    distillation: DistillationSpec | None = Field(
        None, description="Whom to learn from, if from anyone."
    )
    pruning: PruningSpec | None = Field(None, description="What to do without, if with less.")
    quantization_aware: QuantizationAwareSpec | None = Field(
        None, description="When to begin to round as the static int8 variants will, if at all."
    )
    compare: VersionName | None = Field(
        None,
        description="A registered version that the certificate shows beside this one, measured on "
        "the same rows: NAME for its champion, NAME@ALIAS or NAME/VERSION. The teacher, if there "
        "is one, when left out.",
    )
