"""The spec of a decoder and its training settings: plain values that are sent to every worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from millrace.models.planner.worker_memory import Parallel

Precision = Literal["auto", "fp32", "bf16"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021, "LoRA"), the only weights that are trained.

    Attributes:
        r: rank of every adapter.
        alpha: an adapter's output is scaled by `alpha / r`.
        dropout: dropout rate of an adapter's inputs.
        target_modules: last parts of the names of the layers that get an adapter; None for every
            linear layer except the head.
    """

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder, pretrained or built from scratch with a config.

    Attributes:
        vocab_size: vocabulary size of the tokenizer.
        context: largest number of tokens in a sequence.
        params: `architecture`, and keys of that architecture's config. For a pretrained decoder,
            keys of the decoder's config that do not change the weights, such as a dropout.
        pretrained: folder, or name on the Hugging Face hub; None to train from scratch.
        revision: commit of the repository on the hub.
        lora: adapters to train instead of the weights; None to train the weights.
        bos_token_id: the tokenizer's token that begins a text; None if it has none.
        eos_token_id: the tokenizer's token that ends a document; None if it has none.
        pad_token_id: the tokenizer's padding token; None if it has none.
        turn_end_ids: tokens other than `eos_token_id` that end an assistant's turn in the chat
            template.
    """

    vocab_size: int
    context: int
    params: Mapping[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    revision: str | None = None
    lora: Lora | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    turn_end_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How a decoder is trained.

    Attributes:
        epochs: largest number of passes over the train split.
        max_steps: largest number of optimizer steps; None for no limit but the epochs.
        batch_size: sequences per worker and micro-step; with `tp` all workers share them.
        gradient_accumulation_steps: micro-steps per optimizer step.
        gradient_checkpointing: whether activations are recomputed in the backward pass.
        learning_rate: the highest learning rate of the schedule.
        optimizer: `adamw` for all weights, or `muon` for the matrices inside the decoder.
        weight_decay: decoupled weight decay; biases and norms have none.
        warmup_ratio: share of the run in which the learning rate rises from zero.
        max_grad_norm: norm above which gradients are scaled down; None for no clipping.
        parallel: `ddp` copies the decoder to every worker, `fsdp` shards it over them, `tp` splits
            every layer's matrices.
        precision: autocast type; `auto` is bf16 on a GPU that supports it, else fp32.
        checkpoint_steps: steps between two checkpoints; None to write a checkpoint only at the end
            of each epoch.
        log_steps: steps between two reports.
        num_workers: Ray Train workers, one process each.
        threads: torch threads of a worker; None for an equal share of the cores of the machine.
        seed: seed of the weights, the order of sequences and dropout.
        max_failures: how often training restarts from the last checkpoint after a worker failed.
    """

    epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    learning_rate: float = 3e-4
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.1
    warmup_ratio: float = 0.05
    max_grad_norm: float | None = 1.0
    parallel: Parallel = "ddp"
    precision: Precision = "auto"
    checkpoint_steps: int | None = None
    log_steps: int = 10
    num_workers: int = 1
    threads: int | None = None
    seed: int = 0
    max_failures: int = 3
