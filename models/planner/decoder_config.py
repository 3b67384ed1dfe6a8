"""The sizes of a decoder as its transformers configuration has them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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


HINT = "sizes have the keys of a transformers decoder's config.json"


@dataclass(frozen=True)
class _Config:
    """A transformers configuration whose sizes are checked as they are read.

    Attributes:
        keys: its keys and values.
        name: what it is called in an error.
    """

    keys: Mapping[str, Any]
    name: str

    def first(self, *names: str) -> str | None:
        """Return the first of some keys that has a value; None if none has."""
        return next((each for each in names if self.keys.get(each) is not None), None)

    def size(self, *names: str, least: int = 1) -> int | None:
        """Return the value of the first of some keys that has one; None if none has.

        Raises:
            InputError: it is not a whole number, or too small.
        """
        key = self.first(*names)
        if key is None:
            return None
        value = self.keys[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = "positive whole" if least else "whole"
            raise self.error(key, f"is not a {kind} number", valid=f"{least} or more")
        return value

    def required(self, *names: str) -> int:
        """Return a size that must be there."""
        value = self.size(*names)
        if value is None:
            raise InputError(
                f"{self.name} does not say {names[0]}",
                seen=", ".join(sorted(map(str, self.keys))[:20]) or "no keys",
                valid=" or ".join(names),
                hint=HINT,
            )
        return value

    def error(self, key: str, fault: str, *, valid: str) -> InputError:
        """Return the error of a key's value."""
        seen = repr(self.keys[key])[:80]
        return InputError(f"{self.name}: {key} {fault}", seen=seen, valid=valid, hint=HINT)


def read_decoder(path: Path) -> Decoder:
    """Return the sizes in a `config.json`.

    Raises:
        InputError: the file does not exist, is not a JSON object, or is not a decoder's.
    """
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            "the configuration of the base model does not exist",
            seen=path,
            valid="the config.json of a transformers decoder",
            hint="name a folder that has one, or a model on the Hugging Face hub",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        seen = str(error)
        raise InputError(f"{path} cannot be read", seen=seen, valid="JSON", hint=HINT) from error
    if not isinstance(config, dict):
        raise InputError(
            f"{path} is not a configuration",
            seen=type(config).__name__,
            valid="a JSON object with keys such as hidden_size",
            hint=HINT,
        )
    return decoder_from_config(config, str(path))


def decoder_from_config(values: Mapping[str, Any], name: str = "the configuration") -> Decoder:
    """Return the sizes in a transformers configuration.

    Args:
        values: the configuration, as `config.json` has it.
        name: what the configuration is called in an error.

    Raises:
        InputError: a size is missing or is not a positive whole number, two sizes contradict each
            other, or the model is not a decoder.
    """
    config = _Config(values, name)
    sizes = {size: config.required(*keys) for size, keys in NAMES.items()}
    kind = str(values.get("model_type", ""))
    hidden, heads = sizes["hidden"], sizes["heads"]
    inner = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    intermediate = config.size(*inner) or 4 * hidden
    latent = _latent_of(config)
    window, window_layers = _window_of(config, sizes["layers"])
    return Decoder(
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        vocabulary=sizes["vocabulary"],
        kv_heads=_kv_heads(config, kind, heads, is_latent=latent is not None),
        head_width=_head_width(config, hidden, heads, is_latent=latent is not None),
        intermediate=intermediate,
        gated=kind not in UNGATED,
        tied=bool(values.get("tie_word_embeddings", True)),
        positions=_positions(config, kind),
        biases=_biases_of(values, kind),
        norms=1 if kind in ("phi", "falcon") else 4 if kind in _FOUR_NORMS else 2,
        norm_bias=kind in WITH_LAYER_NORM,
        query_key_norm=kind in _QUERY_KEY_NORM,
        experts=_experts_of(config, intermediate, sizes["layers"]),
        latent=latent,
        window=window,
        window_layers=window_layers,
    )


def _kv_heads(config: _Config, kind: str, heads: int, *, is_latent: bool) -> int:
    """Return the heads of keys and values, which latent attention does not have."""
    values, keys = config.keys, ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    if (
        kind == "falcon"
        and values.get("multi_query")
        and not values.get("new_decoder_architecture")
    ):
        return 1
    key, groups = config.first(*keys), config.size(*keys)
    if key is None or groups is None:
        return heads
    if heads % groups and not is_latent:
        valid = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise config.error(key, f"does not divide the {heads} heads", valid=valid)
    return groups


def _head_width(config: _Config, hidden: int, heads: int, *, is_latent: bool) -> int:
    """Return the width of a head: `head_dim`, or else the heads' equal parts of the hidden size."""
    width = config.size("head_dim")
    if width is None and hidden % heads and not is_latent:
        key = config.first(*NAMES["heads"]) or NAMES["heads"][0]
        fault = f"does not divide the hidden size {hidden}, and there is no head_dim"
        raise config.error(key, fault, valid=f"a divisor of {hidden}, or head_dim beside it")
    return width or hidden // heads


def _positions(config: _Config, kind: str) -> int:
    if kind in ("gpt2", "gpt_bigcode"):
        return config.size("n_positions", "max_position_embeddings") or 0
    # OPT keeps two rows free before the first position.
    return config.required("max_position_embeddings") + 2 if kind == "opt" else 0


def _biases_of(config: Mapping[str, Any], kind: str) -> Biases:
    if kind in _BIASES:
        return _BIASES[kind]
    if config.get("mlp_bias"):
        return "all"
    return "attention" if config.get("attention_bias") else "none"


def _experts_of(config: _Config, intermediate: int, layers: int) -> Experts | None:
    of_token = ("num_experts_per_tok", "experts_per_token")
    count = config.size("num_local_experts", "n_routed_experts", "num_experts", least=0)
    per_token = config.size(*of_token, least=0)
    if not count or not per_token:
        return None
    if per_token > count:
        key = config.first(*of_token) or of_token[0]
        raise config.error(key, f"is more than the {count} experts", valid=f"1 to {count}")
    dense = config.size("first_k_dense_replace", least=0) or 0
    if dense > layers:
        fault = f"is more than the {layers} layers"
        raise config.error("first_k_dense_replace", fault, valid=f"0 to {layers}")
    width = config.size("moe_intermediate_size") or intermediate
    shared = config.size("shared_expert_intermediate_size", least=0)
    if shared is None:
        shared = (config.size("n_shared_experts", least=0) or 0) * width
    return Experts(count, per_token, width, shared_width=shared, dense_layers=dense)


def _latent_of(config: _Config) -> LatentAttention | None:
    kv_rank = config.size("kv_lora_rank", least=0)
    if not kv_rank:
        return None
    return LatentAttention(
        kv_rank=kv_rank,
        rope_width=config.required("qk_rope_head_dim"),
        nope_width=config.required("qk_nope_head_dim"),
        value_width=config.required("v_head_dim"),
        query_rank=config.size("q_lora_rank", least=0) or None,
    )


def _window_of(config: _Config, layers: int) -> tuple[int, int]:
    """Return the sliding window and the number of layers with it, which `layer_types` names."""
    types = config.keys.get("layer_types") or []
    if not isinstance(types, list | tuple):
        raise config.error("layer_types", "is not a list", valid="a type for each layer")
    window = config.size("sliding_window", least=0)
    windowed = types[:layers].count("sliding_attention")
    return (window, windowed) if window and windowed else (0, 0)
