"""Small language models, texts and tokenizers, made where they are needed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from millrace.export.language.token_pieces import TokenPieces

TEXT = Path(os.__file__).read_text()
VOCABULARY, CONTEXT = 320, 128


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of Python's source."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|endoftext|>", pad_token="<|pad|>"
    )


def decoder(kind: str, **config: Any) -> PreTrainedModel:
    """A random decoder; its weights are wide, so that its answers are not all alike."""
    torch.manual_seed(0)
    given = {"vocab_size": VOCABULARY, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 1}
    made = CONFIG_MAPPING[kind](**{**given, "initializer_range": 0.3, "init_std": 0.3, **config})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made)
    return model.eval()


def checkpoint(folder: Path, steps: int = 60) -> Path:
    """A folder of a Llama that has learnt for a moment, and of its tokenizer."""
    words = tokenizer()
    model = decoder(
        *("llama",),
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.05},
        **{"max_position_embeddings": CONTEXT, "tie_word_embeddings": True},
    )
    ids = torch.tensor(words.encode(TEXT))[:8192]
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for step in range(steps):
        batch = torch.stack([ids[at : at + 32] for at in range(32 * (step % 8), 8000, 512)])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def pieces(first: int, count: int, length: int = 64) -> TokenPieces:
    """Pieces of one length from a place in the text."""
    ids = np.array(tokenizer().encode(TEXT)[first : first + count * length], np.int64)
    return TokenPieces(ids, np.full(count, length, np.int64))
