"""Decoder, loss, optimizers and strategy in one object that trains, measures, saves and loads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.decoder_checkpoint import (
    load_resume,
    save_decoder,
    save_resume,
    whole_weights,
)
from millrace.models.language.decoder_sizes import cost_of, shape_of
from millrace.models.language.micro_batches import MicroBatch
from millrace.models.language.optimizers import clip, grad_norm, optimizers_of
from millrace.models.language.parallel import Strategy
from millrace.models.language.recipe import DecoderSpec, Recipe
from millrace.models.language.sequence_order import Position

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from torch.nn import functional

from millrace.models.language.micro_batches import IGNORED


def summed_loss(decoder: nn.Module, batch: MicroBatch) -> Tensor:
    """Return the cross-entropy summed over a batch's labels, float32 scalar.

    Args:
        decoder: a transformers decoder, or a wrapper such as DDP.
        batch: a batch on the decoder's device.
    """
    logits: Tensor = decoder(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
    ).logits
    return functional.cross_entropy(
        logits.float().flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


@dataclass(frozen=True)
class Stepped:
    """The results of one optimizer step on one worker.

    Attributes:
        loss: cross-entropy summed over this worker's labels, float32 scalar, on its device.
        answers: number of labels over all workers, float64 scalar.
        norm: norm of the gradients before clipping.
    """

    loss: Tensor
    answers: Tensor
    norm: float


class Learner:
    """The decoder of a run on one worker, with its optimizers.

    Attributes:
        decoder: the decoder; the strategy decides whether it is whole, sharded or split.
        spec: spec of the decoder.
        recipe: training settings.
        strategy: parallel strategy.
        cost: sizes that determine the operations per token.
        shape: sizes that determine the memory.
        optimizers: the optimizers of the trained parameters.
    """

    def __init__(self, spec: DecoderSpec, recipe: Recipe, strategy: Strategy) -> None:
        self.spec, self.recipe, self.strategy = spec, recipe, strategy
        decoder = build_decoder(spec, recipe.seed)
        if recipe.gradient_checkpointing:
            options = {"use_reentrant": False}
            decoder.gradient_checkpointing_enable(options)  # type: ignore[no-untyped-call]
        self.cost, self.shape = cost_of(decoder), shape_of(decoder)
        self.decoder: PreTrainedModel = strategy.spread(decoder)
        self.optimizers = optimizers_of(self.decoder, recipe)
        # Workers that train on different sequences have different dropout masks; workers that share
        # their sequences (tp) have the same masks.
        torch.manual_seed(recipe.seed + strategy.rank)

    def step(self, batches: Sequence[MicroBatch], rate: float) -> Stepped:
        """Train on the micro-batches of one optimizer step.

        The loss is the mean over the labels of all workers and micro-batches together, so it does
        not depend on how sequences are distributed.

        Args:
            batches: this worker's micro-batches; every worker has equally many.
            rate: learning rate.
        """
        self.decoder.train()
        self.decoder.zero_grad(set_to_none=True)
        strategy = self.strategy
        mine = torch.tensor(sum(each.answers for each in batches), dtype=torch.float64)
        answers = strategy.summed(mine.to(strategy.device))
        scale = strategy.gradient_scale / float(answers.clamp(min=1))
        total = torch.zeros((), device=strategy.device)
        for number, batch in enumerate(batches, start=1):
            with strategy.micro_step(is_last=number == len(batches)):
                loss = self._loss(strategy.module, batch)
                (loss * scale).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        norm = grad_norm(self.decoder.parameters())
        if self.recipe.max_grad_norm is not None:
            clip(self.decoder.parameters(), norm, self.recipe.max_grad_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        return Stepped(total, answers, norm)

    @torch.no_grad()
    def measure(self, batches: Iterable[MicroBatch]) -> tuple[float, float]:
        """Return the summed cross-entropy and the number of labels, over all workers."""
        self.decoder.train(False)
        sums = torch.zeros(2, dtype=torch.float64, device=self.strategy.device)
        for batch in batches:
            sums[0] += self._loss(self.decoder, batch)
            sums[1] += batch.answers
        loss, answers = self.strategy.summed(sums).tolist()
        return loss, answers

    def save(self, folder: Path, position: Position) -> None:
        """Write a checkpoint to resume from; all workers call this."""
        save_resume(folder, self.decoder, self.optimizers, position)

    def load(self, folder: Path) -> Position:
        """Load a checkpoint of `save`, and return the position of the run."""
        return load_resume(folder, self.decoder, self.optimizers)

    def export(self, folder: Path, tokenizer: Path | None, *, writes: bool) -> None:
        """Write the trained decoder in the format of transformers; all workers call this.

        Args:
            folder: where to write.
            tokenizer: folder of the tokenizer's files; None to write no tokenizer.
            writes: whether this worker writes the files; to write, it builds the decoder again.
        """
        weights = whole_weights(self.decoder)
        if not writes:
            return
        whole = build_decoder(self.spec, self.recipe.seed)
        missing = whole.load_state_dict(weights, strict=False).missing_keys
        trained = {name for name, each in whole.named_parameters() if each.requires_grad}
        if lost := trained.intersection(missing):
            raise RuntimeError(f"the gathered weights lack trained parameters: {sorted(lost)}")
        whole.train(False)
        save_decoder(folder, whole, self.spec, tokenizer)

    def _loss(self, module: nn.Module | None, batch: MicroBatch) -> Tensor:
        """Return the cross-entropy summed over a batch's labels, float32."""
        if module is None:
            raise RuntimeError("call Strategy.spread(decoder) first")
        with self.strategy.autocast():
            return summed_loss(module, batch.on(self.strategy.device))
