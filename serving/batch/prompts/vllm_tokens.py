"""The tokens of prompts for vLLM, made beside the GPU; prompts that do not fit are put aside."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.schema import KEY
from millrace.serving.batch.job import ROW
from millrace.serving.batch.job_state import Workplace
from millrace.serving.batch.prompts.prompt_rows import (
    PROMPT,
    chats_among,
    context_of,
    fault_in,
    is_readable,
    refused,
)
from millrace.serving.batch.prompts.vllm_rows import TEXT, TOKENS


class Tokens:
    """Turns prompts into tokens, in an actor of Ray Data.

    Args:
        form: the folder of the model's files.
        workplace: where prompts are put aside that leave no room for an answer.
    """

    def __init__(self, form: Path, workplace: Workplace) -> None:
        self.tokenizer, self.context = tokenizer_of(form), context_of(form)
        self.workplace, self.name = workplace, uuid4().hex[:8]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `ROW`, `KEY`, `TEXT` and `TOKENS` of the prompts that can be answered.

        Args:
            rows: `ROW`, `KEY` and the prompt.
        """
        texts = rows[PROMPT].to_pylist()
        asked = zip(texts, chats_among(rows), strict=True)
        ids = [self._tokens(text, is_chat=is_chat) for text, is_chat in asked]
        pairs = zip(texts, ids, strict=True)
        faults = {
            n: fault for n, pair in enumerate(pairs) if (fault := fault_in(*pair, self.context))
        }
        if faults:
            dead = refused(rows, texts, faults)
            self.workplace.refuse(f"{pc.min(dead[ROW]).as_py():019d}-{self.name}", dead)
        good = pa.array([n for n in range(len(texts)) if n not in faults], pa.int64())
        lists = pa.array(ids, pa.list_(pa.int32()))
        columns = {ROW: rows[ROW], KEY: rows[KEY], TEXT: rows[PROMPT], TOKENS: lists}
        return pa.table(columns).take(good)

    def _tokens(self, text: str, *, is_chat: bool) -> list[int]:
        if not is_readable(text, self.context):
            return []
        return list(
            self.tokenizer(text, add_special_tokens=not is_chat, verbose=False)["input_ids"]
        )


def tokenizer_of(form: Path) -> Any:
    """Return the tokenizer that vLLM too reads from a form."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(form, local_files_only=True, trust_remote_code=False)


def ends_of(form: Path) -> frozenset[int]:
    """Return the tokens at which vLLM ends an answer: the tokenizer's end, and the config's.

    As in `SamplingParams.update_from_generation_config` of vLLM 0.32.

    Args:
        form: the folder of the model's files.
    """
    files = (form / name for name in ("generation_config.json", "config.json"))
    config = json.loads(next(file for file in files if file.is_file()).read_text())
    told = config.get("eos_token_id")
    ends = set(told) if isinstance(told, list) else {told}
    return frozenset((ends | {tokenizer_of(form).eos_token_id}) - {None})
