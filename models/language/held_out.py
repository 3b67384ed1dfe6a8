"""The held-out sequences to measure a language model on, and a base model's perplexity on them."""

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
"""Number of test tokens to measure, spread over the whole test split. The beginning of the split
alone is not representative: the perplexity of one model was 13.5 and 16.3 on the two samples."""


def spread_over(sequences: Sequences, tokens: int) -> Array:
    """Return the int64 positions of evenly spread sequences with about `tokens` tokens in total."""
    most = tokens // len(sequences.sequence(0)[0]) + 1 if len(sequences) else 0
    return spread(len(sequences), most)


@torch.no_grad()
def base_perplexity(spec: DecoderSpec, measured: Callable[[int], Iterable[Packed]]) -> float:
    """Return the perplexity of a pretrained decoder before training, on the CPU in float32.

    Args:
        spec: spec of the decoder; its adapters are ignored.
        measured: function that takes the vocabulary size, and returns the sequences to measure on.

    Raises:
        InputError: the decoder cannot be built, as in `build_decoder`.
    """
    decoder = build_decoder(replace(spec, lora=None), seed=0)
    decoder.train(False)
    loss, answers = 0.0, 0
    for sequence in measured(decoder.config.get_text_config().vocab_size):
        batch = micro_batch([sequence], spec.pad_token_id or 0)
        loss += float(summed_loss(decoder, batch))
        answers += batch.answers
    return perplexity(loss / max(answers, 1))
