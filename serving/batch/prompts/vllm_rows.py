"""What ray.data.llm is given for a row, and what is made of the row that it hands back.

It carries a row's columns from stage to stage and adds its own: those of `vLLMOutputData` in
`ray/llm/_internal/batch/stages/vllm_engine_stage.py` of Ray 2.60, and `__inference_error__`, empty
where there is none. Why an answer ended is not among them.
"""

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import WorkError
from millrace.models.data.schema import KEY
from millrace.serving.batch.job import DEAD, ROW, TOKENS_IN, TOKENS_OUT, Answers
from millrace.serving.batch.prompts.prompt_rows import OUTPUT, Prompts, refused

TEXT = "text"
"""The prompt. As `prompt`, the name of the engine's own column, a refused row would come back
without it."""
TOKENS = "tokenized_prompt"
SAMPLING = "sampling_params"
FAULT = "__inference_error__"
REFUSALS = ("VLLMValidationError", "ValueError")
"""What vLLM raises against a prompt; all else that it raises is the engine's fault or ours."""


def asked(row: Mapping[str, Any], job: Prompts) -> dict[str, Any]:
    """Return the columns that the engine reads besides the tokens of the prompt.

    Args:
        row: `ROW`, `KEY`, `TEXT` and `TOKENS`.
        job: how prompts are continued.
    """
    sampling = job.sampling
    words: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature > 0:
        words |= {"top_p": sampling.top_p, "seed": job.seed_of(int(row[ROW]))}
        if sampling.top_k is not None:
            words["top_k"] = sampling.top_k
    if sampling.stop:
        # A stop that is left in the text tells that it ended the answer; it is cut off then.
        words |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return {SAMPLING: words}


def answered(row: Mapping[str, Any], job: Prompts, ends: Collection[int]) -> dict[str, Any]:
    """Return the row of the output, of `OUTPUT`, for one that the engine has answered.

    Args:
        row: as the engine hands it back, without a fault.
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


def parted(rows: pa.Table) -> Answers:
    """Part what comes out of ray.data.llm into answers and rows that vLLM refused.

    Args:
        rows: of `answered`, and `FAULT`, empty; of a refused row all columns that the engine handed
            back. A block of no rows may have no columns.

    Raises:
        WorkError: a row failed for another reason than what is in it.
    """
    if not rows.num_rows:
        return Answers(OUTPUT.empty_table(), DEAD.empty_table())
    is_good = pc.equal(rows[FAULT], "")
    good = rows.filter(is_good)
    answers = good.select(OUTPUT.names).cast(OUTPUT) if good.num_rows else OUTPUT.empty_table()
    bad = rows.filter(pc.invert(is_good))
    if not bad.num_rows:
        return Answers(answers, DEAD.empty_table())
    faults = dict(enumerate(map(refusal, bad[FAULT].to_pylist())))
    return Answers(answers, refused(bad, bad[TEXT].to_pylist(), faults))


def refusal(fault: str) -> str:
    """Return why vLLM does not take a prompt.

    Args:
        fault: the name of an exception's class, and what it says.

    Raises:
        WorkError: it is not the prompt's fault.
    """
    kind, _, said = fault.partition(": ")
    if kind not in REFUSALS:
        raise WorkError(
            "vLLM failed at a prompt; nothing was committed",
            seen=fault.splitlines()[0],
            hint="look at the log of the engine, in the logs of Ray, and run it again",
        )
    return f"vLLM does not take the prompt: {said}"
