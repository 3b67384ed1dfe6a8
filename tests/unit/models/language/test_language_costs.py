import dataclasses

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.decoder_sizes import cost_of, flops_of_token, mfu, shape_of
from millrace.models.language.micro_batches import micro_batch
from millrace.models.language.recipe import DecoderSpec
from millrace.models.planner.worker_memory import Load, Shape, activations_of, memory_of
from tests.unit.models.language.test_language_batches import packed

SEVEN_BILLION = Shape(6_738_415_616, 6_738_415_616, 32, 4096, 11008, 32, 4096, 32_000)


@pytest.mark.parametrize("tied", [False, True])
def test_the_operations_are_those_that_torch_counts(tiny: DecoderSpec, tied: bool) -> None:
    spec = dataclasses.replace(tiny, params={**tiny.params, "tie_word_embeddings": tied})
    batch = micro_batch([packed([32], 0)], padding=0)
    decoder = build_decoder(spec, 0)
    decoder.set_attn_implementation("eager")  # torch counts no fused attention of a CPU
    with FlopCounterMode(display=False) as counter:
        decoder(input_ids=batch.input_ids, use_cache=False).logits.sum().backward()
    told = 32 * flops_of_token(cost_of(decoder), 32)
    assert counter.get_total_flops() == pytest.approx(told, rel=0.01)


def test_what_is_frozen_costs_less(tiny: DecoderSpec) -> None:
    decoder = build_decoder(tiny, 0)
    whole = cost_of(decoder)
    decoder.model.requires_grad_(False)
    part = cost_of(decoder)
    assert whole.trained == part.trained + part.frozen
    assert part.trained == 64 * 32
    assert flops_of_token(part, 32) < flops_of_token(whole, 32)


def test_the_share_of_the_peak_is_over_all_devices() -> None:
    assert mfu(6e9, 1e5, "NVIDIA H100 80GB HBM3", 2) == pytest.approx(6e14 / (2 * 989e12))
    assert mfu(6e9, 1e5, "", 2) is None


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_activations_are_about_what_is_kept_for_the_backward_pass(
    tiny: DecoderSpec, attention: str
) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 6}
    decoder = build_decoder(dataclasses.replace(tiny, params={**tiny.params, **wide}), 0)
    decoder.set_attn_implementation(attention)
    shape = shape_of(decoder)
    own = {each.untyped_storage().data_ptr() for each in decoder.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = micro_batch([packed([32], each) for each in range(4)], padding=0)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        held = decoder(input_ids=batch.input_ids, use_cache=False).logits
    assert held.requires_grad
    told = activations_of(shape, Load(batch_size=4, context=32))
    assert sum(kept.values()) == pytest.approx(told, rel=0.15)


def test_a_sharded_decoder_takes_a_share() -> None:
    alone = memory_of(SEVEN_BILLION, Load(1, 2048))
    assert alone.weights + alone.gradients + alone.optimizer == 16 * SEVEN_BILLION.parameters
    sharded = memory_of(SEVEN_BILLION, Load(1, 2048, "fsdp", 8))
    assert sharded.optimizer == alone.optimizer / 8
    assert sharded.activations == alone.activations
    split = memory_of(SEVEN_BILLION, Load(1, 2048, "tp", 8))
    assert split.activations < alone.activations
    assert split.gradients == alone.gradients / 8


def test_checkpointing_and_half_precision_take_less() -> None:
    plain, saving, half = (
        memory_of(SEVEN_BILLION, load)
        for load in (
            Load(4, 2048),
            Load(4, 2048, checkpointing=True),
            Load(4, 2048, half=True),
        )
    )
    assert saving.activations < plain.activations / 10
    # The residual stream and the norms keep float32.
    assert 0.5 < half.activations / plain.activations < 0.75
    assert half.total < plain.total
