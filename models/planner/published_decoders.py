"""The sizes of the decoders whose published times the planner is fitted on."""

from millrace.models.planner.decoder import Decoder
from millrace.models.planner.decoder_config import decoder_from_config

_LLAMA = {"model_type": "llama", "vocab_size": 128_256, "tie_word_embeddings": False}
_DEEPSEEK = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
}
DECODERS: dict[str, Decoder] = {
    "llama-3.1-8b": decoder_from_config(
        {
            **_LLAMA,
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14_336,
        }
    ),
    "llama-3.1-70b": decoder_from_config(
        {
            **_LLAMA,
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 28_672,
        }
    ),
    "qwen3-32b": decoder_from_config(
        {
            "model_type": "qwen3",
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 25_600,
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
        }
    ),
    # With the NextN module that predicts a second token left out, as it is without speculation.
    "deepseek-v3": decoder_from_config(
        {
            **_DEEPSEEK,
            "model_type": "deepseek_v3",
            "num_attention_heads": 128,
            "vocab_size": 129_280,
            "n_routed_experts": 256,
            "first_k_dense_replace": 3,
        }
    ),
    "kimi-k2.5": decoder_from_config(
        {
            **_DEEPSEEK,
            "model_type": "kimi_k2",
            "num_attention_heads": 64,
            "vocab_size": 163_840,
            "n_routed_experts": 384,
            "first_k_dense_replace": 1,
        }
    ),
    "minimax-m2.5": decoder_from_config(
        {
            "model_type": "minimax_m2",
            "num_hidden_layers": 62,
            "hidden_size": 3072,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 1536,
            "vocab_size": 200_064,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": False,
        }
    ),
    "qwen3-235b-a22b": decoder_from_config(
        {
            "model_type": "qwen3_moe",
            "num_hidden_layers": 94,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 1536,
            "vocab_size": 151_936,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": False,
        }
    ),
    "gpt-oss-120b": decoder_from_config(
        {
            "model_type": "gpt_oss",
            "num_hidden_layers": 36,
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "vocab_size": 201_088,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": False,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
        }
    ),
}
"""The decoders by name; their sizes are those of the `config.json` that each is published with."""
