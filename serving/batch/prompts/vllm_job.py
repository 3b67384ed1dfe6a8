"""Prompts through a language model on GPUs: `ray.data.llm` with vLLM.

A row carries its columns from stage to stage, and each stage adds its own: the tokens, the sampling
parameters, the answer. Those of the engine are the fields of `vLLMOutputData` in
`ray/llm/_internal/batch/stages/vllm_engine_stage.py` of Ray 2.60, and `__inference_error__`, empty
where there is none. Why an answer ended is not among them.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import ActorPoolStrategy, Dataset
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.models.common.errors import WorkError
from millrace.models.data.schema import KEY
from millrace.serving.batch.actor import ActorContext, work_of
from millrace.serving.batch.block_size import Blocks, Load
from millrace.serving.batch.cluster.model_files import with_files_on_nodes
from millrace.serving.batch.job import DEAD, ROW, TOKENS_IN, TOKENS_OUT, Answers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.progress_counter import Meter
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
from millrace.serving.batch.prompts.vllm_engines import ends_of, runtime_env_of, tokenizer_of

TEXT = "text"
"""The prompt. As `prompt`, the name of the engine's own column, a refused row would come back
without it."""
TOKENS = "tokenized_prompt"
SAMPLING = "sampling_params"
FAULT = "__inference_error__"
REFUSALS = ("VLLMValidationError", "ValueError")
"""What vLLM raises against a prompt; all else that it raises is the engine's fault or ours."""
BLOCK_BYTES = 256 * 1024
"""Of rows as they are on the way through Ray, where answers travel with all their tokens; a kill
costs what the engines have of them."""
BATCHES = 4
"""That an engine has at a time, or more where they are small: one that is done is replaced only
when its last answer is, and the others keep the engine full till then."""
NO_STATISTICS = {"disable_log_stats": True}
"""Of each answer: Ray 2.60 cannot put a batch that has them after one where every row failed."""
STAGE = "vLLMEngineStage"
ENGINES = "engines"
"""The name of all engines in the meter: no row shows which one answered it."""


@dataclass(frozen=True)
class VllmJob(Prompts):
    """A job of prompts, as readers and engines get it.

    Attributes:
        arguments: of each engine, see `vllm_engines.engine_arguments_of`.
        vllm: version of vLLM.
        python: of the environment that has it; None for that of Ray itself.
        engines: how many.
        batch_size: prompts that an engine is given at a time.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    vllm: str = ""
    python: Path | None = None
    engines: int = 1
    batch_size: int = 256

    def parameters(self) -> Mapping[str, Any]:
        """Return what else changes the answers."""
        # By the memory vLLM cuts the context; by the number of GPUs it adds up in another order.
        names = ("kv_cache_memory_bytes", "tensor_parallel_size")
        more = {name: self.arguments.get(name) for name in names}
        return {**super().parameters(), "vllm": self.vllm, **more}

    def blocks(self, load: Load) -> Blocks:
        """Return how prompts go through Ray: always the same."""
        del load
        return Blocks(BLOCK_BYTES, self.batch_size)

    def answer_rows(self, rows: Dataset, context: ActorContext) -> Dataset:
        """Answer rows by engines of vLLM, tokens first."""
        here, task = _spread() if context.model is not None else ({}, {})
        variant = self.variant
        if context.model is not None:
            variant = with_files_on_nodes(self, context.model, "GPU").variant
        tokens = rows.map_batches(
            Tokens,
            fn_constructor_args=(self.variant, context.state),
            batch_size=context.blocks.rows_per_call,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(min_size=1, max_size=self.engines),
            **here,
        )
        answers: Dataset = processor_of(self, variant, task)(tokens)
        take_answers = partial(_take_answers, state=context.state, meter=context.meter)
        return answers.map_batches(take_answers, batch_size=None, batch_format="pyarrow", **task)


def processor_of(job: VllmJob, variant: Path, task: Mapping[str, Any]) -> Any:
    """Return the processor from a dataset of `Tokens` to one for `split_answers`.

    It needs a Ray that is connected, and no vLLM here.

    Args:
        job: whose prompts they are.
        variant: the folder of the model's files, where the engines are.
        task: Ray's options of the tasks before and after the engines.
    """
    from ray.data.llm import build_processor

    with _silence_logging():
        processor = build_processor(
            processor_config(job, variant),
            preprocess=partial(build_engine_columns, job=job),
            postprocess=partial(build_output_row, job=job, ends=ends_of(job.variant)),
            preprocess_map_kwargs=dict(task),
            postprocess_map_kwargs=dict(task),
        )
    if job.arguments["tensor_parallel_size"] == 1:
        # Or a machine with as many GPUs as cores has none left for the tasks that read and write.
        processor.get_stage_by_name(STAGE).map_batches_kwargs["num_cpus"] = 0
    return processor


def processor_config(job: VllmJob, variant: Path) -> Any:
    """Return how ray.data.llm runs the engines: its `vLLMEngineProcessorConfig`.

    Prompts are texts to continue, already in tokens, so none of its other stages runs. A row
    that an engine refuses comes back with the reason and does not end the job.

    Args:
        job: whose prompts they are.
        variant: the folder of the model's files, where the engines are.
    """
    from ray.data.llm import vLLMEngineProcessorConfig

    arguments = {name: value for name, value in job.arguments.items() if name != "model"}
    many = math.ceil(BATCHES * arguments["max_num_seqs"] / job.batch_size)
    return vLLMEngineProcessorConfig(
        model_source=str(variant),
        engine_kwargs={**arguments, **NO_STATISTICS},
        batch_size=job.batch_size,
        max_concurrent_batches=max(many, BATCHES),
        concurrency=(job.engines, job.engines),
        runtime_env=runtime_env_of(job.python),
        should_continue_on_error=True,
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
        log_engine_metrics=False,
    )


def _spread() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return Ray's options of what makes tokens and of tasks, where there are other nodes.

    They hold no CPU, see `spread`. Tokens are made where the driver is, and the model's files are.
    """
    task = {"num_cpus": 0}
    node = ray.get_runtime_context().get_node_id()
    return {**task, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}, task


def _take_answers(rows: pa.Table, state: JobState, meter: Meter) -> pa.Table:
    """Return the answers among rows of the processor; write the refused rows to the state."""
    answers = split_answers(rows)
    if answers.refused.num_rows:
        # The same rows come under the same name again.
        first = pc.min(answers.refused[ROW]).as_py()
        state.refuse(f"{first:019d}-{ENGINES}", answers.refused)
    meter.add(ENGINES, 0.0, work_of(answers.rows))
    return answers.rows


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Log nothing while a processor is built, which calls `ray.init` again."""
    logger, disabled = logging.getLogger("ray"), logging.root.manager.disable
    level = logger.level
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(disabled)
        logger.setLevel(level)


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
