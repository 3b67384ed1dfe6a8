"""Chat columns: a cell is a list of `{role, content}` messages, stored as canonical JSON text.

Canonical JSON is `[{"role":…,"content":…},…]` without spaces, so that equal chats have equal
hashes, whatever the format of the source.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROLES = ("system", "user", "assistant", "tool")
LEARNT = "assistant"
"""The role whose messages a model learns to write."""

Message = dict[str, str]


def is_list_of_structs(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds lists of objects."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_struct(kind.value_type))


def canonical_json(cell: pa.Scalar) -> str | None:
    """Return a chat as canonical JSON; None if the cell is null or not a list of messages.

    Args:
        cell: a chat, as JSON text or as a list of structs. Keys without a value are ignored.
    """
    try:
        value = cell.as_py()
        value = json.loads(value) if isinstance(value, str) else value
        chat = [_read_message(each) for each in value] if isinstance(value, list) else None
        text = json.dumps(chat, ensure_ascii=False, separators=(",", ":"))
        text.encode()  # a lone UTF-16 surrogate is not text
    except (ValueError, RecursionError):
        return None
    return None if chat is None else text


def _read_message(value: Any) -> Message:
    """Return a message with its keys in order.

    Raises:
        ValueError: the value is not a message.
    """
    message = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
    if set(message) != {"role", "content"} or not all(isinstance(v, str) for v in message.values()):
        raise ValueError("a message has a role and a content, both text")
    return {"role": message["role"], "content": message["content"]}


def parse_messages(text: str) -> list[Message]:
    """Return the messages of canonical JSON."""
    return list(json.loads(text))


def find_problems(chats: pa.Array) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
    """Yield masks of the chats that cannot be trained on, each with the reason.

    Args:
        chats: canonical JSON, `[rows]`. Nulls are skipped, because `row_checks` checks nulls.
    """
    roles = [
        None if text is None else {message["role"] for message in parse_messages(text)}
        for text in chats.to_pylist()
    ]
    has_unknown = [each is not None and not each <= set(ROLES) for each in roles]
    yield np.array(has_unknown, np.bool_), f"a message's role is not one of {', '.join(ROLES)}"
    has_no_answer = [each is not None and LEARNT not in each for each in roles]
    yield np.array(has_no_answer, np.bool_), f"no message is the {LEARNT}'s"
