"""Chats as a column: a list of messages, `{role, content}` each, kept as canonical JSON text.

Canonical is `[{"role":…,"content":…},…]` without spaces, so that equal chats have equal hashes
whatever format they came in.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROLES = ("system", "user", "assistant", "tool")
LEARNT = "assistant"
"""Whose messages are learnt."""

Message = dict[str, str]


def is_list_of_structs(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds lists of objects."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_struct(kind.value_type))


def canonical(cell: pa.Scalar) -> str | None:
    """Return a chat as canonical JSON; None where it is missing, or no list of messages.

    Args:
        cell: text that is JSON, or a list of structs. A key without a value counts as none.
    """
    try:
        value = cell.as_py()
        value = json.loads(value) if isinstance(value, str) else value
        chat = [_message(each) for each in value] if isinstance(value, list) else None
        text = json.dumps(chat, ensure_ascii=False, separators=_TIGHT)
        text.encode()  # half a pair of UTF-16 is no text
    except (ValueError, RecursionError):
        return None
    return None if chat is None else text


def parsed(text: str) -> list[Message]:
    """Return the messages of canonical JSON."""
    found: list[Message] = json.loads(text)
    return found


def problems(chats: pa.Array) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
    """Yield which chats cannot be learnt from, and why.

    Args:
        chats: canonical JSON, `[rows]`; a null has no problem here.
    """
    roles = [_roles(text) for text in chats.to_pylist()]
    known = ", ".join(ROLES)
    unknown = [found is not None and not found <= set(ROLES) for found in roles]
    yield np.array(unknown, dtype=np.bool_), f"a message's role is not one of {known}"
    unanswered = [found is not None and LEARNT not in found for found in roles]
    yield np.array(unanswered, dtype=np.bool_), f"no message is the {LEARNT}'s"


_TIGHT = (",", ":")


def _roles(text: str | None) -> set[str] | None:
    return None if text is None else {message["role"] for message in parsed(text)}


def _message(value: Any) -> Message:
    """Return one message; ValueError where it is none."""
    given = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
    if set(given) != {"role", "content"} or not all(isinstance(v, str) for v in given.values()):
        raise ValueError("a message has a role and a content, both text")
    return {"role": given["role"], "content": given["content"]}
