"""The sizes of the decoder that a pipeline trains: from a base model, or from `model.params`."""

import json

import pytest

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import ModelSpec
from millrace.models.planner.decoder_config import decoder_from_config
from millrace.tasks.kinds.language.language_plan import decoder_of
from tests.unit.models.planner.test_decoder import GROUPED


def spec(**changed):
    return ModelSpec.model_validate({"family": "causal_lm"} | changed)


def test_a_base_model_has_the_sizes_of_its_folder(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(GROUPED))
    assert decoder_of(spec(pretrained="base"), tmp_path) == decoder_from_config(GROUPED)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    (tmp_path / "base").mkdir()
    with pytest.raises(InputError, match="configuration of the base model does not exist") as error:
        decoder_of(spec(pretrained="base"), tmp_path)
    assert error.value.seen == str(tmp_path / "base" / "config.json")


def test_a_hub_that_does_not_answer_is_an_input_error(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(InputError, match="model.pretrained 'nobody/small'") as error:
        decoder_of(spec(pretrained="nobody/small"), tmp_path)
    assert error.value.seen == "no route to host"


def test_wrong_sizes_of_the_file_are_named(tmp_path):
    params = {
        "architecture": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    }
    with pytest.raises(InputError, match="num_key_value_heads does not divide the 8 heads"):
        decoder_of(spec(params=params), tmp_path)
