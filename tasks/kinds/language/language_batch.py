"""Batch scoring with a language model: the job, its drift reference, and the live model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.common.language_generation import chat_template_of
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.data.snapshots import Snapshot, sample_rows
from millrace.models.inference.language_engine import engine_of
from millrace.models.language.corpus.documents import kind_of
from millrace.models.registry.version_files import Package
from millrace.serving.batch.input.row_sample import Example
from millrace.serving.batch.job import TOKENS_IN, TOKENS_OUT
from millrace.serving.batch.monitoring.agreement import Difference, text_difference
from millrace.serving.batch.monitoring.drift import Bins, bins_of_values
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import (
    Prompts,
    Sampling,
    context_of,
    is_readable,
)
from millrace.serving.batch.prompts.vllm_engines import (
    engine_arguments_of,
    engines_of,
    gpus_of_ray,
    vllm_version,
)
from millrace.serving.batch.prompts.vllm_job import VllmJob
from millrace.serving.release.golden_prompts import INEXACT
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.streams import stream_request
from millrace.tasks.batch.drift_reference import SAMPLE_ROWS, bins_unless_gone
from millrace.tasks.kinds.language.language_evidence import language_evidence
from millrace.tasks.kinds.language.language_files import language_files
from millrace.tasks.kinds.steps import LiveSample

Continue = Callable[
    [str | stream_request.Messages, stream_request.Sampling, float], stream_request.Piece
]
"""A function that continues one prompt, with a timeout in seconds."""
COMPARED_TOKENS = 32
"""Tokens of an answer to compare; few, because the live model also serves other clients."""
CALL_PROMPTS = 256
"""Prompts in one call of an engine, unless the pipeline file sets `batch.batch_size`."""
SAMPLE = LiveSample(rows=8, seconds=30.0, share=0.25)


def prompt_job(
    pipeline: Pipeline,
    package: Package,
    installation: Installation,
    dataset_columns: tuple[Column, ...],
) -> PromptJob | VllmJob:
    """Return the batch job that continues prompts with a version.

    Args:
        pipeline: the pipeline with the batch settings.
        package: the version's files.
        installation: the location of vLLM, for a vLLM variant; Ray must then be connected.
        dataset_columns: the columns with their types in the dataset; empty if there is no dataset.

    Raises:
        InputError: Ray has too few GPUs for the variant, or lacks vLLM on its GPU nodes; or the
            pipeline asks for columns that completions do not have.
    """
    files = language_files(package)
    version, batch, folder = files.version, pipeline.batch, files.folder
    if batch.columns or batch.scores is not None:
        raise InputError(
            f"batch.columns and batch.scores are not for {version.model}, a language model",
            hint="leave them out, and join the completions by `_key`",
        )
    sampling = Sampling(**batch.sampling.model_dump())
    key = batch.key or pipeline.dataset.key
    names = (pipeline.name, version.version, version.digest)
    prompts = (*names, folder, batch.prompt, sampling, key, dataset_columns)
    batch_size, generation = batch.batch_size or CALL_PROMPTS, pipeline.serving.generation
    template = chat_template_of(folder)
    if engine_of(package.files) != "vllm":
        return PromptJob(
            *prompts,
            template=template,
            threads=batch.threads_per_actor,
            max_num_batched_tokens=batch.max_num_batched_tokens,
            cache_size_gib=generation.cache_size_gib,
            batch_size=batch_size,
        )
    # The GPUs are checked first, because without one the version of vLLM cannot be read.
    engines = engines_of(batch.num_actors, gpus_of_ray(), generation.tensor_parallel_size)
    return VllmJob(
        *prompts,
        arguments=engine_arguments_of(folder, generation, batch.max_num_batched_tokens),
        vllm=vllm_version(installation.vllm_python),
        python=installation.vllm_python,
        engines=engines,
        batch_size=batch_size,
    )


def with_prompt_bins(job: Prompts, snapshot: Snapshot) -> Prompts:
    """Return the job with the bins of the lengths of prompts and answers in the training data."""
    return replace(job, output_bins=bins_unless_gone(partial(prompt_bins, job), snapshot))


def prompt_bins(job: Prompts, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the lengths of instructions and of their answers, in tokens.

    Lengths of answers are cut to `max_tokens`, because the job's answers are not longer.

    Returns:
        The bins. There are none if the model was trained on a corpus or on chats, because such
        texts cannot be compared with the job's prompts.
    """
    schema = snapshot.schema
    if kind_of(schema) != "instructions":
        return ()
    asked, answered = schema.features[0], schema.target
    rows = sample_rows(snapshot, (asked, answered), SAMPLE_ROWS)
    prompts = _lengths(job, rows[asked], special=True)
    # The end token counts as part of an answer.
    answers = pc.min_element_wise(
        pc.add(_lengths(job, rows[answered], special=False), 1), job.sampling.max_tokens
    )
    return bins_of_values(TOKENS_IN, prompts), bins_of_values(TOKENS_OUT, answers)


def _lengths(job: Prompts, texts: pa.ChunkedArray, *, special: bool) -> pa.Array:
    """Return the lengths of texts in tokens, int64, without texts that the job would not read."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(job.variant / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    context = context_of(job.variant)
    read = [text for text in texts.to_pylist() if text and is_readable(text, context)]
    found = tokenizer.encode_batch_fast(read, add_special_tokens=special)
    return pa.array([len(encoding.ids) for encoding in found], pa.int64())


def sample_prompts(job: Prompts) -> LiveSample:
    """Return the sample of rows to compare with the live model."""
    if job.sampling.temperature > 0:
        return replace(SAMPLE, obstacle="its answers are sampled at random")
    return SAMPLE


@dataclass(frozen=True)
class LivePrompts:
    """A live language model, to compare with a job whose answers are greedy.

    Attributes:
        job: the job that continued the prompts.
        ask: a function that continues one prompt, with a timeout in seconds.
        exact: whether an answer is independent of the engine's other requests.
    """

    job: Prompts
    ask: Continue
    exact: bool = True

    @property
    def answers(self) -> tuple[str, ...]:
        """The output column to compare: the completion."""
        return ("completion",)

    def difference(self, example: Example, seconds: float) -> Difference:
        """Let the live model continue a prompt for some tokens, and compare the texts."""
        own = self.job.sampling
        sampling = stream_request.Sampling(
            temperature=0,
            repetition_penalty=own.repetition_penalty,
            stop=own.stop,
            max_tokens=min(own.max_tokens, COMPARED_TOKENS),
        )
        answer = self.ask(self.job.read_prompt(example.row), sampling, seconds)
        return text_difference(
            example.written["completion"],
            answer.texts[0],
            own.stop,
            is_whole=answer.finish_reasons[0] == "stop",
            exact=self.exact,
        )


def live_prompts(
    job: Prompts, package: Package, installation: Installation, client: TritonClient
) -> tuple[LivePrompts, float]:
    """Return the live model, and the share of its answers that may differ by chance."""

    def complete(
        prompt: str | stream_request.Messages, sampling: stream_request.Sampling, seconds: float
    ) -> stream_request.Piece:
        return client.streams.complete(
            job.model, prompt, sampling, version=job.version, deadline=seconds
        )

    exact = language_evidence(package, installation).golden().exact
    return LivePrompts(job, complete, exact), 0.0 if exact else INEXACT
