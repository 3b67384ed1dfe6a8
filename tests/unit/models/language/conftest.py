"""A decoder that takes milliseconds, and sequences that it can learn."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from millrace.models.language.recipe import DecoderSpec
from tests.sequences_in_memory import SequencesInMemory

VOCAB, CONTEXT = 64, 32
LLAMA: dict[str, Any] = {
    "architecture": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Several threads take longer over so small a decoder, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> DecoderSpec:
    return DecoderSpec(VOCAB, CONTEXT, LLAMA, eos_token_id=0, pad_token_id=1)


@pytest.fixture(scope="session")
def counting() -> Callable[..., SequencesInMemory]:
    """Sequences of pieces that count on in steps of three; `n` of them by a seed."""

    def make(n: int, seed: int = 0) -> SequencesInMemory:
        drawn, rows = np.random.default_rng(seed), []
        for _ in range(n):
            lengths: list[int] = []
            while (left := CONTEXT - 4 - sum(lengths)) > 0:
                lengths.append(min(left, int(drawn.integers(1, 20))))
            ids = np.concatenate([drawn.integers(VOCAB) + 3 * np.arange(k) for k in lengths])
            rows.append(((ids % VOCAB).astype(np.int32), lengths, None))
        return SequencesInMemory(tuple(rows))

    return make
