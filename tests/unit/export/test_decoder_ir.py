"""Decoders of many architectures, tiny and random, through export and the engine."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace.export.language.engine_speed import EXACT, Engine
from millrace.export.language.fidelity import compare_tokens
from millrace.export.language.transformers_reference import continued
from millrace.export.openvino.decoder_ir import causal_mask, to_ir
from millrace.export.openvino.from_checkpoint import tokenizer_graphs
from millrace.models.common.errors import InputError
from tests.unit.export import language_models

PLAIN: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
WIDE = {**PLAIN, "head_dim": 16}
ALL_HEADS = {**PLAIN, "num_key_value_heads": 4}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
OPT = {
    **{"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 64, "word_embed_proj_dim": 32},
}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SERVED: dict[str, dict[str, Any]] = {
    "llama": PLAIN,
    "mistral": {**PLAIN, "sliding_window": None},
    "qwen2": PLAIN,
    "qwen3": WIDE,
    "gpt2": GPT2,
    "gpt_neox": ALL_HEADS,
    "phi": ALL_HEADS,
    "gemma": {**WIDE, "num_key_value_heads": 1},
    "olmo": PLAIN,
    "opt": OPT,
    "falcon": {**FALCON, "max_position_embeddings": 64},
    "mixtral": {**PLAIN, **EXPERTS, "sliding_window": None},
    "stablelm": PLAIN,
    "starcoder2": {**PLAIN, "sliding_window": 64},
}
REFUSED = {
    "gemma2": (WIDE, "scores are soft-capped"),
    "mistral": ({**PLAIN, "sliding_window": 16}, "looks back 16 tokens only"),
    "gpt_oss": ({**WIDE, **EXPERTS, "layer_types": ["full_attention"] * 2}, "has sinks"),
    "mamba": (
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "layers of linear_attention",
    ),
    "qwen3_next": (PLAIN, "linear_attention"),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
    "falcon": ({**FALCON, "alibi": True}, "ALiBi"),
    "gptj": ({**GPT2, "rotary_dim": 4}, "0 attention operations for 2 layers"),
    "deepseek_v3": (PLAIN, "paged attention supports 0 of its 2 layers"),
}
NEW = 12


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import openvino

    folder = tmp_path_factory.mktemp("tokenizer")
    graphs = tokenizer_graphs(language_models.tokenizer())
    for name, graph in zip(("openvino_tokenizer", "openvino_detokenizer"), graphs, strict=True):
        openvino.save_model(graph, folder / f"{name}.xml")
    return folder


def prompts() -> list[Any]:
    drawn = np.random.default_rng(0)
    return [drawn.integers(2, language_models.VOCABULARY, size) for size in (1, 6, 17, 17, 40)]


@pytest.mark.parametrize("kind", SERVED)
def test_the_engine_gives_transformers_greedy_tokens(
    kind: str, tokenizer_files: Path, tmp_path: Path
) -> None:
    import openvino

    model = language_models.decoder(kind, **SERVED[kind])
    variant = tmp_path / kind
    shutil.copytree(tokenizer_files, variant)
    openvino.save_model(to_ir(model), variant / "openvino_model.xml", compress_to_fp16=False)
    model.config.to_json_file(variant / "config.json")
    told = Engine(variant, EXACT).run(prompts(), NEW)
    with torch.inference_mode():
        answers = continued(model, prompts(), NEW)
    assert compare_tokens(answers, told.tokens).equal == len(prompts())
    assert len({token for answer in told.tokens for token in answer}) > 5


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_engine_would_not_compute_is_refused_with_the_reason(kind: str) -> None:
    config, reason = REFUSED[kind]
    model = language_models.decoder(kind, **config)
    with pytest.raises(InputError) as error:
        to_ir(model)
    assert reason in error.value.what


def test_the_model_is_left_as_it_was() -> None:
    model = language_models.decoder("mixtral", **SERVED["mixtral"]).train()
    config = model.config
    before = config._attn_implementation, config._experts_implementation
    to_ir(model)
    assert (config._attn_implementation, config._experts_implementation) == before
    assert model.training


def test_a_token_sees_itself_and_what_was_before_it_but_no_filled_place() -> None:
    mask = causal_mask(torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]), 2, 2)
    assert (mask == 0).int().tolist() == [
        [[[1, 1, 1, 0], [1, 1, 1, 1]]],
        [[[0, 1, 1, 0], [0, 1, 1, 1]]],
    ]
