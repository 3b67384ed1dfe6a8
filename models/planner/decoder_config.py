"""The sizes of a decoder as its transformers configuration has them."""

from collections.abc import Mapping
from typing import Any

from millrace.models.common.errors import InputError
from millrace.models.planner.decoder import Biases, Decoder, Experts, LatentAttention

NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
}
"""Sizes that a transformers configuration must have, and their keys there."""
UNGATED = ("gpt2", "gpt_neox", "opt", "phi", "falcon", "gptj", "gpt_bigcode", "bloom", "starcoder2")
"""`model_type` of decoders whose MLPs have no gate."""
WITH_LAYER_NORM = (*UNGATED, "stablelm", "cohere")
_BIASES: dict[str, Biases] = {
    **dict.fromkeys(("gpt2", "gpt_neox", "opt", "phi", "bloom", "gpt_bigcode"), "all"),
    **dict.fromkeys(("qwen2", "qwen2_moe"), "qkv"),
    "gpt_oss": "all",
}
_QUERY_KEY_NORM = ("qwen3", "qwen3_moe")
_FOUR_NORMS = ("gemma2", "gemma3_text")


def decoder_from_config(config: Mapping[str, Any], name: str = "the configuration") -> Decoder:
    """Return the sizes in a transformers configuration.

    Args:
        config: the configuration, as `config.json` has it.
        name: what the configuration is called in an error.

    Raises:
        InputError: a size is missing or is not a positive whole number, or the model is not a
            decoder.
    """
    sizes = {size: _size(config, keys, name) for size, keys in NAMES.items()}
    kind = str(config.get("model_type", ""))
    hidden, heads = sizes["hidden"], sizes["heads"]
    head_width = config.get("head_dim") or hidden // heads
    inner = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    intermediate = _first(config, inner) or 4 * hidden
    window, window_layers = _window_of(config)
    return Decoder(
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        vocabulary=sizes["vocabulary"],
        kv_heads=_kv_heads(config, kind, heads),
        head_width=int(head_width),
        intermediate=int(intermediate),
        gated=kind not in UNGATED,
        tied=bool(config.get("tie_word_embeddings", True)),
        positions=_positions(config, kind),
        biases=_biases_of(config, kind),
        norms=1 if kind in ("phi", "falcon") else 4 if kind in _FOUR_NORMS else 2,
        norm_bias=kind in WITH_LAYER_NORM,
        query_key_norm=kind in _QUERY_KEY_NORM,
        experts=_experts_of(config, int(intermediate)),
        latent=_latent_of(config),
        window=window,
        window_layers=window_layers,
    )


def _size(config: Mapping[str, Any], keys: tuple[str, ...], name: str) -> int:
    """Return a size that must be there."""
    value = _first(config, keys)
    if value is None:
        raise InputError(
            f"{name} does not say {keys[0]}",
            seen=", ".join(sorted(map(str, config))[:20]) or "no keys",
            valid=" or ".join(keys),
            hint="use the config.json of a transformers decoder",
        )
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"{name}: {keys[0]} is not a positive whole number",
            seen=repr(value),
            valid="1 or more",
        )
    return value


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int) -> int:
    if (
        kind == "falcon"
        and config.get("multi_query")
        and not config.get("new_decoder_architecture")
    ):
        return 1
    return int(_first(config, ("num_key_value_heads", "num_kv_heads", "n_head_kv")) or heads)


def _positions(config: Mapping[str, Any], kind: str) -> int:
    if kind in ("gpt2", "gpt_bigcode"):
        return int(_first(config, ("n_positions", "max_position_embeddings")) or 0)
    # OPT keeps two rows free before the first position.
    return int(config["max_position_embeddings"]) + 2 if kind == "opt" else 0


def _biases_of(config: Mapping[str, Any], kind: str) -> Biases:
    if kind in _BIASES:
        return _BIASES[kind]
    if config.get("mlp_bias"):
        return "all"
    return "attention" if config.get("attention_bias") else "none"


def _experts_of(config: Mapping[str, Any], intermediate: int) -> Experts | None:
    count = _first(config, ("num_local_experts", "n_routed_experts", "num_experts"))
    per_token = _first(config, ("num_experts_per_tok", "experts_per_token"))
    if not count or not per_token:
        return None
    width = int(config.get("moe_intermediate_size") or intermediate)
    shared = config.get("shared_expert_intermediate_size")
    if shared is None:
        shared = (config.get("n_shared_experts") or 0) * width
    return Experts(
        count=int(count),
        per_token=int(per_token),
        width=width,
        shared_width=int(shared),
        dense_layers=int(config.get("first_k_dense_replace") or 0),
    )


def _latent_of(config: Mapping[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    return LatentAttention(
        kv_rank=int(config["kv_lora_rank"]),
        rope_width=int(config["qk_rope_head_dim"]),
        nope_width=int(config["qk_nope_head_dim"]),
        value_width=int(config["v_head_dim"]),
        query_rank=int(config["q_lora_rank"]) if config.get("q_lora_rank") else None,
    )


def _window_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sliding window and the number of layers with it, which `layer_types` names."""
    layers = list(config.get("layer_types") or ()).count("sliding_attention")
    window = int(config.get("sliding_window") or 0)
    return (window, layers) if window and layers else (0, 0)
