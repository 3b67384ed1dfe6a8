"""Batch jobs of prompts with OpenVINO GenAI, with one engine in each actor.

An engine works on many prompts at once, because nobody waits for a single answer.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import ends_of, greedy_config, prompt_ids, shown_ids
from millrace.models.data.schema import KEY
from millrace.models.inference.language_engine import own_properties
from millrace.serving.batch.actor import ActorContext, in_actors
from millrace.serving.batch.beside_online.pause_file import Wait, go_on
from millrace.serving.batch.block_size import Blocks, Load, slow_blocks_of
from millrace.serving.batch.job import ROW, Answers
from millrace.serving.batch.prompts.prompt_rows import (
    OUTPUT,
    PROMPT,
    Prompts,
    Sampling,
    chats_among,
    context_of,
    fault_in,
    is_readable,
    refused,
)

NO_ROOM = "the engine's cache has no room for the answer"


@dataclass(frozen=True)
class EnginePrompt:
    """One prompt as tokens, with its sampling parameters.

    Attributes:
        ids: the tokens of the prompt.
        max_tokens: largest number of tokens of the answer.
        seed: random seed of the answer, if it is sampled.
        sampling: the other sampling parameters.
    """

    ids: Sequence[int]
    max_tokens: int
    seed: int
    sampling: Sampling


@dataclass(frozen=True)
class EngineAnswer:
    """The answer to a prompt, or why there is none.

    Attributes:
        text: the answer.
        reason: why the answer ended: `stop` or `length`.
        tokens: number of generated tokens.
        fault: why there is no answer; None if there is one.
    """

    text: str = ""
    reason: str = ""
    tokens: int = 0
    fault: str | None = None


class Engine:
    """A model that is opened by OpenVINO GenAI.

    Args:
        variant: the folder of the model's files.
        properties: OpenVINO properties that the variant sets.
        threads: threads of the engine; 0: all cores.
        sequences: largest number of answers at a time.
        batched_tokens: largest number of tokens in one iteration of the engine; None: OpenVINO
            GenAI chooses.
        cache_size_gib: size of the KV cache, in GiB.
    """

    def __init__(
        self,
        variant: Path,
        properties: Mapping[str, str],
        *,
        threads: int,
        sequences: int,
        batched_tokens: int | None,
        cache_size_gib: int,
    ) -> None:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino as ov
        import openvino_genai as genai

        self._ov, self._genai, self._sequences = ov, genai, sequences
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = sequences
        # Every answer in progress takes one token in each iteration of the engine.
        tokens = batched_tokens or scheduler.max_num_batched_tokens
        scheduler.max_num_batched_tokens = max(tokens, sequences)
        scheduler.cache_size = cache_size_gib
        scheduler.enable_prefix_caching = True
        options: dict[str, Any] = dict(properties)
        # Several engines on one host would pin their threads to the same cores.
        options["ENABLE_CPU_PINNING"] = False
        if threads:
            options["INFERENCE_NUM_THREADS"] = threads
        try:
            self._pipeline = genai.ContinuousBatchingPipeline(
                str(variant), scheduler, "CPU", options
            )
        except RuntimeError:  # its text names build folders of OpenVINO
            raise WorkError(
                "OpenVINO GenAI cannot open the files of the model",
                seen=variant,
                valid="a variant for openvino_genai, and memory for the model and its cache",
                hint="check export.candidates in the pipeline file, or lower "
                "serving.generation.cache_size_gib",
            ) from None
        self._tokenizer = self._pipeline.get_tokenizer()
        self._defaults = self._pipeline.get_config()

    def tokenize(self, text: str, *, is_chat: bool = False) -> Sequence[int]:
        """Return the tokens of a prompt: a text, or a chat that the template has formatted."""
        return [int(each) for each in prompt_ids(self._tokenizer, text, is_chat=is_chat)[0]]

    def answer_prompts(
        self, prompts: Sequence[EnginePrompt], wait: Wait = go_on
    ) -> list[EngineAnswer]:
        """Return the answers in order; at most `sequences` prompts are in progress at a time.

        Args:
            prompts: the prompts.
            wait: called before each step of the engine.
        """
        waiting = list(enumerate(prompts))[::-1]
        running: dict[int, Any] = {}
        ids: list[list[int]] = [[] for _ in prompts]
        reasons: list[str | None] = [None] * len(prompts)
        while waiting or running:
            while waiting and len(running) < self._sequences:
                number, each = waiting.pop()
                tensor = self._ov.Tensor(np.array([each.ids], np.int64))
                running[number] = self._pipeline.add_request(
                    number, tensor, self._build_config(each)
                )
            wait()
            self._pipeline.step()
            for number, handle in list(running.items()):
                reasons[number] = self._read(handle, ids[number])
                if reasons[number] is not None:
                    del running[number]
        ends = ends_of(self._defaults)
        shown = [list(shown_ids(each, ends)) for each in ids]
        texts = self._tokenizer.decode(shown) if ids else []
        return [
            self._build_answer(*each) for each in zip(prompts, ids, texts, reasons, strict=True)
        ]

    def _read(self, handle: Any, ids: list[int]) -> str | None:
        """Append an answer's new tokens to `ids`; return why it ended, or None if it has not."""
        none, length = (
            self._genai.GenerationFinishReason.NONE,
            self._genai.GenerationFinishReason.LENGTH,
        )
        reason = None
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
                if output.finish_reason != none:
                    reason = "length" if output.finish_reason == length else "stop"
        if reason is None and handle.get_status() == self._genai.GenerationStatus.IGNORED:
            return NO_ROOM
        return reason

    def _build_answer(
        self, prompt: EnginePrompt, ids: Sequence[int], text: str, reason: str | None
    ) -> EngineAnswer:
        if reason == NO_ROOM:
            return EngineAnswer(fault=NO_ROOM)
        ended = prompt.sampling.ended(text)
        if ended is not None:
            return EngineAnswer(ended, "stop", len(ids))
        return EngineAnswer(text, reason or "stop", len(ids))

    def _build_config(self, prompt: EnginePrompt) -> Any:
        """Return the configuration of one answer."""
        sampling, config = prompt.sampling, greedy_config(self._defaults, prompt.max_tokens)
        config.stop_strings = set(sampling.stop)
        config.include_stop_str_in_output = True  # it is cut off from the complete answer
        config.repetition_penalty = sampling.repetition_penalty
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = sampling.temperature, sampling.top_p
            config.rng_seed = prompt.seed
            if sampling.top_k is not None:
                config.top_k = sampling.top_k
        return config


@dataclass(frozen=True)
class PromptJob(Prompts):
    """A batch job of prompts, as it is sent to readers and actors.

    Attributes:
        threads: threads of each engine; 0: all cores.
        max_num_seqs: largest number of answers that an engine works on at a time.
        max_num_batched_tokens: largest number of tokens in one iteration of the engine; None: the
            engine chooses.
        cache_size_gib: size of each engine's KV cache, in GiB.
        batch_size: prompts that an engine gets at a time, the longest first.
    """

    threads: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    cache_size_gib: int = 1
    batch_size: int = 256

    def parameters(self) -> Mapping[str, Any]:
        """Return the settings besides model and key that change the answers."""
        return {**super().parameters(), "openvino_genai": version("openvino-genai")}

    def blocks(self, load: Load) -> Blocks:
        """Return the block sizes for prompts, which tasks read and actors answer."""
        return slow_blocks_of(load, self.batch_size)

    def answer_rows(self, rows: Dataset, context: ActorContext) -> Dataset:
        """Answer rows in a pool of actors."""
        return in_actors(rows, self, context)

    def worker(self, wait: Wait = go_on) -> "Generator":
        """Open an engine."""
        return Generator(self, wait)


class Generator:
    """Answers tables of prompts with one engine."""

    def __init__(self, job: PromptJob, wait: Wait = go_on) -> None:
        self.job, self.wait = job, wait
        self.context = context_of(job.variant)
        self.engine = Engine(
            job.variant,
            own_properties(job.variant),
            threads=job.threads,
            sequences=job.max_num_seqs,
            batched_tokens=job.max_num_batched_tokens,
            cache_size_gib=job.cache_size_gib,
        )

    def __call__(self, rows: pa.Table) -> Answers:
        """Return the answers; a prompt that leaves no room for an answer is refused.

        Args:
            rows: a table with `_row`, `_key` and the prompt.
        """
        texts, numbers = rows[PROMPT].to_pylist(), rows[ROW].to_pylist()
        prompts = zip(texts, chats_among(rows), strict=True)
        ids = [self._tokenize(text, is_chat=is_chat) for text, is_chat in prompts]
        pairs = zip(texts, ids, strict=True)
        faults = [fault_in(text, each, self.context) for text, each in pairs]
        good = [n for n, fault in enumerate(faults) if fault is None]
        # The longest first, so that at the end only short ones run and the engine stays full.
        good.sort(key=lambda n: -len(ids[n]))
        asked = [self._build_prompt(ids[n], numbers[n]) for n in good]
        answers = self.engine.answer_prompts(asked, self.wait)
        found = dict(zip(good, answers, strict=True))
        for n, answer in found.items():
            faults[n] = answer.fault
        done = [n for n in range(len(texts)) if faults[n] is None]
        return Answers(
            self._build_table(rows, ids, found, done),
            refused(rows, texts, {n: fault for n, fault in enumerate(faults) if fault}),
        )

    def _tokenize(self, text: str, *, is_chat: bool = False) -> Sequence[int]:
        readable = is_readable(text, self.context)
        return self.engine.tokenize(text, is_chat=is_chat) if readable else ()

    def _build_prompt(self, ids: Sequence[int], row: int) -> EnginePrompt:
        sampling = self.job.sampling
        room = min(sampling.max_tokens, self.context - len(ids))
        return EnginePrompt(ids, room, self.job.seed_of(row), sampling)

    def _build_table(
        self,
        rows: pa.Table,
        ids: Sequence[Sequence[int]],
        found: Mapping[int, EngineAnswer],
        done: Sequence[int],
    ) -> pa.Table:
        taken = rows.take(pa.array(done, pa.int64()))
        answers = [found[n] for n in done]
        columns = [
            taken[KEY],
            pa.array([answer.text for answer in answers], pa.string()),
            pa.array([answer.reason for answer in answers], pa.string()),
            pa.array([len(ids[n]) for n in done], pa.int32()),
            pa.array([answer.tokens for answer in answers], pa.int32()),
            pa.array(np.full(len(done), self.job.version, np.int32)),
            taken[ROW],
        ]
        return pa.table(columns, schema=OUTPUT)
