"""Batch jobs of prompts on GPUs: `ray.data.llm` with vLLM.

A row carries its columns from stage to stage, and each stage adds its own: the tokens, the sampling
parameters, the answer. The engine adds the fields of `vLLMOutputData` in
`ray/llm/_internal/batch/stages/vllm_engine_stage.py` of Ray 2.60, and `__inference_error__`, which
is empty if there was no error. None of these fields says why an answer ended.
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
"""Column with the prompt. It is not called `prompt`, because the engine has a column of that name:
a refused row would come back without its prompt."""
TOKENS = "tokenized_prompt"
SAMPLING = "sampling_params"
FAULT = "__inference_error__"
REFUSALS = ("VLLMValidationError", "ValueError")
"""Exceptions of vLLM about a prompt; any other one is a fault of the engine or of Millrace."""
BLOCK_BYTES = 256 * 1024
"""Size of a block in Ray, in bytes. A block holds all tokens of its answers. A kill loses the
work of the blocks that the engines work on."""
BATCHES = 4
"""Smallest number of batches that an engine has at a time; more if batches are small. A batch is
replaced only when its last answer is done; until then the other batches keep the engine full."""
NO_STATISTICS = {"disable_log_stats": True}
"""Turns statistics off: Ray 2.60 cannot append a batch with statistics to a batch where every row
failed.
"""
STAGE = "vLLMEngineStage"
ENGINES = "engines"
"""One name for all engines in the meter, because no row shows which engine answered it."""


@dataclass(frozen=True)
class VllmJob(Prompts):
    """A batch job of prompts, as it is sent to readers and engines.

    Attributes:
        arguments: arguments of each engine, see `vllm_engines.engine_arguments_of`.
        vllm: version of vLLM.
        python: the Python of the environment with vLLM; None: the Python of Ray itself.
        engines: number of engines.
        batch_size: prompts that an engine gets at a time.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    vllm: str = ""
    python: Path | None = None
    engines: int = 1
    batch_size: int = 256

    def parameters(self) -> Mapping[str, Any]:
        """Return the settings besides model and key that change the answers."""
        # The memory limits the context; the number of GPUs changes the order of additions.
        names = ("kv_cache_memory_bytes", "tensor_parallel_size")
        more = {name: self.arguments.get(name) for name in names}
        return {**super().parameters(), "vllm": self.vllm, **more}

    def blocks(self, load: Load) -> Blocks:
        """Return the block sizes, which are the same for all batches of prompts."""
        del load
        return Blocks(BLOCK_BYTES, self.batch_size)

    def answer_rows(self, rows: Dataset, context: ActorContext) -> Dataset:
        """Tokenize the rows, and answer them with engines of vLLM."""
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
    """Return Ray's processor that turns the output of `Tokens` into the input of `split_answers`.

    Ray must be connected; vLLM is not needed in this process.

    Args:
        job: the job of the prompts.
        variant: the folder of the model's files on the engines' nodes.
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
        # Else a machine with as many GPUs as cores has no core left for tasks to read and write.
        processor.get_stage_by_name(STAGE).map_batches_kwargs["num_cpus"] = 0
    return processor


def processor_config(job: VllmJob, variant: Path) -> Any:
    """Return how ray.data.llm runs the engines: its `vLLMEngineProcessorConfig`.

    Prompts are tokenized already, so none of the other stages of ray.data.llm runs. A row that
    an engine refuses comes back with the reason and does not end the job.

    Args:
        job: the job of the prompts.
        variant: the folder of the model's files on the engines' nodes.
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
    """Return Ray's options on a cluster, for the actors that tokenize and for the tasks.

    Neither reserves a CPU, see `actor._read_options`. Tokenizing runs on the driver's node, where
    the model's files are.
    """
    task = {"num_cpus": 0}
    node = ray.get_runtime_context().get_node_id()
    return {**task, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}, task


def _take_answers(rows: pa.Table, state: JobState, meter: Meter) -> pa.Table:
    """Return the answers among rows of the processor; write the refused rows to the state."""
    answers = split_answers(rows)
    if answers.refused.num_rows:
        # If Ray repeats the task, the same rows are written to the same file.
        first = pc.min(answers.refused[ROW]).as_py()
        state.refuse(f"{first:019d}-{ENGINES}", answers.refused)
    meter.add(ENGINES, 0.0, work_of(answers.rows))
    return answers.rows


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Turn logging off while a processor is built, because the build calls `ray.init` again."""
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
        job: the job, with the sampling parameters.
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
        # A stop text in the answer shows why the answer ended; it is cut off afterwards.
        parameters |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return {SAMPLING: parameters}


def build_output_row(row: Mapping[str, Any], job: Prompts, ends: Collection[int]) -> dict[str, Any]:
    """Return the output row, with the columns of `OUTPUT`, of a row that the engine answered.

    Args:
        row: the row as the engine returns it, without an error.
        job: the job, with the stop texts.
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
        rows: answered rows as `build_output_row` returns them, with an empty `FAULT`, and refused
            rows with all columns that the engine returned. An empty block may have no columns.

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
    """Return why vLLM refuses a prompt.

    Args:
        fault: the name of an exception's class, and its message.

    Raises:
        WorkError: the exception is not about the prompt.
    """
    kind, _, message = fault.partition(": ")
    if kind not in REFUSALS:
        raise WorkError(
            "vLLM failed while answering a prompt; nothing was committed",
            seen=fault.splitlines()[0],
            hint="read the log of the engine, in the logs of Ray, and run the job again",
        )
    return f"vLLM refuses the prompt: {message}"


class Tokens:
    """Tokenizes prompts, in an actor of Ray Data.

    Args:
        variant: the folder of the model's files.
        state: the job state that records prompts without room for an answer.
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
