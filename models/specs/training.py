"""The parts `model` and `training`."""

from typing import Any, Literal

from pydantic import Field

from models.specs.base import Spec
from models.specs.compression import (
    DistillationSpec,
    PruningSpec,
    QuantizationAwareSpec,
    VersionName,
)


class TokenizerSpec(Spec):
    """How a text becomes tokens."""

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
        description="mlp, cnn, text_classifier, or module:Class: a torch.nn.Module, from a folder "
        "beside the pipeline file, whose constructor takes in_features (of a text vocab_size, "
        "padding and max_tokens), num_classes and the params.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the family or the class."
    )
    pretrained: str | None = Field(
        None,
        description="A transformers model whose weights training starts from: a folder beside the "
        "pipeline file, or a name on the Hugging Face hub.",
    )
    revision: str | None = Field(
        None,
        description="Commit of the Hugging Face hub; the newest, which a run then keeps to, when "
        "left out.",
    )
    tokenizer: TokenizerSpec = Field(
        default_factory=TokenizerSpec, description="How a text becomes tokens."
    )


class TrainingSpec(Spec):
    """How the model is trained."""

    epochs: int = Field(20, ge=1, description="Passes over the train split.")
    batch_size: int = Field(64, ge=1, description="Rows per worker and step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of AdamW.")
    weight_decay: float = Field(
        1e-4, ge=0, description="Weight decay of AdamW; biases and norms are left out."
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
        None, description="When to begin to round as the static int8 forms will, if at all."
    )
    compare: VersionName | None = Field(
        None,
        description="A registered version that the certificate shows beside this one, measured on "
        "the same rows: NAME for its champion, NAME@ALIAS or NAME/VERSION. The teacher, if there "
        "is one, when left out.",
    )
