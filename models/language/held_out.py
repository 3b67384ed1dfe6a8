"""Which held-out sequences a language model is measured on, and what a base reaches on them."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from millrace.models.common.arrays import Array, spread
from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.corpus.sequences import Packed, Sequences
from millrace.models.language.learner import summed_loss
from millrace.models.language.micro_batches import micro_batch
from millrace.models.language.recipe import DecoderSpec
from millrace.models.language.token_meter import perplexity

HELD_OUT_TOKENS = 16_384
"""From all of the test split: of its first modules alone, one perplexity was 13.5 and 16.3."""


def spread_over(sequences: Sequences, tokens: int) -> Array:
    """Return the positions of sequences, evenly apart, that hold about so many tokens: int64."""
    most = tokens // len(sequences.sequence(0)[0]) + 1 if len(sequences) else 0
    return spread(len(sequences), most)


@torch.no_grad()
def base_perplexity(spec: DecoderSpec, measured: Callable[[int], Iterable[Packed]]) -> float:
    """Return the perplexity of a pretrained decoder before it is trained further.

    It is measured on the CPU in float32.

    Args:
        spec: the decoder; its adapters are left out.
        measured: takes the size of the vocabulary, returns sequences.

    Raises:
        InputError: as `build_decoder` does.
    """
    decoder = build_decoder(replace(spec, lora=None), seed=0)
    decoder.train(False)
    loss, answers = 0.0, 0
    for sequence in measured(decoder.config.get_text_config().vocab_size):
        batch = micro_batch([sequence], spec.pad_token_id or 0)
        loss += float(summed_loss(decoder, batch))
        answers += batch.answers
    return perplexity(loss / max(answers, 1))
