import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as tables
from millrace.models.data.coerce import cast
from millrace.models.data.row_checks import check
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.snapshots import Snapshot, scan

USER = {"role": "user", "content": "1 + 1?"}
ANSWER = {"role": "assistant", "content": "2"}
TEXT = '[{"role":"user","content":"1 + 1?"},{"role":"assistant","content":"2"}]'
SCHEMA = TableSchema((Column("m", "messages"),), (), "m", ())


def reasons(cells: pa.Array) -> list[str]:
    found: list[str] = check(pa.record_batch({"m": cells}), SCHEMA).bad["reason"].to_pylist()
    return found


def ingest(folder: Path, source: str, **dataset: Any) -> Snapshot:
    values = {
        "name": "t",
        "dataset": {"source": source, "target": "m", "features": [], **dataset},
        "model": {"family": "causal_lm"},
    }
    installation = Installation(folder / "home", "", str(folder / "home" / "tables"))
    return tables.ingest(Pipeline.model_validate(values).with_folder(folder), installation)


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([[USER, ANSWER]]),
        pa.array([[{**USER, "name": None}, ANSWER]]),
        pa.array([[{"content": "1 + 1?", "role": "user"}, ANSWER]]),
        pa.array([json.dumps([USER, ANSWER])]),
    ],
)
def test_a_chat_has_one_form_whatever_it_came_in(cells: pa.Array) -> None:
    assert cast(cells, SCHEMA.column("m")).values.to_pylist() == [TEXT]


@pytest.mark.parametrize(
    "chat",
    [
        USER,
        "hello",
        [["user", "hello"]],
        [{"role": "user"}, ANSWER],
        [{"role": "user", "content": ["part"]}, ANSWER],
        [{"role": "user", "content": "x", "tool_calls": "y"}, ANSWER],
        [{"role": "user", "content": "\ud800"}, ANSWER],
    ],
)
def test_what_is_no_chat_is_refused(chat: Any) -> None:
    assert reasons(pa.array([json.dumps(chat)])) == [
        "m: not a list of messages, {role, content} each"
    ]


def test_numbers_and_lists_of_numbers_are_no_chats() -> None:
    assert len(reasons(pa.array([1, 2]))) == len(reasons(pa.array([[1.0], [2.0]]))) == 2


def test_a_chat_without_an_answer_or_with_an_unknown_role_is_refused_with_the_reason() -> None:
    cells = pa.array([[USER], [], [{"role": "robot", "content": "x"}, ANSWER], None, [ANSWER]])
    assert reasons(cells) == [
        "m: no message is the assistant's",
        "m: no message is the assistant's",
        "m: a message's role is not one of system, user, assistant, tool",
        "m: null",
    ]


def test_chats_of_json_lines_and_of_parquet_make_the_same_snapshot(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": f"{n} + 1?"}, ANSWER] for n in range(50)]
    lines = [json.dumps({"m": chat}) for chat in chats]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table({"m": chats}), tmp_path / "c.parquet")
    made = ingest(tmp_path, "c.jsonl")
    assert made.schema.column("m").type == "messages"
    assert not ingest(tmp_path, "c.parquet").created
    stored = sorted(text for batch in scan(made) for text in batch["m"].to_pylist())
    assert [json.loads(text) for text in stored] == sorted(chats, key=lambda c: c[0]["content"])


def test_one_bad_chat_among_json_lines_does_not_spoil_the_others(tmp_path: Path) -> None:
    lines = [json.dumps({"m": [USER, ANSWER]})] * 40
    lines += [json.dumps({"m": [{"role": "user", "content": [1]}, ANSWER]})]
    lines += ['{"m": [{"role": "user", "content": "a\\ud800"}]}']
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    made = ingest(tmp_path, "c.jsonl", columns={"m": {"type": "messages"}}, max_quarantine=0.1)
    assert made.rows == 40
    uri = str(tmp_path / "home" / "tables" / "quarantine" / "t")
    assert sorted(DeltaTable(uri).to_pyarrow_table()["reason"].to_pylist()) == [
        "line holds text that is not UTF-8",
        "m: not a list of messages, {role, content} each",
    ]
