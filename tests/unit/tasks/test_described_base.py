"""A base that is not registered yet is planned by its pipeline file."""

import pytest

from millrace.models.common.errors import InputError
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline_file import load_pipeline
from millrace.tasks.described_base import pinned_for_plan
from millrace.tasks.kinds.steps import steps_of

BASE = """
name: base
dataset: {source: x.csv, target: text, features: []}
model:
  family: causal_lm
  params: {architecture: llama, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
  tokenizer: {vocab_size: 512, max_tokens: 128}
"""
TUNED = """
name: tuned
dataset: {source: x.csv, target: answer, features: prompt}
model:
  family: causal_lm
  pretrained: models:/base@champion
  lora: {r: 4}
  tokenizer: {max_tokens: 64}
"""


@pytest.fixture
def pin(tmp_path, mlflow_places):
    def pinned(installation=mlflow_places):
        (tmp_path / "tuned.yaml").write_text(TUNED)
        pipeline = load_pipeline(tmp_path / "tuned.yaml")
        steps = steps_of(kind_of_family(pipeline.model.family))
        return pinned_for_plan(steps, pipeline, installation)

    return pinned


def test_the_sizes_are_those_of_the_file_of_the_base(tmp_path, pin, caplog):
    (tmp_path / "base.yaml").write_text(BASE)
    with caplog.at_level("INFO", "millrace"):
        model = pin().model
    assert (model.pretrained, model.params["hidden_size"]) == (None, 64)
    assert (model.tokenizer.vocab_size, model.tokenizer.max_tokens, model.lora.r) == (512, 64, 4)
    assert "base is not registered yet" in caplog.text


def test_a_home_without_a_registry_gets_none(tmp_path, pin, mlflow_places):
    (tmp_path / "base.yaml").write_text(BASE)
    empty = mlflow_places.__class__(tmp_path / "home", f"sqlite:///{tmp_path}/no.db", "tables")
    assert pin(empty).model.params["hidden_size"] == 64
    assert not (tmp_path / "no.db").exists()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "name: [",
        BASE.replace("name: base", "name: other"),
        TUNED.replace("tuned", "base"),
    ],
)
def test_without_such_a_file_the_missing_version_is_named(tmp_path, pin, text):
    if text is not None:
        (tmp_path / "base.yaml").write_text(text)
    with pytest.raises(InputError, match="base@champion"):
        pin()
