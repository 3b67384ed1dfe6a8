"""A tokenizer that is learnt here, as the engine's graphs: the same tokens, and the same text."""

import inspect
import textwrap
from typing import Any

import openvino
import openvino_genai as genai
import pytest
from transformers import AutoTokenizer

from millrace.export.openvino.from_checkpoint import tokenizer_graphs
from millrace.models.language.corpus.tokenizer_folder import learn_tokenizer

SOURCE = inspect.getsource(textwrap) + inspect.getsource(inspect)
ODD = (
    *("   201", "x =  1\n    2", "10**-3", "0x7a0  622", "١٢ ٣", "a\x0cb", "\r\n x", "\ta\t 1"),
    *("  é😀 \u200b\u200f", "\ufeffa", "\u2028x", "it's  'll", "if a:\n\n\n        b", "x" * 300),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Transformers' tokenizer and the engine's, of one folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    learn_tokenizer([SOURCE], 600).write(folder)
    plain = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    there, back = tokenizer_graphs(plain)
    openvino.save_model(there, folder / "openvino_tokenizer.xml")
    openvino.save_model(back, folder / "openvino_detokenizer.xml")
    return plain, genai.Tokenizer(str(folder))


def test_it_splits_as_transformers_does(both: tuple[Any, Any]) -> None:
    plain, engine = both
    texts = [*ODD, *(SOURCE[at : at + 150] for at in range(0, len(SOURCE), 700))]
    assert len(texts) > 100
    for text in texts:
        assert engine.encode(text).input_ids.data[0].tolist() == plain(text).input_ids, repr(text)


def test_its_text_comes_back(both: tuple[Any, Any]) -> None:
    plain, engine = both
    for text in ODD:
        assert engine.decode(plain(text).input_ids) == text
