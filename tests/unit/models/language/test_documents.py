from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import processors

from millrace.models.common.errors import InputError
from millrace.models.data.messages import canonical_json
from millrace.models.data.schema import Column, TableSchema
from millrace.models.language.corpus import documents
from millrace.models.language.corpus.documents import Document, documents_of, kind_of
from millrace.models.language.corpus.tokenizer_folder import (
    CHATML,
    END,
    LanguageTokenizer,
    learn_tokenizer,
)

CORPUS = TableSchema((Column("t", "text"),), (), "t", ())
INSTRUCTIONS = TableSchema((Column("p", "text"), Column("t", "text")), (), "t", ("p",))
CHATS = TableSchema((Column("t", "messages"),), (), "t", ())
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chats(*cells: list[dict[str, str]]) -> pa.RecordBatch:
    return pa.record_batch({"t": [canonical_json(cell) for cell in pa.array(cells)]})


def turns(*contents: str, first: str = "user") -> list[dict[str, str]]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def learnt_part(document: Document | None, tokenizer: LanguageTokenizer) -> str:
    assert document is not None
    assert document.answer is not None
    text: str = tokenizer.plain.decode(document.ids[document.answer], skip_special_tokens=False)
    return text


def with_template(tokenizer: LanguageTokenizer, template: str) -> LanguageTokenizer:
    return LanguageTokenizer({**tokenizer.files, "chat_template.jinja": template.encode()})


def test_the_kind_follows_from_the_columns() -> None:
    assert [kind_of(s) for s in (CORPUS, INSTRUCTIONS, CHATS)] == [
        "corpus",
        "instructions",
        "messages",
    ]


def test_a_document_of_a_corpus_ends_and_counts_as_a_whole(bpe: LanguageTokenizer) -> None:
    texts = ["import os\n", "", "a\x00b", f"say {END}", "שלום"]
    found = documents_of(pa.record_batch({"t": texts}), CORPUS, bpe)
    assert found[1] is None
    for text, document in zip(texts, found, strict=True):
        if document is not None:
            assert document.answer is None
            assert document.ids.dtype == np.int32
            assert document.ids[-1] == bpe.end
            assert (document.ids[:-1] != bpe.end).all()
            assert bpe.plain.decode(document.ids[:-1]) == text


def test_of_instructions_the_answer_and_its_end_count(bpe: LanguageTokenizer) -> None:
    rows = pa.record_batch({"p": ["def f(x):\n", "", "no answer"], "t": ["return x", "yes", ""]})
    first, second, third = documents_of(rows, INSTRUCTIONS, bpe)
    assert learnt_part(first, bpe) == f"return x{END}"
    assert learnt_part(second, bpe) == f"yes{END}"
    assert third is None
    assert first is not None
    prompt = bpe.plain.encode("def f(x):\n").ids
    assert first.ids[: len(prompt)].tolist() == prompt  # as it is served: the prompt alone


def test_a_token_that_begins_texts_begins_the_document_once(bpe: LanguageTokenizer) -> None:
    made = bpe.plain.from_str(bpe.plain.to_str())
    begin, end = 7, bpe.end
    made.post_processor = processors.TemplateProcessing(
        single=f"{made.id_to_token(begin)} $A {END}",
        special_tokens=[(made.id_to_token(begin), begin), (END, end)],
    )
    files = {**bpe.files, "tokenizer.json": made.to_str().encode()}
    begins = LanguageTokenizer(files)
    (corpus,) = documents_of(pa.record_batch({"t": ["import os"]}), CORPUS, begins)
    pair = pa.record_batch({"p": ["import os"], "t": ["import os"]})
    (instruction,) = documents_of(pair, INSTRUCTIONS, begins)
    plain = bpe.plain.encode("import os").ids
    assert corpus is not None
    assert instruction is not None
    assert corpus.ids.tolist() == [begin, *plain, end]
    assert instruction.ids.tolist() == [begin, *plain, *plain, end]


@pytest.mark.parametrize("template", [CHATML, MARKED])
@pytest.mark.parametrize(
    ("chat", "learnt"),
    [
        (turns("1 + 1?", "2"), f"2{END}"),
        (turns("a", "é😀\n\n", "c", " d "), f"é😀\n\n{END} d {END}"),
        (turns("a", "b", "c"), f"b{END}"),
        (turns("hello", "a", "b", first="assistant"), f"hello{END}b{END}"),
        ([{"role": "system", "content": "short"}, *turns("a", "")], END),
    ],
)
def test_of_a_chat_what_the_assistant_says_counts(
    chat_bpe: LanguageTokenizer, template: str, chat: Any, learnt: str
) -> None:
    tokenizer = with_template(chat_bpe, template)
    (document,) = documents_of(chats(chat), CHATS, tokenizer)
    assert learnt_part(document, tokenizer) == learnt
    assert document is not None
    shown = tokenizer.fast.apply_chat_template(chat, tokenize=False)
    assert tokenizer.fast.decode(document.ids, skip_special_tokens=False) == shown


def test_a_prompt_of_a_chat_has_the_tokens_that_serving_gives_it(
    chat_bpe: LanguageTokenizer,
) -> None:
    (document,) = documents_of(chats(turns("1 + 1?", "2")), CHATS, chat_bpe)
    assert document is not None
    assert document.answer is not None
    asked = chat_bpe.fast.apply_chat_template(
        turns("1 + 1?"), add_generation_prompt=True, return_dict=True
    )
    prompt = asked["input_ids"]
    assert document.ids[: len(prompt)].tolist() == prompt
    assert document.answer.tolist().index(True) == len(prompt)


def test_a_template_that_rewrites_what_came_before_is_told(
    chat_bpe: LanguageTokenizer,
) -> None:
    last = "{{ messages | length }}" + CHATML
    tokenizer = with_template(chat_bpe, last)
    with pytest.raises(InputError, match="differently when other messages follow"):
        documents_of(chats(turns("a", "b", "c", "d")), CHATS, tokenizer)


def test_a_template_that_does_not_know_a_role_is_told(chat_bpe: LanguageTokenizer) -> None:
    strict = "{{ raise_exception('only users') }}"
    tokenizer = with_template(chat_bpe, strict)
    with pytest.raises(InputError, match="cannot render a chat") as caught:
        documents_of(chats(turns("a", "b")), CHATS, tokenizer)
    assert "only users" in str(caught.value)
    assert "roles user, assistant" in str(caught.value)


def test_a_tokenizer_without_a_template_is_told(bpe: LanguageTokenizer) -> None:
    with pytest.raises(InputError, match="no chat template"):
        documents_of(chats(turns("a", "b")), CHATS, bpe)


def test_a_long_document_is_cut_for_the_tokenizer_where_no_token_changes(
    bpe: LanguageTokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(["import os", *texts, "x = 1", "y", "\r", "  y", "", "z\u2028z"] * 20)
    (whole,) = documents_of(pa.record_batch({"t": [text]}), CORPUS, bpe)
    seen: list[int] = []
    parts = documents._parts
    monkeypatch.setattr(
        documents, "_parts", lambda text: seen.append(len(parts(text))) or parts(text)
    )
    monkeypatch.setattr(documents, "_BATCH_CHARACTERS", 7)
    (cut,) = documents_of(pa.record_batch({"t": [text]}), CORPUS, bpe)
    assert seen[0] > 50
    assert whole is not None
    assert cut is not None
    assert cut.ids.tolist() == whole.ids.tolist()


def test_a_line_of_five_megabytes_is_a_document() -> None:
    tokenizer = learn_tokenizer(["word word"] * 10, 280)
    text = "word " * 1_000_000
    (document,) = documents_of(pa.record_batch({"t": [text]}), CORPUS, tokenizer)
    assert document is not None
    assert tokenizer.plain.decode(document.ids[:-1]) == text
