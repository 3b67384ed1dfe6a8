"""Configurations that are no decoder's, and files that are no configuration."""

import json

import pytest

from millrace.models.common.errors import InputError
from millrace.models.planner.decoder_config import decoder_from_config, read_decoder
from tests.unit.models.planner.test_decoder import EXPERTS, GROUPED, LATENT, SMALL

MIXED = EXPERTS | {"num_experts": 6}


def refused(changed):
    with pytest.raises(InputError) as error:
        decoder_from_config({"model_type": "llama"} | GROUPED | changed, "config.json")
    return error.value


def test_a_configuration_without_a_size_is_refused():
    error = refused({"hidden_size": None})
    assert error.what == "config.json does not say hidden_size"
    assert error.valid == "hidden_size or n_embd or d_model"


@pytest.mark.parametrize("value", [0, -4, 2.5, "many", True, [1, 2]])
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "head_dim", "num_key_value_heads", "intermediate_size"]
)
def test_a_size_is_a_positive_whole_number(key, value):
    error = refused({key: value})
    assert error.what == f"config.json: {key} is not a positive whole number"
    assert (error.seen, error.valid) == (repr(value), "1 or more")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads does not divide the 4 heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads does not divide the 4 heads"),
        ({"hidden_size": 4, "num_attention_heads": 8}, "does not divide the hidden size 4"),
        (MIXED | {"num_experts_per_tok": 7}, "num_experts_per_tok is more than the 6 experts"),
        (MIXED | {"first_k_dense_replace": 4}, "first_k_dense_replace is more than the 3 layers"),
        (MIXED | {"first_k_dense_replace": -1}, "first_k_dense_replace is not a whole number"),
        (MIXED | {"n_shared_experts": "two"}, "n_shared_experts is not a whole number"),
        ({"kv_lora_rank": 16}, "config.json does not say qk_rope_head_dim"),
        (LATENT | {"v_head_dim": -1}, "v_head_dim is not a positive whole number"),
        ({"sliding_window": "wide"}, "sliding_window is not a whole number"),
        ({"layer_types": 3}, "layer_types is not a list"),
        ({"model_type": "opt"}, "config.json does not say max_position_embeddings"),
        ({"model_type": "gpt2", "n_positions": "x"}, "n_positions is not a positive whole number"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changed, message):
    error = refused(changed)
    assert message in error.what
    assert error.seen
    assert error.valid
    assert error.hint


def test_zeros_that_configurations_are_published_with_mean_none():
    """Dense models have the keys of experts and of windows too."""
    zeros = {"num_local_experts": 0, "num_experts_per_tok": 0, "sliding_window": 0}
    plain = decoder_from_config(GROUPED)
    assert decoder_from_config(GROUPED | zeros | {"kv_lora_rank": None}) == plain


def test_latent_attention_has_no_heads_of_keys():
    config = SMALL | LATENT | {"num_attention_heads": 5, "num_key_value_heads": 128}
    assert decoder_from_config(config).latent is not None


def test_layers_that_are_not_there_have_no_window():
    types = {"sliding_window": 10, "layer_types": ["sliding_attention"] * 5}
    assert decoder_from_config(GROUPED | types).window_layers == 3


def test_a_file_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GROUPED))
    assert read_decoder(path) == decoder_from_config(GROUPED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is not a configuration"),
        ("null", "is not a configuration"),
        ('{"hidden_size": 3,', "cannot be read"),
        ("", "cannot be read"),
        ('{"hidden_size": 3}', "does not say num_hidden_layers"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_decoder(path)
    assert str(path) in error.value.what


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(InputError, match="the configuration of the base model does not exist"):
        read_decoder(path)
    path.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_decoder(path)
