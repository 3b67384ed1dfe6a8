"""The formulas give the figures that the papers print; docs/planner.md names each source."""

from dataclasses import replace

import pytest

from millrace.models.planner.decoder_config import decoder_from_config
from millrace.models.planner.parallelism import Layout, pipeline_bubble
from millrace.models.planner.published_training import gpt_decoder
from millrace.models.planner.serving_memory import weight_bytes
from millrace.models.planner.training_flops import (
    flops_per_token,
    flops_utilization,
    hardware_flops,
    model_flops,
    training_days,
)
from millrace.models.planner.training_memory import activation_bytes, state_bytes

GIB = 2**30
A100 = 312e12


TABLE_1 = [
    (24, 2304, 24, 1.7),
    (30, 3072, 32, 3.6),
    (36, 4096, 32, 7.5),
    (40, 6144, 48, 18.4),
    (48, 8192, 64, 39.1),
    (60, 10240, 80, 76.1),
    (80, 12288, 96, 145.6),
    (96, 16384, 128, 310.1),
    (105, 20480, 128, 529.6),
    (128, 25600, 160, 1008.0),
]
"""Layers, hidden size, heads and billions of parameters of 2104.04473, table 1."""


@pytest.mark.parametrize(("layers", "hidden", "heads", "billions"), TABLE_1)
def test_parameters_of_megatrons_models(layers, hidden, heads, billions):
    assert round(gpt_decoder(layers, hidden, heads).parameters / 1e9, 1) == billions


def test_parameters_follow_equation_2():
    layers, hidden = 96, 12288
    given = (
        12
        * layers
        * hidden**2
        * (1 + 13 / (12 * hidden) + (51_200 + 2048) / (12 * layers * hidden))
    )
    assert gpt_decoder(layers, hidden, 96).parameters == pytest.approx(given, rel=1e-12)


def test_flops_of_a_step_follow_equation_3():
    batch, context, layers, hidden = 1536, 2048, 96, 12288
    given = (
        96
        * batch
        * context
        * layers
        * hidden**2
        * (1 + context / (6 * hidden) + 51_200 / (16 * layers * hidden))
    )
    decoder = gpt_decoder(layers, hidden, 96)
    assert hardware_flops(decoder, batch, context, "full") == pytest.approx(given, rel=1e-12)


KORTHIKANTI = {
    "22B": (gpt_decoder(48, 6144, 64), 4, Layout(8, 1)),
    "175B": (gpt_decoder(96, 12288, 96), 1, Layout(8, 8, virtual_stages=3)),
    "530B": (gpt_decoder(105, 20480, 128), 1, Layout(8, 35, virtual_stages=3)),
    "1T": (gpt_decoder(128, 25600, 160), 1, Layout(8, 64)),
}
"""Decoder, sequences of a micro-batch and layout of 2205.05198, table 3."""


@pytest.mark.parametrize(
    ("name", "tensor_only", "with_sequence_and_selective"),
    [("22B", 59.25, 9.56), ("175B", 66.84, 12.35), ("530B", 114.02, 23.08), ("1T", 131.25, 26.56)],
)
def test_activations_of_korthikantis_models(name, tensor_only, with_sequence_and_selective):
    decoder, sequences, layout = KORTHIKANTI[name]
    selective = replace(layout, sequence_parallel=True, recompute="selective")
    plain = activation_bytes(decoder, sequences, 2048, layout)
    saving = activation_bytes(decoder, sequences, 2048, selective)
    assert round(plain / GIB, 2) == tensor_only
    assert round(saving / GIB, 2) == with_sequence_and_selective


@pytest.mark.parametrize(
    ("name", "stages", "gib"),
    [("22B", 1, 45.56), ("175B", 8, 45.56), ("530B", 35, 31.64), ("1T", 64, 32.96)],
)
def test_states_of_korthikantis_models(name, stages, gib):
    """Their figure counts the matrices of the layers, with 18 bytes: gradients in float32."""
    decoder = KORTHIKANTI[name][0]
    matrices = 12 * decoder.layers * decoder.hidden**2 / (8 * stages)
    assert round(state_bytes(matrices, "ddp", 1, gradient=4).total / GIB, 2) == gib


@pytest.mark.parametrize(
    ("name", "batch", "seconds", "percent"),
    [
        ("22B", 4, 1.10, 41.5),
        ("175B", 64, 13.75, 51.4),
        ("530B", 280, 37.83, 56.0),
        ("1T", 512, 71.49, 56.3),
    ],
)
def test_mfu_of_korthikantis_step_times(name, batch, seconds, percent):
    decoder, _, layout = KORTHIKANTI[name]
    flops = model_flops(decoder, batch, 2048)
    mfu = flops_utilization(flops, seconds, A100, layout.world_size)
    assert 100 * mfu == pytest.approx(percent, abs=0.3)


@pytest.mark.parametrize(
    ("sharding", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.88)]
)
def test_memory_by_zero_stage(sharding, gigabytes):
    size = state_bytes(7.5e9, sharding, 64).total / 1e9
    assert float(f"{size:.3g}") == pytest.approx(gigabytes, abs=0.05 if gigabytes > 10 else 0.005)


def llama(layers, hidden, heads, kv_heads, inner, vocabulary=128_256):
    return decoder_from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": inner,
            "vocab_size": vocabulary,
            "tie_word_embeddings": False,
        }
    )


DEEPSEEK_V3 = decoder_from_config(
    {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129_280,
        "tie_word_embeddings": False,
    }
)
LLAMA_3_405B = llama(126, 16_384, 128, 8, 53_248)


@pytest.mark.parametrize(
    ("decoder", "size"),
    [
        (llama(32, 4096, 32, 8, 14_336), 131_072),
        (llama(80, 8192, 64, 8, 28_672), 327_680),
        (LLAMA_3_405B, 516_096),
        (llama(32, 4096, 32, 32, 11_008, 32_000), 524_288),
        (gpt_decoder(96, 12_288, 96), 4_718_592),
        (DEEPSEEK_V3, 70_272),
    ],
    ids=["llama-3-8b", "llama-3-70b", "llama-3-405b", "llama-2-7b", "gpt-3", "deepseek-v3"],
)
def test_kv_cache_of_a_token(decoder, size):
    assert decoder.kv_bytes_per_token() == size


def test_parameters_of_deepseek_v3():
    assert round(DEEPSEEK_V3.parameters / 1e9, 1) == 671.0
    assert round(DEEPSEEK_V3.active_parameters / 1e9, 1) == 37.6  # the embedding table included


def test_parameters_of_llama_3_405b():
    assert round(LLAMA_3_405B.parameters / 1e9, 1) == 405.9


def test_mfu_of_palm():
    flops = flops_per_token(540.35e9, 0, 118 * 48 * 256, 2048)
    mfu = flops_utilization(238.3e3 * flops, 1, 275e12, 6144)
    assert round(100 * mfu, 1) == 46.2


@pytest.mark.parametrize(
    ("parameters", "tokens", "devices", "flops", "days"),
    [(175e9, 300e9, 1024, 140e12, 33.9), (1e12, 450e9, 3072, 163e12, 83.2)],
)
def test_days_of_a_training(parameters, tokens, devices, flops, days):
    assert training_days(parameters, tokens, devices, flops) == pytest.approx(days, abs=0.05)


@pytest.mark.parametrize(
    ("parameters", "data_type", "gigabytes"),
    [
        (7e9, "fp16", 14),
        (7e9, "int8", 7),
        (7e9, "int4", 3.5),
        (70e9, "bf16", 140),
        (70e9, "fp4", 35),
    ],
)
def test_weights_by_data_type(parameters, data_type, gigabytes):
    assert weight_bytes(parameters, data_type) == gigabytes * 1e9


@pytest.mark.parametrize(("mfu", "days"), [(0.32, 100), (0.36, 90)])
def test_days_of_gpt_4(mfu, days):
    """2.15e25 operations on 25,000 A100 in 90 to 100 days, as SemiAnalysis estimates."""
    seconds = 2.15e25 / (25_000 * A100 * mfu)
    assert seconds / 86_400 == pytest.approx(days, rel=0.15)


def test_bubble_of_a_pipeline():
    assert pipeline_bubble(Layout(pipeline_parallel=8), 64) == 7 / 64
    assert pipeline_bubble(Layout(pipeline_parallel=8, virtual_stages=2), 64) == 7 / 128
