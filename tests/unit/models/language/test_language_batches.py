from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config

from millrace.models.language.corpus.sequences import Packed
from millrace.models.language.micro_batches import IGNORED, labels_of, micro_batch

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    ),
    "gpt2": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "qwen3": Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
    ),
}


def packed(lengths: list[int], seed: int, answers: bool = False) -> Packed:
    drawn = np.random.default_rng(seed)
    count = sum(lengths)
    answer = drawn.random(count) < 0.5 if answers else None
    return drawn.integers(2, 64, count).astype(np.int32), lengths, answer


def loss_of(model: Any, sequences: list[Packed]) -> tuple[torch.Tensor, int]:
    """Return the sum of the losses and how many there are."""
    batch = micro_batch(sequences, padding=0)
    logits = model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
    ).logits
    loss = functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return loss, batch.answers


def documents(sequence: Packed) -> list[Packed]:
    ids, lengths, answer = sequence
    ends = np.cumsum(lengths)
    return [
        (ids[end - n : end], [n], None if answer is None else answer[end - n : end])
        for n, end in zip(lengths, ends, strict=True)
    ]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_packed_batch_teaches_what_its_documents_teach_apart(
    architecture: str, attention: str
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture], attn_implementation=attention)
    model.eval()
    rows = [packed([7, 1, 12, 9], 0, answers=True), packed([32], 1), packed([3, 4], 2)]
    with torch.no_grad():
        apart = [loss_of(model, [each]) for row in rows for each in documents(row)]
        together, answers = loss_of(model, rows)
    assert answers == sum(count for _, count in apart)
    torch.testing.assert_close(together, sum(loss for loss, _ in apart), rtol=1e-5, atol=1e-4)


def test_a_packed_batch_has_the_gradients_of_its_documents_apart() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    row = packed([7, 12, 9], 0)
    loss_of(model, [row])[0].backward()
    together = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    for each in documents(row):
        loss_of(model, [each])[0].backward()
    for one, each in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(one, each.grad, rtol=1e-3, atol=1e-4)


def test_a_mistake_in_the_positions_would_be_seen() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]).eval()
    row = packed([7, 12, 9], 0)
    one_piece: Packed = (row[0], [28], None)
    with torch.no_grad():
        apart = sum(loss_of(model, [each])[0] for each in documents(row))
        assert abs(float(loss_of(model, [one_piece])[0] - apart)) > 1e-2


def test_nothing_is_predicted_across_pieces_nor_where_it_does_not_count() -> None:
    ids = np.arange(10, 17, dtype=np.int32)
    assert labels_of(ids, [3, 4], None).tolist() == [11, 12, -100, 14, 15, 16, -100]
    answer = np.array([1, 0, 1, 1, 1, 0, 1], bool)
    assert labels_of(ids, [3, 4], answer).tolist() == [-100, 12, -100, 14, -100, 16, -100]


def test_the_width_is_a_multiple_and_no_position_is_beyond_the_context() -> None:
    batch = micro_batch([packed([12, 1], 0), packed([5], 1)], padding=9)
    assert batch.input_ids.shape == (2, 16)
    assert batch.tokens == 18
    assert batch.answers == 11 + 0 + 4 == int((batch.labels != IGNORED).sum())
    assert int(batch.position_ids.max()) < 13
    assert batch.input_ids[1, 5:].tolist() == [9] * 11


def test_no_sequences_are_a_batch_that_teaches_nothing() -> None:
    batch = micro_batch([], padding=0)
    assert batch.input_ids.shape == (1, 8)
    assert (batch.tokens, batch.answers) == (0, 0)
