"""What the text backend does before its graph, as far as it needs no Triton."""

from pathlib import Path

import numpy as np
import pytest

import millrace.models.inference.row_batches
import millrace.models.inference.tokenizer
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.serving.triton.backends.text_onnxruntime import text_tokens
from millrace.serving.triton.backends.text_onnxruntime.text_tokens import TextBatcher, split_batches

TOKENIZER = train_tokenizer(["one two three"] * 3, vocab_size=270, max_tokens=12)


@pytest.fixture
def tokens(tmp_path: Path) -> TextBatcher:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.json)
    return TextBatcher(tmp_path / "tokenizer.json")


def test_the_tokens_are_those_of_training(tokens: TextBatcher) -> None:
    texts = ["one two", "", "three " * 50, "\x00", "\U0001f600"]
    wanted = TOKENIZER.ids(texts)
    ((installation, ids),) = tokens.batches(texts)
    assert ids.shape == (5, 12)
    np.testing.assert_array_equal(ids, wanted[installation])
    assert sorted(installation) == [0, 1, 2, 3, 4]


def test_a_text_of_a_megabyte_is_cut_before_it_is_read_and_alike_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_tokens, "CHARACTERS", 1)
    monkeypatch.setattr(millrace.models.inference.tokenizer, "CHARACTERS", 1)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.json)
    again = TextBatcher(tmp_path / "tokenizer.json")
    long = "one two three " * 50
    ((_, ids),) = again.batches([long])
    np.testing.assert_array_equal(ids, TOKENIZER.ids([long])[:, : ids.shape[1]])
    assert again.tokenizer.decode(ids[0].tolist()) == long[:12]


def test_texts_of_about_a_length_run_together(
    tokens: TextBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_tokens, "MAX_TOKENS", 12)
    runs = list(tokens.batches(["three " * 50, "", "", ""]))
    assert [ids.shape for _, ids in runs] == [(3, 2), (1, 12)]
    assert [installation.tolist() for installation, _ in runs] == [[1, 2, 3], [0]]


def test_a_piece_holds_so_many_places_and_a_longer_text_goes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_tokens, "MAX_TOKENS", 10)
    assert list(split_batches([0, 1, 2, 3], [2, 3, 5, 99])) == [[0, 1], [2], [3]]
    assert list(split_batches([], [])) == []


def test_texts_are_put_together_as_the_certificate_does(tokens: TextBatcher) -> None:
    assert text_tokens.MAX_TOKENS == millrace.models.inference.row_batches.PLACES
    assert text_tokens.CHARACTERS == millrace.models.inference.tokenizer.CHARACTERS
    random = np.random.default_rng(0)
    texts = ["three " * random.integers(0, 9) for _ in range(3000)]
    read = ModelInput("input_ids", 12, TOKENIZER.padding)
    wanted = [
        installation.tolist()
        for installation in millrace.models.inference.row_batches.split_rows(
            TOKENIZER.ids(texts), read
        )
    ]
    assert [installation.tolist() for installation, _ in tokens.batches(texts)] == wanted
    assert len(wanted) > 1
