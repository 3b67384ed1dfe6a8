import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from millrace.models.common.errors import InputError, WorkError
from millrace.models.language.causal_lm import build_decoder, config_of
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.models.language.decoder_checkpoint import save_decoder
from millrace.models.language.recipe import DecoderSpec, Lora
from tests.instruct_model import CHATML, chat_tokenizer

TOKENS = torch.arange(2, 20)[None]


def logits(decoder: Any) -> torch.Tensor:
    decoder.eval()
    with torch.no_grad():
        return decoder(input_ids=TOKENS).logits


def changed(spec: DecoderSpec, **params: Any) -> DecoderSpec:
    return dataclasses.replace(spec, params={**spec.params, **params})


@pytest.fixture(scope="module")
def saved(tiny: DecoderSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    save_decoder(folder, build_decoder(tiny, seed=1), tiny, None)
    return folder


def test_the_seed_tells_the_weights(tiny: DecoderSpec) -> None:
    one, same, other = (build_decoder(tiny, seed) for seed in (0, 0, 1))
    assert torch.equal(logits(one), logits(same))
    assert not torch.equal(logits(one), logits(other))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "mistral"])
def test_a_decoder_of_which_no_size_is_given_is_small(architecture: str) -> None:
    spec = DecoderSpec(512, 64, {"architecture": architecture}, eos_token_id=0, pad_token_id=1)
    assert build_decoder(spec, seed=0).num_parameters() < 20e6


def test_sizes_that_are_not_given_go_with_those_that_are() -> None:
    sizes = {"architecture": "llama", "hidden_size": 48, "num_attention_heads": 6}
    config = config_of(DecoderSpec(512, 64, sizes, eos_token_id=0, pad_token_id=1))
    assert (config.intermediate_size, config.num_key_value_heads) == (144, 6)
    named = {"architecture": "gpt2", "n_embd": 32, "n_head": 2}
    config = config_of(DecoderSpec(512, 64, named, eos_token_id=0, pad_token_id=1))
    assert (config.hidden_size, config.num_attention_heads, config.n_layer) == (32, 2, 4)


def test_the_context_and_the_tokens_are_the_tokenizers(tiny: DecoderSpec) -> None:
    for params in (tiny.params, {"architecture": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}):
        config = build_decoder(dataclasses.replace(tiny, params=params), 0).config
        assert (config.vocab_size, config.max_position_embeddings) == (64, 32)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, 0, 1)


def test_an_unknown_key_is_refused_with_the_nearest(tiny: DecoderSpec) -> None:
    with pytest.raises(InputError) as told:
        build_decoder(changed(tiny, num_hidden_layer=3), 0)
    assert "num_hidden_layer is not a key of model.params of llama" in told.value.what
    assert told.value.hint is not None
    assert "num_hidden_layers" in told.value.hint


def test_an_unknown_architecture_is_refused_with_the_nearest(tiny: DecoderSpec) -> None:
    with pytest.raises(InputError) as told:
        build_decoder(changed(tiny, architecture="lama"), 0)
    assert told.value.hint == "did you mean 'llama'?"


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"vocab_size": 99}, "value of vocab_size comes from the tokenizer"),
        ({"num_attention_heads": 5}, "cannot be built"),
        ({"max_position_embeddings": 16}, "does not fit the decoder"),
        ({"num_key_value_heads": 3}, "fails on a short sequence"),
    ],
)
def test_params_that_do_not_fit_are_told(
    tiny: DecoderSpec, params: dict[str, Any], what: str
) -> None:
    with pytest.raises(InputError, match=what):
        build_decoder(changed(tiny, **params), 0)


@pytest.mark.parametrize("architecture", ["mamba", "opt"])
def test_a_decoder_whose_pieces_see_each_other_is_refused(
    tiny: DecoderSpec, architecture: str
) -> None:
    params: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1}
    if architecture == "opt":
        params |= {"num_attention_heads": 2, "word_embed_proj_dim": 32, "ffn_dim": 64}
    params["architecture"] = architecture
    with pytest.raises(InputError, match="cannot be trained on packed sequences"):
        build_decoder(dataclasses.replace(tiny, params=params), 0)


def test_a_folder_is_read_again(tiny: DecoderSpec, saved: Path) -> None:
    read = build_decoder(dataclasses.replace(tiny, params={}, pretrained=str(saved)), seed=7)
    plain = AutoModelForCausalLM.from_pretrained(saved)
    assert torch.equal(logits(read), logits(build_decoder(tiny, seed=1)))
    assert torch.equal(logits(read), logits(plain))
    assert plain.generation_config.eos_token_id == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"pretrained": "/no/such/folder"}, "cannot be read"),
        ({"vocab_size": 65}, "does not fit the decoder"),
        ({"context": 33}, "does not fit the decoder"),
    ],
)
def test_a_pretrained_decoder_that_does_not_fit_is_told(
    tiny: DecoderSpec, saved: Path, changes: dict[str, Any], what: str
) -> None:
    given = {"params": {}, "pretrained": str(saved), **changes}
    with pytest.raises(InputError, match=what):
        build_decoder(dataclasses.replace(tiny, **given), 0)


def test_pickled_weights_are_not_read(tiny: DecoderSpec, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    torch.save(build_decoder(tiny, 0).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read"):
        build_decoder(dataclasses.replace(tiny, params={}, pretrained=str(tmp_path)), 0)


def test_the_merged_decoder_answers_as_the_adapted_one(
    tiny: DecoderSpec, saved: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    lora = Lora(r=4, alpha=8, target_modules=("q_proj", "down_proj"))
    spec = dataclasses.replace(tiny, params={}, pretrained=str(saved), lora=lora)
    adapted = build_decoder(spec, 0)
    trained = {name for name, each in adapted.named_parameters() if each.requires_grad}
    assert len(trained) == 2 * 2 * 2
    assert all("lora_" in name for name in trained)
    with torch.no_grad():
        for name, each in adapted.named_parameters():
            if name in trained:
                each.normal_(std=0.2)
    wanted = logits(adapted)
    save_decoder(tmp_path, adapted, spec, None)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(saved)
    torch.testing.assert_close(logits(merged), wanted, atol=1e-4, rtol=1e-4)
    assert (logits(base) - wanted).abs().max() > 0.01
    kept = PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(kept), wanted, atol=1e-4, rtol=1e-4)


def test_adapters_of_no_layer_are_refused_with_the_nearest(tiny: DecoderSpec, saved: Path) -> None:
    lora = Lora(target_modules=("q_projs",))
    with pytest.raises(InputError) as told:
        build_decoder(dataclasses.replace(tiny, params={}, pretrained=str(saved), lora=lora), 0)
    assert told.value.hint == "did you mean 'q_proj'?"
    with pytest.raises(InputError, match="from scratch"):
        build_decoder(dataclasses.replace(tiny, lora=Lora()), 0)


def test_a_tokenizer_goes_with_the_decoder(tiny: DecoderSpec, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    with pytest.raises(WorkError, match="were deleted"):
        save_decoder(tmp_path / "a", build_decoder(tiny, 0), tiny, tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json", "notes.txt"):
        (tokenizer / name).write_text("{}")
    save_decoder(tmp_path / "b", build_decoder(tiny, 0), tiny, tokenizer)
    assert {each.name for each in (tmp_path / "b").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_an_answer_ends_where_the_document_the_turn_and_the_pretrained_decoder_end(
    tmp_path: Path,
) -> None:
    end, pad, begin = 0, 1, 2
    words = chat_tokenizer(CHATML, begins=False)
    words.save_pretrained(tmp_path / "words")
    files = {file.name: file.read_bytes() for file in (tmp_path / "words").iterdir()}
    tokenizer = LanguageTokenizer(files)
    (turn_end,) = tokenizer.turn_ends
    spec = DecoderSpec(
        tokenizer.vocab_size, 64, eos_token_id=end, pad_token_id=pad, turn_end_ids=(turn_end,)
    )
    decoder = build_decoder(spec, seed=0)
    # a special token of the tokenizer, and one that is text there
    decoder.generation_config.eos_token_id = [begin, 100]
    save_decoder(tmp_path / "made", decoder, spec, tmp_path / "words")
    told = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert told["eos_token_id"] == [end, turn_end, begin]
    assert json.loads((tmp_path / "made" / "config.json").read_text())["eos_token_id"] == end
