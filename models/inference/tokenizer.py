"""Tokenizes text with the library `tokenizers`, from one file in training, batch and serving.

The file `tokenizer.json` defines normalization, vocabulary, special tokens, truncation and padding.
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
"""First token of a row whose text is missing, and of a row whose cell is not text.

Ids of real tokens are not negative.
"""
CHARACTERS = 64
"""A text is cut to this number of characters times `max_tokens` before it is tokenized.

A tokenizer reads a whole text before it truncates: a text of a megabyte blocks a server for a
second.
"""
PAD, BEGIN, END = "[PAD]", "[CLS]", "[SEP]"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that is stored with every model version.

    Attributes:
        json: the contents of `tokenizer.json`, with truncation at `max_tokens` and padding.
        max_tokens: most tokens of a text, special ones included.
        padding: id of the padding token.
        vocab_size: size of the vocabulary.
    """

    json: str
    max_tokens: int
    padding: int
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: "Tokenizer", max_tokens: int, padding: int) -> "TextTokenizer":
        """Return a tokenizer that truncates at `max_tokens` and pads with `padding`."""
        tokenizer.enable_truncation(max_tokens)
        token = tokenizer.id_to_token(padding)
        tokenizer.enable_padding(pad_id=padding, pad_token=token)
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        return cls(tokenizer.to_str(), max_tokens, padding, size)

    def ids(self, texts: Sequence[str | None]) -> Array:
        """Return token ids, int64 `[rows, max_tokens]`, padded.

        Args:
            texts: one text for each row; the row of a missing text (None) begins with `MISSING`.
        """
        ids = np.full((len(texts), self.max_tokens), self.padding, dtype=np.int64)
        known = [row for row, text in enumerate(texts) if text is not None]
        most = CHARACTERS * self.max_tokens
        cut = [str(texts[row])[:most] for row in known]
        encodings = _load_tokenizer(self.json).encode_batch_fast(cut)
        for row, encoding in zip(known, encodings, strict=True):
            ids[row, : len(encoding.ids)] = encoding.ids
        ids[[row for row, text in enumerate(texts) if text is None], 0] = MISSING
        return ids


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_tokens: int) -> TextTokenizer:
    """Train a byte-level BPE, which can tokenize any string.

    Args:
        texts: texts of the train split.
        vocab_size: largest vocabulary size.
        max_tokens: most tokens of a text.

    Sennrich, Haddow and Birch 2016; bytes as in Radford et al. 2019.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=ends
    )
    return TextTokenizer.of(tokenizer, max_tokens, tokenizer.token_to_id(PAD) or 0)


@lru_cache(maxsize=4)
def _load_tokenizer(text: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    values = json.loads(text)
    values["padding"] = None  # `TextTokenizer.ids` pads instead, always to `max_tokens`
    return Tokenizer.from_str(json.dumps(values))
