"""What a decoder is made of, and how it is trained: plain values that travel to every worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Parallel = Literal["ddp", "fsdp", "tp"]
Precision = Literal["auto", "fp32", "bf16"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021, "LoRA"), the only weights that are trained.

    Attributes:
        r: rank of every adapter.
        alpha: an adapter's output is scaled by `alpha / r`.
        dropout: share of an adapter's inputs left out in training.
        target_modules: last parts of the names of the layers that get one; None for every linear
            layer but the head.
    """

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder: from scratch by its config, or pretrained.

    Attributes:
        vocab_size: tokens that the tokenizer has.
        context: tokens of a sequence at most.
        params: `architecture` and keys of that architecture's config; of a pretrained one, keys of
            its config that change nothing in the weights (a dropout).
        pretrained: folder, or name on the Hugging Face hub; None for one from scratch.
        revision: commit of the hub.
        lora: adapters to train in place of the weights; None to train these.
        bos_token_id: of the tokenizer, as the next two; None where it has none.
        eos_token_id: ends a document.
        pad_token_id: fills a batch up.
        turn_end_ids: tokens that end an answer too, where the template ends a turn by others.
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
        epochs: passes over the train split at most.
        max_steps: steps of the optimizer at most; None for as many as the epochs have.
        batch_size: sequences per worker and micro-step; with `tp` all workers share them.
        gradient_accumulation_steps: micro-steps to a step of the optimizer.
        gradient_checkpointing: whether activations are computed again in the backward pass.
        learning_rate: the highest.
        optimizer: `adamw` for all, or `muon` for the matrices inside the decoder.
        weight_decay: decoupled from the gradients; biases and norms are left out.
        warmup_ratio: share of the run in which the rate rises from zero.
        max_grad_norm: norm above which gradients are scaled down; None for any.
        parallel: `ddp` copies the decoder to every worker, `fsdp` shards it over them, `tp` splits
            every layer's matrices.
        precision: autocast type; `auto` is bf16 on a GPU that has it, else fp32.
        checkpoint_steps: steps between two checkpoints; None for the ends of epochs only.
        log_steps: steps between two reports.
        num_workers: Ray Train workers, one process each.
        threads: torch threads of a worker; None to share this machine's cores among its workers.
        seed: of weights, order and dropout.
        max_failures: failures of workers to recover from by the last checkpoint.
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
