import json
import os
import random
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from millrace.models.common.errors import InputError
from millrace.models.language.corpus.tokenizer_folder import (
    CHATML,
    END,
    LanguageTokenizer,
    learn_tokenizer,
    read_tokenizer,
)

ODD = ["", "a" * 10_000, "\U0001f600 ok", "שלום", "a\x00b", "\x00", "\n\t ", "١٢٣", "x = 12345"]


@pytest.mark.parametrize("text", ODD)
def test_every_text_comes_back_from_its_tokens(bpe: LanguageTokenizer, text: str) -> None:
    ids = bpe.plain.encode(text).ids
    assert all(0 <= each < bpe.vocab_size for each in ids)
    assert bpe.plain.decode(ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_of_its_own() -> None:
    learnt = learn_tokenizer(["2024 2024 2024"] * 50, 300)
    assert len(learnt.plain.encode("2024").ids) == 4


def test_a_special_token_that_is_written_out_is_text(bpe: LanguageTokenizer) -> None:
    ids = bpe.plain.encode(f"a{END}b").ids
    assert bpe.end not in ids
    assert bpe.plain.decode(ids) == f"a{END}b"


def test_the_folder_is_one_of_transformers(bpe: LanguageTokenizer, tmp_path: Path) -> None:
    bpe.write(tmp_path / "folder")
    read = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert (read.eos_token_id, read.pad_token_id) == (bpe.end, bpe.padding)
    assert len(read) == bpe.vocab_size
    assert read("import os")["input_ids"] == bpe.plain.encode("import os").ids
    assert bpe.end != bpe.padding


_LEARN = """
import sys
from millrace.models.language.corpus.tokenizer_folder import learn_tokenizer
from some_texts import TEXTS
print(learn_tokenizer(TEXTS, 320).digest)
"""


@pytest.mark.parametrize("threads", ["1", "4"])
def test_another_process_learns_the_same(
    bpe: LanguageTokenizer, texts: list[str], tmp_path: Path, threads: str
) -> None:
    (tmp_path / "some_texts.py").write_text(f"TEXTS = {texts!r}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTHONHASHSEED": threads,
        "RAYON_NUM_THREADS": threads,
    }
    done = subprocess.run(
        [sys.executable, "-c", _LEARN], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == bpe.digest


def test_a_word_of_five_megabytes_does_not_hold_learning_up() -> None:
    letters = random.Random(0).choices(string.ascii_lowercase, k=5_000_000)
    begun = time.process_time()
    learnt = learn_tokenizer(["".join(letters), " " * 5_000_000], 300)
    assert time.process_time() - begun < 20
    assert learnt.vocab_size == 300


def test_no_text_at_all_leaves_the_bytes() -> None:
    learnt = learn_tokenizer([], 4096)
    assert learnt.vocab_size == 258
    assert learnt.plain.decode(learnt.plain.encode("any text").ids) == "any text"


def test_a_saved_tokenizer_is_read_as_the_same(bpe: LanguageTokenizer, tmp_path: Path) -> None:
    bpe.write(tmp_path / "one")
    bpe.write(tmp_path / "two")
    one = read_tokenizer("one", tmp_path)
    assert read_tokenizer("two", tmp_path).digest == one.digest
    one.write(tmp_path / "three")
    assert read_tokenizer("three", tmp_path).digest == one.digest
    assert one.plain.encode("import os").ids == bpe.plain.encode("import os").ids


def test_one_without_padding_fills_up_with_its_end(tmp_path: Path) -> None:
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({"a": 0, "</s>": 1}, [])), eos_token="</s>"
    )
    made.save_pretrained(tmp_path / "t")
    read = read_tokenizer("t", tmp_path)
    assert read.padding == read.end == 1


def test_one_without_an_end_is_refused(tmp_path: Path) -> None:
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    made.save_pretrained(tmp_path / "t")
    with pytest.raises(InputError, match="no token that ends a text"):
        read_tokenizer("t", tmp_path)


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="the tokenizer 'empty' cannot be read"):
        read_tokenizer("empty", tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        read_tokenizer("no/such/folder", tmp_path)


def test_one_without_a_template_gets_a_simple_one_for_chats_alone(
    bpe: LanguageTokenizer, tmp_path: Path
) -> None:
    bpe.write(tmp_path / "t")
    assert not read_tokenizer("t", tmp_path).fast.chat_template
    read = read_tokenizer("t", tmp_path, chat=True)
    assert read.fast.chat_template == CHATML
    assert read.vocab_size == bpe.vocab_size
    shown = read.fast.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown == f"<|im_start|>user\nhi{END}\n<|im_start|>assistant\n"


def test_a_template_of_its_own_stays(bpe: LanguageTokenizer, tmp_path: Path) -> None:
    bpe.write(tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    read = read_tokenizer("t", tmp_path, chat=True)
    assert read.fast.chat_template == "{{ messages[0]['content'] }}"


def test_an_end_that_is_no_token_is_told(bpe: LanguageTokenizer) -> None:
    config = json.loads(bpe.files["tokenizer_config.json"])
    broken = json.dumps({**config, "eos_token": "<nowhere>"}).encode()
    with pytest.raises(InputError, match="is not in its vocabulary"):
        _ = LanguageTokenizer({**bpe.files, "tokenizer_config.json": broken}).end
