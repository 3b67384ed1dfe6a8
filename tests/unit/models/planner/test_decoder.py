"""A decoder's sizes, beside those of the modules that transformers builds."""

from dataclasses import replace

import pytest
from torch import nn

from millrace.models.planner.decoder_config import decoder_from_config
from millrace.models.planner.serving_time import read_parameters

SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
GPT2 = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 300, "n_positions": 50}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "q_lora_rank": 24,
}
CONFIGS = {
    "llama": GROUPED | {"tie_word_embeddings": False},
    "llama-tied": GROUPED | {"tie_word_embeddings": True},
    "llama-biases": GROUPED | {"attention_bias": True, "mlp_bias": True},
    "mistral": GROUPED,
    "qwen2": GROUPED | {"tie_word_embeddings": True},
    "qwen3": GROUPED | {"head_dim": 24},
    "gemma": GROUPED | {"head_dim": 16},
    "gpt2": GPT2,
    "gpt_neox": SMALL,
    "opt": SMALL | {"ffn_dim": 96, "max_position_embeddings": 50, "word_embed_proj_dim": 64},
    "phi": SMALL,
    "falcon": SMALL | {"ffn_hidden_size": 96, "multi_query": True, "parallel_attn": True},
    "olmo2": GROUPED,
    "mixtral": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": GROUPED | EXPERTS | {"num_experts": 6, "head_dim": 16},
    "gpt_oss": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "deepseek_v3": SMALL
    | EXPERTS
    | LATENT
    | {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2},
}


@pytest.fixture(params=CONFIGS)
def built(request):
    """A configuration, and the model that transformers builds of it, without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(request.param.partition("-")[0], **CONFIGS[request.param])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return config.to_dict(), model


WITH_OTHERS = ("phi", "olmo2", "gpt_oss")
"""Decoders with a few parameters that are not counted: a bias of the head, wider norms, sinks."""


def test_parameters_are_those_of_the_modules(built):
    config, model = built
    counted = decoder_from_config(config).parameters
    there = sum(p.numel() for p in model.parameters())
    assert there - counted in (range(1, 1000) if config["model_type"] in WITH_OTHERS else (0,))


def test_matrices_are_those_of_the_modules(built):
    config, model = built
    decoder = decoder_from_config(config)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables.discard(id(model.get_output_embeddings().weight))
    matrices = sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.ndim > 1 and id(p) not in tables and not name.endswith("bias")
    )
    assert read_parameters(decoder, 1e9) == pytest.approx(matrices)


def test_a_token_uses_its_own_experts_only():
    decoder = decoder_from_config(
        {"model_type": "mixtral", "tie_word_embeddings": False}
        | GROUPED
        | {"num_local_experts": 4, "num_experts_per_tok": 2}
    )
    expert = 3 * 64 * 96
    assert decoder.parameters - decoder.active_parameters == 3 * 2 * expert
    assert read_parameters(decoder, 1) == decoder.matrix_parameters


def test_more_tokens_read_more_experts():
    decoder = decoder_from_config(
        {"model_type": "mixtral"} | GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 1}
    )
    read = [read_parameters(decoder, tokens) for tokens in (1, 2, 8, 1000)]
    assert read == sorted(read)
    assert read[1] - read[0] == pytest.approx(0.75 * 3 * 3 * 64 * 96)


def test_grouped_queries_keep_a_smaller_cache():
    decoder = decoder_from_config({"model_type": "llama"} | SMALL)
    grouped = replace(decoder, kv_heads=1)
    assert decoder.kv_bytes_per_token() == 4 * grouped.kv_bytes_per_token()


def test_a_sliding_window_bounds_what_a_token_attends_to():
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    config = {"model_type": "gpt_oss", "sliding_window": 10, "layer_types": layers}
    windowed = decoder_from_config(GROUPED | config)
    plain = decoder_from_config(GROUPED | {"model_type": "gpt_oss"})
    assert windowed.attended_layer_tokens(4) == plain.attended_layer_tokens(4) == 12
    assert windowed.attended_layer_tokens(100) == 100 + 2 * 10
    less = plain.forward_flops(100) - windowed.forward_flops(100)
    assert less == 4 * 64 * 2 * (100 - 10)
