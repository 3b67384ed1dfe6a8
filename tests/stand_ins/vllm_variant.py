"""A form for vLLM, but for its weights: what is read before an engine opens it."""

from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from tests.language_model import END, byte_tokenizer


def write_variant(folder: Path, text: str, context: int) -> Any:
    """Write a new folder, and return the tokenizer, which has learnt from the text."""
    tokenizer = byte_tokenizer(text)
    end = tokenizer.convert_tokens_to_ids(END)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": context}
    LlamaConfig(**sizes, eos_token_id=end).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer
