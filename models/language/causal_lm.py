"""`causal_lm`: any decoder-only model of the transformers library, pretrained or from scratch.

Weights are read from safetensors only, and code that comes with a model is never run.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from millrace.models.common.errors import InputError, nearest
from millrace.models.common.quiet import quiet_transformers
from millrace.models.language.corpus.packing import require_pieces_apart
from millrace.models.language.lora import with_adapters
from millrace.models.language.recipe import DecoderSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ARCHITECTURE = "architecture"
_OF_THE_TOKENIZER = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")


def build_decoder(spec: DecoderSpec, seed: int) -> "PreTrainedModel":
    """Return the decoder on the CPU, in float32 and training mode; `spec.lora` adds adapters.

    The same seed gives the same weights in every process.

    Args:
        spec: spec of the decoder.
        seed: seed of the weights that are not pretrained.

    Raises:
        InputError: the params do not fit the decoder, the pretrained model cannot be read, the
            decoder does not fit the tokenizer, or its attention crosses the documents of a packed
            sequence.
    """
    if spec.lora is not None and spec.pretrained is None:
        raise InputError(
            "model.lora needs a pretrained model: a decoder from scratch has no weights to adapt",
            seen="model.lora without model.pretrained",
            valid="model.lora with model.pretrained",
            hint="set model.pretrained, or leave model.lora out",
        )
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        decoder = _from_scratch(spec) if spec.pretrained is None else _read(spec)
        require_pieces_apart(decoder)
        if spec.lora is not None:
            decoder = with_adapters(decoder, spec.lora)
    decoder.train()
    return decoder


def config_of(spec: DecoderSpec) -> "PretrainedConfig":
    """Return the config of a decoder from scratch.

    Raises:
        InputError: there is no such architecture or key, or the values contradict each other.
    """
    from transformers import CONFIG_MAPPING

    name = _architecture(spec.params)
    kind = CONFIG_MAPPING[name]
    params = {key: value for key, value in spec.params.items() if key != ARCHITECTURE}
    known = _keys(kind)
    _require_known(params, known, f"model.params of {name}")
    given: dict[str, Any] = {
        key: getattr(spec, key) for key in _OF_THE_TOKENIZER if key in known or key == "vocab_size"
    }
    if "max_position_embeddings" in known:
        # under the architecture's own name for the key, because the alias would be ignored
        own = kind.attribute_map.get("max_position_embeddings", "max_position_embeddings")
        given[own] = spec.context
    for key, value in _sizes(params).items():
        if key in known and kind.attribute_map.get(key) not in params:
            given[kind.attribute_map.get(key, key)] = value
    try:
        return kind(**{**given, **params})
    except Exception as error:  # a config may raise anything on wrong values
        raise _misfit(name, error) from error


def _sizes(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a small decoder, overridden by `params`.

    The default sizes of transformers are those of a large decoder.
    """
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, **params}
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    derived = {"intermediate_size": 3 * width} if isinstance(width, int) else {}
    return {**derived, "num_key_value_heads": heads, **sizes}


def _from_scratch(spec: DecoderSpec) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    config = config_of(spec)
    _require_fit(config, config.model_type, spec)
    try:
        made = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        return cast("PreTrainedModel", made)
    except Exception as error:  # a constructor may raise anything on a wrong config
        raise _misfit(config.model_type, error) from error


def _read(spec: DecoderSpec) -> "PreTrainedModel":
    from transformers import AutoConfig, AutoModelForCausalLM

    name = str(spec.pretrained)
    options: dict[str, Any] = {"revision": spec.revision, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except Exception as error:  # transformers may raise anything on a damaged folder
        raise _unreadable(name, error) from error
    _require_known(spec.params, _keys(type(config)), f"model.params of {name!r}")
    for key, value in spec.params.items():
        setattr(config, key, value)
    _require_fit(config, name, spec)
    try:
        return cast(
            "PreTrainedModel",
            AutoModelForCausalLM.from_pretrained(
                name, config=config, dtype=torch.float32, use_safetensors=True, **options
            ),
        )
    except Exception as error:  # transformers may raise anything on a damaged folder
        raise _unreadable(name, error) from error


def _architecture(params: Mapping[str, Any]) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    name = params.get(ARCHITECTURE, "llama")
    if name in known:
        return str(name)
    raise InputError(
        f"model.params.architecture {name!r} is not a decoder-only model of transformers",
        seen=name,
        valid="llama, qwen3, mistral, gpt2, … (the model_type of a config.json)",
        hint=nearest(str(name), known),
    )


def _keys(kind: "type[PretrainedConfig]") -> list[str]:
    """Return the keys that a config class adds to `PretrainedConfig`, `dtype`, and all aliases."""
    from transformers import PretrainedConfig

    base = {each.name for each in dataclasses.fields(PretrainedConfig)}
    own = [each.name for each in dataclasses.fields(kind)]
    return [*(key for key in own if key not in base or key == "dtype"), *kind.attribute_map]


def _require_known(params: Mapping[str, Any], known: list[str], where: str) -> None:
    free = [key for key in known if key not in (*_OF_THE_TOKENIZER, "dtype", "use_cache")]
    for key in params:
        if key in _OF_THE_TOKENIZER:
            raise InputError(
                f"{key} is not a key of {where}: the value of {key} comes from the tokenizer",
                seen=f"{key}: {params[key]}",
                hint="remove the key; model.tokenizer.vocab_size sets the size of a trained "
                "tokenizer",
            )
        if key not in free:
            raise InputError(
                f"{key} is not a key of {where}",
                seen=key,
                valid=", ".join(sorted(free)),
                hint=nearest(key, free),
            )


def _require_fit(config: "PretrainedConfig", name: str, spec: DecoderSpec) -> None:
    """Refuse a decoder with a smaller vocabulary or context than training needs."""
    text = config.get_text_config(decoder=True)
    positions = getattr(text, "max_position_embeddings", None)
    limits = {
        "tokens in the vocabulary of the tokenizer": (spec.vocab_size, text.vocab_size),
        "tokens in model.tokenizer.max_tokens": (spec.context, positions or spec.context),
    }
    for what, (given, most) in limits.items():
        if given > most:
            raise InputError(
                f"the tokenizer does not fit the decoder {name!r}",
                seen=f"{given} {what}",
                valid=f"at most {most}, as in the decoder's config",
                hint="lower model.tokenizer.max_tokens, or leave model.tokenizer.source out",
            )


def _misfit(name: str, error: Exception) -> InputError:
    return InputError(
        f"the decoder {name!r} cannot be built with these params",
        seen=" ".join(str(error).split()) or type(error).__name__,
        valid="values that fit together in the decoder's config",
        hint="fix model.params: hidden_size must be a multiple of num_attention_heads, and "
        "num_attention_heads of num_key_value_heads",
    )


def _unreadable(name: str, error: Exception) -> InputError:
    return InputError(
        f"model.pretrained {name!r} cannot be read",
        seen=(str(error) or type(error).__name__).splitlines()[0],
        valid="a folder beside the pipeline file, or a name on the Hugging Face hub, with "
        "config.json and model.safetensors of a decoder",
        hint="for a folder, check the path; for a name on the hub, check the network",
    )
