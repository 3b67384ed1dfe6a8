"""Decoder, loss, optimizer and strategy, as one thing to step, measure, save and load."""

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
from millrace.models.language.flops import cost_of
from millrace.models.language.memory import shape_of
from millrace.models.language.micro_batches import MicroBatch
from millrace.models.language.optimizers import clip, grad_norm, optimizers_of
from millrace.models.language.parallel import Strategy
from millrace.models.language.recipe import DecoderSpec, Recipe
from millrace.models.language.sequence_order import Place

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from torch.nn import functional

from millrace.models.language.micro_batches import IGNORED


def summed_loss(decoder: nn.Module, batch: MicroBatch) -> Tensor:
    """Return the sum of the losses of a batch's answers, float32 scalar.

    Args:
        decoder: of transformers, also wrapped.
        batch: on the decoder's device.
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
    """What one step gave.

    Attributes:
        loss: sum over the answers of this worker, float32 scalar, on its device.
        answers: answers over all workers, float64 scalar.
        norm: of the gradients, before they are scaled down.
    """

    loss: Tensor
    answers: Tensor
    norm: float


class Learner:
    """The decoder of a run on one worker.

    Attributes:
        decoder: whole, sharded or split.
        spec: what it is made of.
        recipe: how it is trained.
        strategy: how it is spread.
        cost: what a token of it costs.
        shape: what its memory depends on.
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
        # Dropout differs between workers with sequences of their own, and is one where they share.
        torch.manual_seed(recipe.seed + strategy.rank)

    def step(self, batches: Sequence[MicroBatch], rate: float) -> Stepped:
        """Learn from the micro-batches of a step.

        The loss is the mean over the answers of all workers and micro-batches together, so it does
        not depend on who computes which.

        Args:
            batches: of this worker, as many as of every other.
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
        """Return the sum of the losses and the number of answers, over all workers."""
        self.decoder.train(False)
        sums = torch.zeros(2, dtype=torch.float64, device=self.strategy.device)
        for batch in batches:
            sums[0] += self._loss(self.decoder, batch)
            sums[1] += batch.answers
        loss, answers = self.strategy.summed(sums).tolist()
        return loss, answers

    def save(self, folder: Path, place: Place) -> None:
        """Write what it takes to go on; all workers call it."""
        save_resume(folder, self.decoder, self.optimizers, place)

    def load(self, folder: Path) -> Place:
        """Go on from what `save` wrote."""
        return load_resume(folder, self.decoder, self.optimizers)

    def export(self, folder: Path, tokenizer: Path | None, *, writes: bool) -> None:
        """Write the decoder as transformers does; all workers call it.

        Args:
            folder: where to write.
            tokenizer: folder of the tokenizer's files.
            writes: whether this worker is the one that writes; it makes the decoder once more.
        """
        weights = whole_weights(self.decoder)
        if not writes:
            return
        whole = build_decoder(self.spec, self.recipe.seed)
        missing = whole.load_state_dict(weights, strict=False).missing_keys
        trained = {name for name, each in whole.named_parameters() if each.requires_grad}
        if lost := trained.intersection(missing):
            raise RuntimeError(f"weights are missing in what the workers gathered: {sorted(lost)}")
        whole.train(False)
        save_decoder(folder, whole, self.spec, tokenizer)

    def _loss(self, module: nn.Module | None, batch: MicroBatch) -> Tensor:
        """Return the sum of the losses of a batch's answers, float32."""
        if module is None:
            raise RuntimeError("the decoder is not spread yet")
        with self.strategy.autocast():
            return summed_loss(module, batch.on(self.strategy.device))
