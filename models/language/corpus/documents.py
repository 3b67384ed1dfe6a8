"""Converts rows to documents: their tokens, and which tokens count in the loss.

In a corpus all tokens count. In instructions the tokens of the completion count, and in a chat the
tokens of the assistant. Every document ends with the end-of-text token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.models.common.errors import InputError
from millrace.models.data.messages import LEARNT, Message, parse_messages
from millrace.models.data.schema import TableSchema
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer

Kind = Literal["corpus", "instructions", "messages"]
Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_BATCH_CHARACTERS = 512 * 1024
"""Characters that are tokenized at once; an `Encoding` takes about 400 bytes per token."""
_CUT = re.compile(r"(?<=\S)\n(?=\S)")
"""A line end where a text longer than `_BATCH_CHARACTERS` may be cut: no token of a byte-level BPE
spans it."""


@dataclass(frozen=True)
class Document:
    """The tokens of one row.

    Attributes:
        ids: int32 `[tokens]`, at least one.
        answer: bool `[tokens]`, true for tokens that count in the loss; None if all count.
    """

    ids: Ids
    answer: Mask | None = None


def kind_of(schema: TableSchema) -> Kind:
    """Return whether a dataset's rows are chats, instructions or plain text (a corpus)."""
    if schema.column(schema.target).type == "messages":
        return "messages"
    return "instructions" if schema.features else "corpus"


def documents_of(
    rows: pa.RecordBatch, schema: TableSchema, tokenizer: LanguageTokenizer
) -> list[Document | None]:
    """Return a document for each row; None for a row without text or without an answer.

    Args:
        rows: rows of the snapshot, with the target and the feature columns.
        schema: the snapshot's schema.
        tokenizer: the tokenizer.

    Raises:
        InputError: the tokenizer has no chat template, or its template fails on a chat.
    """
    kind, texts = kind_of(schema), rows[schema.target].to_pylist()
    if kind == "messages":
        return [_chat(parse_messages(text), tokenizer) for text in texts]
    end = tokenizer.end
    if kind == "corpus":
        found = _encoded(texts, tokenizer)
        return [Document(np.append(ids, np.int32(end))) if len(ids) else None for ids in found]
    prompts = _encoded(rows[schema.features[0]].to_pylist(), tokenizer)
    answers = _encoded(texts, tokenizer, begins=False)
    return [
        _answered_document(*each, end) if len(each[1]) else None
        for each in zip(prompts, answers, strict=True)
    ]


def _encoded(
    texts: Sequence[str], tokenizer: LanguageTokenizer, *, begins: bool = True
) -> list[Ids]:
    """Return the tokens of each text; an empty text has none, so no beginning-of-text token."""
    end, found = tokenizer.end, []
    for batch in _batches(texts):
        parts = [_parts(text) for text in batch]
        firsts = _ids([part[0] for part in parts], tokenizer, begins=begins)
        for part, first in zip(parts, firsts, strict=True):
            rest = (_ids([text], tokenizer, begins=False)[0] for text in part[1:])
            found.append(np.concatenate([_without_end(first, end), *rest]))
    return found


def _ids(texts: Sequence[str], tokenizer: LanguageTokenizer, *, begins: bool) -> list[Ids]:
    encodings = tokenizer.plain.encode_batch_fast(texts, add_special_tokens=begins)
    return [
        np.array(encoding.ids if text else [], dtype=np.int32)
        for text, encoding in zip(texts, encodings, strict=True)
    ]


def _without_end(ids: Ids, end: int) -> Ids:
    """Remove a final end-of-text token, which some tokenizers add to every text."""
    return ids[:-1] if len(ids) and ids[-1] == end else ids


def _parts(text: str) -> list[str]:
    """Cut a long text at line ends where the cut changes no token."""
    parts, start = [], 0
    while found := _CUT.search(text, start + _BATCH_CHARACTERS):
        parts.append(text[start : found.end()])
        start = found.end()
    return [*parts, text[start:]]


def _batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size + len(text) > _BATCH_CHARACTERS and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text)
    return batches


def _answered_document(prompt: Ids, answer: Ids, end: int) -> Document:
    ids = np.concatenate([prompt, answer, np.array([end], dtype=np.int32)])
    return Document(ids, np.arange(len(ids)) >= len(prompt))


def _chat(chat: list[Message], tokenizer: LanguageTokenizer) -> Document | None:
    fast = tokenizer.fast
    if not fast.chat_template:
        raise InputError(
            "the dataset has messages, but the tokenizer has no chat template",
            hint="add a chat_template to the tokenizer's tokenizer_config.json",
        )
    marked = _GENERATION.search(fast.get_chat_template()) is not None
    ids, answer = _by_markers(fast, chat) if marked else _by_prefixes(fast, chat)
    return Document(ids, answer) if answer.any() else None


def _by_markers(fast: Any, chat: list[Message]) -> tuple[Ids, Mask]:
    """Return the tokens of a chat and a mask from the template's `{% generation %}` blocks."""
    found = _rendered(
        fast, chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids = np.array(found["input_ids"], dtype=np.int32)
    return ids, np.array(found["assistant_masks"], dtype=np.bool_)


def _by_prefixes(fast: Any, chat: list[Message]) -> tuple[Ids, Mask]:
    """Return the tokens of a chat and a mask, found by rendering the chat up to each turn.

    For each assistant's turn, the chat is rendered up to and including that turn. The messages
    before that turn are rendered with a generation prompt. The first text begins with the second
    text, and the rest of the first text is the assistant's turn.

    Raises:
        InputError: the template renders an earlier message differently when more messages follow.
    """
    whole: str = _rendered(fast, chat, tokenize=False)
    encoding = fast.backend_tokenizer.encode(whole, add_special_tokens=False)
    ids = np.array(encoding.ids, dtype=np.int32)
    starts, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    answer = np.zeros(len(ids), dtype=np.bool_)
    for place in (n for n, message in enumerate(chat) if message["role"] == LEARNT):
        said: str = _rendered(fast, chat[: place + 1], tokenize=False)
        begun = _begun(fast, chat[:place], said)
        if not all(longer.startswith(part) for part, longer in pairwise((begun, said, whole))):
            raise InputError(
                "the tokenizer's chat template renders a message differently when other messages "
                "follow, so the assistant's turns cannot be found in the rendered chat",
                valid="a template that renders a message the same whatever follows, or a template "
                "with {% generation %} around the assistant's turns",
                hint="fix chat_template in the tokenizer's folder",
            )
        answer |= (starts >= len(begun)) & (
            ends <= _end_of_answer(said, len(begun), fast.eos_token)
        )
    return ids, answer


def _begun(fast: Any, before: list[Message], said: str) -> str:
    """Return the rendered chat up to where the assistant's turn begins.

    transformers renders no empty chat. So if the assistant speaks first, the generation prompt of
    another chat is searched for in `said`.

    Args:
        fast: the transformers tokenizer.
        before: messages before the assistant's turn.
        said: the chat rendered with the assistant's turn.
    """
    asked = before or [{"role": "user", "content": "?"}]
    begun: str = _rendered(fast, asked, tokenize=False, add_generation_prompt=True)
    if before:
        return begun
    prompt = begun.removeprefix(_rendered(fast, asked, tokenize=False))
    opening, found, _ = said.partition(prompt) if prompt else ("", "", "")
    return opening + found


def _end_of_answer(said: str, start: int, end: str) -> int:
    """Return the position in `said` where the answer ends, before any white space after `end`."""
    trimmed = said.rstrip()
    return len(trimmed) if trimmed.endswith(end) and len(trimmed) > start else len(said)


def _rendered(fast: Any, chat: list[Message], **options: Any) -> Any:
    try:
        return fast.apply_chat_template(chat, **options)
    except Exception as error:  # a template may raise anything, for example on an unknown role
        raise InputError(
            "the tokenizer's chat template cannot render a chat of the dataset",
            seen=f"{(str(error) or type(error).__name__).splitlines()[0]}; "
            f"roles {', '.join(message['role'] for message in chat)}",
            hint="fix the chats, or chat_template in the tokenizer's folder",
        ) from error
