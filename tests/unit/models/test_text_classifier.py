import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, T5Config

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family import build_network
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.models.training.checkpoint import TrainState, load_weights, save_checkpoint

LABELS = ("a", "b", "c")
OBJECTIVE = Classification(LABELS)
TOKENIZER = train_tokenizer(["one two three", "four five six"], vocab_size=280, max_tokens=16)
ENCODING = Encoding((Feature("body", "text", 16),), "t", LABELS, tokenizer=TOKENIZER)
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def spec_of(**values: object) -> ModelSpec:
    return ModelSpec.model_validate({"family": "text_classifier", **values})


def pretrained(folder: Path, **values: int) -> BertModel:
    """Write a BERT with a pooler, as they come."""
    config = BertConfig(
        **{
            "vocab_size": TOKENIZER.vocab_size,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 16,
            **values,
        }
    )
    made = BertModel(config)
    made.save_pretrained(folder)
    return made


def test_padding_changes_no_answer(tmp_path: Path) -> None:
    network = build_network(spec_of(params=SMALL), tmp_path, ENCODING, OBJECTIVE).eval()
    rows = ENCODING.tokenizer.ids(["one", "one two three four"])  # type: ignore[union-attr]
    with torch.inference_mode():
        whole = network(torch.from_numpy(rows)).numpy()
        for row in range(2):
            alone = ENCODING.input.trimmed(rows[row : row + 1])
            assert alone.shape[1] < 16
            answer = network(torch.from_numpy(alone)).numpy()
            np.testing.assert_allclose(answer, whole[row : row + 1], atol=1e-5)


def test_a_pretrained_encoder_gives_its_weights(tmp_path: Path) -> None:
    made = pretrained(tmp_path / "encoder")
    network = build_network(spec_of(pretrained="encoder"), tmp_path, ENCODING, OBJECTIVE)
    found = dict(network.named_parameters())
    word = "net.encoder.embeddings.word_embeddings.weight"
    torch.testing.assert_close(found[word], made.embeddings.word_embeddings.weight)
    assert not [name for name in found if "pooler" in name]  # it would get no gradient


def test_weights_go_through_a_checkpoint(tmp_path: Path) -> None:
    one = build_network(spec_of(params=SMALL), tmp_path, ENCODING, OBJECTIVE).eval()
    other = build_network(spec_of(params=SMALL), tmp_path, ENCODING, OBJECTIVE).eval()
    save_checkpoint(tmp_path, one, {}, TrainState())
    load_weights(tmp_path, other)
    rows = torch.from_numpy(ENCODING.input.example(2))
    torch.testing.assert_close(one(rows), other(rows))


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ({"max_position_embeddings": 8}, "16 tokens in model.tokenizer"),
        ({"vocab_size": 100}, "voc"),
    ],
)
def test_an_encoder_that_the_tokenizer_does_not_fit_is_refused(
    tmp_path: Path, values: dict[str, int], seen: str
) -> None:
    pretrained(tmp_path / "encoder", **values)
    with pytest.raises(InputError, match="does not fit the encoder") as error:
        build_network(spec_of(pretrained="encoder"), tmp_path, ENCODING, OBJECTIVE)
    assert seen in str(error.value.seen)


def test_an_encoder_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    with pytest.raises(InputError, match="'.*encoder' cannot be read"):
        build_network(spec_of(pretrained="encoder"), tmp_path, ENCODING, OBJECTIVE)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    made = pretrained(tmp_path / "encoder")
    (tmp_path / "encoder" / "model.safetensors").unlink()
    torch.save(made.state_dict(), tmp_path / "encoder" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read") as error:
        build_network(spec_of(pretrained="encoder"), tmp_path, ENCODING, OBJECTIVE)
    assert "safetensors" in str(error.value.seen)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    pretrained(tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (tmp_path / "encoder" / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (tmp_path / "encoder" / "own.py").write_text(f"open({str(ran)!r}, 'w').close()")
    with pytest.raises(InputError, match="cannot be read"):
        build_network(spec_of(pretrained="encoder"), tmp_path, ENCODING, OBJECTIVE)
    assert not ran.exists()


def test_a_model_with_a_decoder_is_refused(tmp_path: Path) -> None:
    from transformers import T5Model

    config = T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="is not an encoder"):
        build_network(spec_of(pretrained="t5"), tmp_path, ENCODING, OBJECTIVE)


def test_a_family_of_numbers_does_not_read_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'mlp' does not read text"):
        build_network(ModelSpec(family="mlp"), tmp_path, ENCODING, OBJECTIVE)


def test_the_family_of_text_does_not_read_numbers(tmp_path: Path) -> None:
    numbers = Encoding((Feature("a", "number"),), "t", LABELS)
    with pytest.raises(InputError, match="reads one text") as error:
        build_network(spec_of(), tmp_path, numbers, OBJECTIVE)
    assert "{type: text}" in str(error.value.valid)


def test_a_user_s_own_class_may_read_text(tmp_path: Path) -> None:
    (tmp_path / "bags.py").write_text(
        "from torch import nn\n"
        "class Bag(nn.Module):\n"
        "    def __init__(self, num_classes, vocab_size, padding, max_tokens):\n"
        "        super().__init__()\n"
        "        self.bag = nn.EmbeddingBag(vocab_size, num_classes, padding_idx=padding)\n"
        "    def forward(self, input_ids):\n"
        "        return self.bag(input_ids)\n"
    )
    network = build_network(ModelSpec(family="bags:Bag"), tmp_path, ENCODING, OBJECTIVE)
    assert network(torch.from_numpy(ENCODING.input.example(2))).shape == (2, 3)
