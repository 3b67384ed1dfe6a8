import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import ModelSpec, TokenizerSpec
from millrace.models.families.pretrained import load_tokenizer, pin_revision, resolve_pretrained
from millrace.models.inference.tokenizer import MISSING, TextTokenizer, train_tokenizer

TEXTS = ["def f(x):\n    return x", "import os", "class A:\n    pass"] * 5
ODD = ["", "a" * 10_000, "\U0001f600 ok", "\u05e9\u05dc\u05d5\u05dd", "a\x00b", "\x00", "\n\t "]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(TEXTS, vocab_size=300, max_tokens=16)


def test_a_text_has_ends_and_is_filled_up(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.ids(["import os", ""])
    assert ids.shape == (2, 16)
    begin, end = ids[1, 0], ids[1, 1]
    assert (ids[1, 2:] == tokenizer.padding).all()
    assert ids[0, 0] == begin
    length = int((ids[0] != tokenizer.padding).sum())
    assert ids[0, length - 1] == end


@pytest.mark.parametrize("text", ODD)
def test_every_text_has_known_tokens_and_none_is_longer_than_it_may_be(
    tokenizer: TextTokenizer, text: str
) -> None:
    ids = tokenizer.ids([text])
    assert ids.shape == (1, 16)
    assert ((ids >= 0) & (ids < tokenizer.vocab_size)).all()


def test_what_is_no_text_is_marked_and_the_others_stay(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.ids([None, "import os", None])
    assert ids[:, 0].tolist() == [MISSING, ids[1, 0], MISSING]
    assert (ids[1] == tokenizer.ids(["import os"])[0]).all()
    assert tokenizer.ids([]).shape == (0, 16)


def test_the_file_alone_says_where_a_text_is_cut_and_what_fills_up(
    tokenizer: TextTokenizer,
) -> None:
    alone = Tokenizer.from_str(tokenizer.json)
    long, short = alone.encode_batch(["import os " * 50, ""])
    assert len(long.ids) == len(short.ids) == 16
    assert short.ids[-1] == tokenizer.padding
    assert long.ids == tokenizer.ids(["import os " * 50])[0].tolist()


def test_the_same_texts_teach_the_same_tokens(tokenizer: TextTokenizer) -> None:
    again = train_tokenizer(TEXTS, vocab_size=300, max_tokens=16)
    assert again == tokenizer
    assert json.loads(again.json) == json.loads(tokenizer.json)


def test_a_tokenizer_of_a_folder_is_read_and_cut_anew(
    tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "encoder").mkdir()
    (folder / "encoder" / "tokenizer.json").write_text(tokenizer.json)
    (folder / "encoder" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    )
    wanted = TokenizerSpec(source="encoder", max_tokens=8)
    spec = ModelSpec(family="text_classifier", tokenizer=wanted)
    read = load_tokenizer(spec, folder, [])
    assert (read.max_tokens, read.padding) == (8, tokenizer.padding)
    assert read.vocab_size == tokenizer.vocab_size
    assert read.ids(["import os"])[0, :3].tolist() == tokenizer.ids(["import os"])[0, :3].tolist()


def test_a_tokenizer_that_is_not_there_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("empty")
    (folder / "nothing").mkdir()
    spec = ModelSpec(family="text_classifier", pretrained="nothing")
    with pytest.raises(InputError, match="the tokenizer 'nothing' cannot be read"):
        load_tokenizer(spec, folder, [])
    (folder / "nothing" / "tokenizer.json").write_text('{"version": "1.0", "strange": true}')
    with pytest.raises(InputError, match="the tokenizer 'nothing' cannot be read"):
        load_tokenizer(spec, folder, [])


def test_a_folder_is_beside_the_pipeline_file_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "c").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "b"))
    assert resolve_pretrained("a", tmp_path) == str(tmp_path / "a")
    assert resolve_pretrained("~/c", tmp_path) == str(tmp_path / "b" / "c")
    assert resolve_pretrained("someone/encoder", tmp_path) == "someone/encoder"


def test_a_model_of_the_hub_is_pinned_to_a_commit_and_a_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def model_info(_: object, name: str) -> SimpleNamespace:
        asked.append(name)
        return SimpleNamespace(sha="abc123")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    hub = ModelSpec(family="text_classifier", pretrained="someone/encoder")
    assert pin_revision(hub, tmp_path).revision == "abc123"
    assert asked == ["someone/encoder"]
    (tmp_path / "encoder").mkdir()
    for same in (
        ModelSpec(family="mlp"),
        ModelSpec(family="text_classifier", pretrained="encoder"),
        ModelSpec(family="text_classifier", pretrained="someone/encoder", revision="def"),
    ):
        assert pin_revision(same, tmp_path) == same
    assert asked == ["someone/encoder"]


def test_a_hub_that_cannot_be_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object, name: str) -> None:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", away)
    with pytest.raises(InputError, match="'someone/encoder' cannot be read") as error:
        pin_revision(ModelSpec(family="text_classifier", pretrained="someone/encoder"), tmp_path)
    assert error.value.seen == "no route"


def test_a_tokenizer_without_padding_is_refused(
    tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pipeline")
    bare = Tokenizer.from_str(tokenizer.json)
    bare.no_padding()
    (folder / "tokenizer.json").write_text(bare.to_str())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    spec = ModelSpec(family="text_classifier", tokenizer=TokenizerSpec(source="."))
    with pytest.raises(InputError, match="no padding token"):
        load_tokenizer(spec, folder, [])


def test_a_commit_is_the_model_s_and_not_another_tokenizer_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read(name: str, **options: object) -> None:
        asked.append((name, options["revision"], options["trust_remote_code"]))
        raise OSError("away")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", read)
    for source in (None, "someone/else"):
        spec = ModelSpec(
            family="text_classifier",
            pretrained="someone/encoder",
            revision="abc",
            tokenizer=TokenizerSpec(source=source),
        )
        with pytest.raises(InputError, match="cannot be read"):
            load_tokenizer(spec, tmp_path, [])
    assert asked == [("someone/encoder", "abc", False), ("someone/else", None, False)]
