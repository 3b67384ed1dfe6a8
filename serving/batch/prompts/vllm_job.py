"""Prompts through a language model on GPUs: `ray.data.llm` with vLLM."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import ActorPoolStrategy, Dataset
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.batch.actor import ActorContext, work_of
from millrace.serving.batch.block_size import Blocks, Load
from millrace.serving.batch.cluster.model_files import with_files_on_nodes
from millrace.serving.batch.job import ROW
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.progress_counter import Meter
from millrace.serving.batch.prompts import vllm_rows
from millrace.serving.batch.prompts.prompt_rows import Prompts
from millrace.serving.batch.prompts.vllm_rows import Tokens, ends_of
from millrace.serving.batch.prompts.vllm_workers import runtime_env_of
from millrace.serving.triton.language.language_config import engine_arguments

BLOCK_BYTES = 256 * 1024
"""Of rows as they are on the way through Ray, where answers travel with all their tokens; a kill
costs what the engines have of them."""
MAX_NUM_SEQS = 256
"""Answers that an engine works on at a time, where the live one is not given more."""
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
        arguments: of each engine, see `engine_arguments_of`.
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


def engine_arguments_of(
    variant: Path, generation: GenerationSpec, batched_tokens: int | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's engine for a night of prompts.

    They are those of the live one, so that it has room beside it. But nobody waits for a single
    answer: there are more at a time, and no draft, which helps single ones and costs many.

    Args:
        variant: the folder of the model's files, absolute.
        generation: how the model is served.
        batched_tokens: that an engine reads in a step; None for as many as vLLM chooses.
    """
    most = max(generation.max_num_seqs, MAX_NUM_SEQS)
    night = generation.model_copy(
        update={"max_num_seqs": most, "draft": None, "stream_interval": None}
    )
    arguments = engine_arguments(variant, night)
    if batched_tokens is not None:
        # Every answer in progress takes one in each step.
        arguments["max_num_batched_tokens"] = max(batched_tokens, most)
    return arguments


def processor_of(job: VllmJob, variant: Path, task: Mapping[str, Any]) -> Any:
    """Return the processor from a dataset of `Tokens` to one for `vllm_rows.split_answers`.

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
            preprocess=partial(vllm_rows.build_engine_columns, job=job),
            postprocess=partial(vllm_rows.build_output_row, job=job, ends=ends_of(job.variant)),
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
    answers = vllm_rows.split_answers(rows)
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
