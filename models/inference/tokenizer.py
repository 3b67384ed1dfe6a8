"""Text to tokens, by the library `tokenizers`: the same file in training, in batch and in serving.

The file `tokenizer.json` says all of it: normalization, vocabulary, special tokens, where a text is
cut and what a batch is filled up with.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from millrace.models.common.arrays import Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MISSING, UNREADABLE = -1, -2
"""First place of a row that has no text, and of one that is none; no token is negative."""
CHARACTERS = 64
"""Of a text for each token that it may have, at most; the rest is cut off before there are tokens.

A tokenizer reads a text to its end before it cuts: a megabyte holds a server up for a second.
"""
PAD, BEGIN, END = "[PAD]", "[CLS]", "[SEP]"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that is kept with every model version.

    Attributes:
        json: the contents of `tokenizer.json`, which cuts at `max_tokens` and fills batches up.
        max_tokens: tokens of a text at most, special ones included.
        padding: the token that fills a batch up.
        vocab_size: tokens that there are.
    """

    json: str
    max_tokens: int
    padding: int
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: "Tokenizer", max_tokens: int, padding: int) -> "TextTokenizer":
        """Return a tokenizer that cuts texts at `max_tokens` and fills up with `padding`."""
        tokenizer.enable_truncation(max_tokens)
        token = tokenizer.id_to_token(padding)
        tokenizer.enable_padding(pad_id=padding, pad_token=token)
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        return cls(tokenizer.to_str(), max_tokens, padding, size)

    def ids(self, texts: Sequence[str | None]) -> Array:
        """Return int64 `[rows, max_tokens]`, filled up; a row without text begins with `MISSING`.

        Args:
            texts: one for each row.
        """
        found = np.full((len(texts), self.max_tokens), self.padding, dtype=np.int64)
        known = [row for row, text in enumerate(texts) if text is not None]
        most = CHARACTERS * self.max_tokens
        cut = [str(texts[row])[:most] for row in known]
        tokens = _opened(self.json).encode_batch_fast(cut)
        for row, encoding in zip(known, tokens, strict=True):
            found[row, : len(encoding.ids)] = encoding.ids
        found[[row for row, text in enumerate(texts) if text is None], 0] = MISSING
        return found


def learnt(texts: Iterable[str], vocab_size: int, max_tokens: int) -> TextTokenizer:
    """Learn a byte-level BPE from texts: every string has tokens, and none is unknown.

    Args:
        texts: of the train split.
        vocab_size: tokens at most.
        max_tokens: tokens of a text at most.

    Sennrich, Haddow and Birch 2016; bytes as in Radford et al. 2019.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    ends = [(token, made.token_to_id(token)) for token in (BEGIN, END)]
    made.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=ends
    )
    return TextTokenizer.of(made, max_tokens, made.token_to_id(PAD) or 0)


@lru_cache(maxsize=4)
def _opened(text: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    values = json.loads(text)
    values["padding"] = None  # it is done here, to one width
    return Tokenizer.from_str(json.dumps(values))
