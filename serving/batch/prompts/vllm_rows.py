"""A row of prompts on its way through ray.data.llm: its tokens, its parameters, its answer.

It carries a row's columns from stage to stage and adds its own: those of `vLLMOutputData` in
`ray/llm/_internal/batch/stages/vllm_engine_stage.py` of Ray 2.60, and `__inference_error__`, empty
where there is none. Why an answer ended is not among them.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import WorkError
from millrace.models.data.schema import KEY
from millrace.serving.batch.job import DEAD, ROW, TOKENS_IN, TOKENS_OUT, Answers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.prompts.prompt_rows import (
    OUTPUT,
    PROMPT,
    Prompts,
    chats_among,
    context_of,
    fault_in,
    is_readable,
    refused,
)

TEXT = "text"
"""The prompt. As `prompt`, the name of the engine's own column, a refused row would come back
without it."""
TOKENS = "tokenized_prompt"
SAMPLING = "sampling_params"
FAULT = "__inference_error__"
REFUSALS = ("VLLMValidationError", "ValueError")
"""What vLLM raises against a prompt; all else that it raises is the engine's fault or ours."""


def build_engine_columns(row: Mapping[str, Any], job: Prompts) -> dict[str, Any]:
    """Return the columns that the engine reads besides the tokens of the prompt.

    Args:
        row: `ROW`, `KEY`, `TEXT` and `TOKENS`.
        job: how prompts are continued.
    """
    sampling = job.sampling
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature > 0:
        parameters |= {"top_p": sampling.top_p, "seed": job.seed_of(int(row[ROW]))}
        if sampling.top_k is not None:
            parameters["top_k"] = sampling.top_k
    if sampling.stop:
        # A stop that is in the text shows that it ended the answer; it is cut off afterwards.
        parameters |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return {SAMPLING: parameters}


def build_output_row(row: Mapping[str, Any], job: Prompts, ends: Collection[int]) -> dict[str, Any]:
    """Return the row of the output, of `OUTPUT`, for one that the engine has answered.

    Args:
        row: as the engine returns it, without a fault.
        job: how the prompt was continued.
        ends: tokens that end an answer.
    """
    text, tokens = row["generated_text"], row["generated_tokens"]
    ended = job.sampling.ended(text)
    is_end = ended is not None or (len(tokens) > 0 and int(tokens[-1]) in ends)
    return {
        KEY: row[KEY],
        "completion": text if ended is None else ended,
        "finish_reason": "stop" if is_end else "length",
        TOKENS_IN: row["num_input_tokens"],
        TOKENS_OUT: row["num_generated_tokens"],
        "model_version": job.version,
        ROW: row[ROW],
    }


def split_answers(rows: pa.Table) -> Answers:
    """Split the output of ray.data.llm into answers and rows that vLLM refused.

    Args:
        rows: of `build_output_row`, and `FAULT`, empty; of a refused row all columns that the
            engine returned. A block of no rows may have no columns.

    Raises:
        WorkError: a row failed for another reason than its content.
    """
    if not rows.num_rows:
        return Answers(OUTPUT.empty_table(), DEAD.empty_table())
    is_good = pc.equal(rows[FAULT], "")
    good = rows.filter(is_good)
    answers = good.select(OUTPUT.names).cast(OUTPUT) if good.num_rows else OUTPUT.empty_table()
    bad = rows.filter(pc.invert(is_good))
    if not bad.num_rows:
        return Answers(answers, DEAD.empty_table())
    faults = dict(enumerate(map(describe_refusal, bad[FAULT].to_pylist())))
    return Answers(answers, refused(bad, bad[TEXT].to_pylist(), faults))


def describe_refusal(fault: str) -> str:
    """Return why vLLM does not take a prompt.

    Args:
        fault: the name of an exception's class, and its message.

    Raises:
        WorkError: it is not the prompt's fault.
    """
    kind, _, message = fault.partition(": ")
    if kind not in REFUSALS:
        raise WorkError(
            "vLLM failed at a prompt; nothing was committed",
            seen=fault.splitlines()[0],
            hint="look at the log of the engine, in the logs of Ray, and run it again",
        )
    return f"vLLM does not take the prompt: {message}"


class Tokens:
    """Turns prompts into tokens, in an actor of Ray Data.

    Args:
        variant: the folder of the model's files.
        state: takes the prompts that leave no room for an answer.
    """

    def __init__(self, variant: Path, state: JobState) -> None:
        self.tokenizer, self.context = tokenizer_of(variant), context_of(variant)
        self.state, self.name = state, uuid4().hex[:8]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `ROW`, `KEY`, `TEXT` and `TOKENS` of the prompts that can be answered.

        Args:
            rows: `ROW`, `KEY` and the prompt.
        """
        texts = rows[PROMPT].to_pylist()
        prompts = zip(texts, chats_among(rows), strict=True)
        ids = [self._tokenize(text, is_chat=is_chat) for text, is_chat in prompts]
        pairs = zip(texts, ids, strict=True)
        faults = {
            n: fault for n, pair in enumerate(pairs) if (fault := fault_in(*pair, self.context))
        }
        if faults:
            dead = refused(rows, texts, faults)
            self.state.refuse(f"{pc.min(dead[ROW]).as_py():019d}-{self.name}", dead)
        good = pa.array([n for n in range(len(texts)) if n not in faults], pa.int64())
        lists = pa.array(ids, pa.list_(pa.int32()))
        columns = {ROW: rows[ROW], KEY: rows[KEY], TEXT: rows[PROMPT], TOKENS: lists}
        return pa.table(columns).take(good)

    def _tokenize(self, text: str, *, is_chat: bool) -> list[int]:
        if not is_readable(text, self.context):
            return []
        return list(
            self.tokenizer(text, add_special_tokens=not is_chat, verbose=False)["input_ids"]
        )


def tokenizer_of(variant: Path) -> Any:
    """Return the tokenizer that vLLM too reads from a variant."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(variant, local_files_only=True, trust_remote_code=False)


def ends_of(variant: Path) -> frozenset[int]:
    """Return the tokens at which vLLM ends an answer: the tokenizer's end, and the config's.

    As in `SamplingParams.update_from_generation_config` of vLLM 0.32.

    Args:
        variant: the folder of the model's files.
    """
    files = (variant / name for name in ("generation_config.json", "config.json"))
    config = json.loads(next(file for file in files if file.is_file()).read_text())
    end = config.get("eos_token_id")
    ends = set(end) if isinstance(end, list) else {end}
    return frozenset((ends | {tokenizer_of(variant).eos_token_id}) - {None})
