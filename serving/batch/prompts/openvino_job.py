"""Prompts through a language model: one engine of OpenVINO GenAI in each actor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from ray.data import Dataset

from millrace.models.data.schema import KEY
from millrace.models.inference.language_engine import own_properties
from millrace.serving.batch.actor import ActorContext, in_actors
from millrace.serving.batch.block_size import Blocks, Load, slow_blocks_of
from millrace.serving.batch.job import ROW, Answers
from millrace.serving.batch.prompts.openvino_engine import Asked, Engine, Finished
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


@dataclass(frozen=True)
class PromptJob(Prompts):
    """What every reader and every actor needs to know.

    Attributes:
        threads: threads of each engine; 0 for all cores.
        max_num_seqs: answers that an engine works on at a time.
        max_num_batched_tokens: that an engine reads in a step; None for as many as it chooses.
        cache_size_gib: memory of keys and values of each engine.
        batch_size: prompts that an engine is given at a time, the longest first.
    """

    threads: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    cache_size_gib: int = 1
    batch_size: int = 256

    def blocks(self, load: Load) -> Blocks:
        """Return how prompts go through Ray, to actors that only answer."""
        return slow_blocks_of(load, self.batch_size)

    def answered(self, rows: Dataset, means: ActorContext) -> Dataset:
        """Answer rows in a pool of actors."""
        return in_actors(rows, self, means)

    def worker(self) -> "Generator":
        """Open an engine."""
        return Generator(self)


class Generator:
    """Continues tables of prompts."""

    def __init__(self, job: PromptJob) -> None:
        self.job = job
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
        """Return the answers; a prompt that leaves no room for one is refused.

        Args:
            rows: `_row`, `_key` and the prompt.
        """
        texts, installation = rows[PROMPT].to_pylist(), rows[ROW].to_pylist()
        asked_in = zip(texts, chats_among(rows), strict=True)
        ids = [self._tokens(text, is_chat=is_chat) for text, is_chat in asked_in]
        pairs = zip(texts, ids, strict=True)
        faults = [fault_in(text, each, self.context) for text, each in pairs]
        good = [n for n, fault in enumerate(faults) if fault is None]
        # The longest first: what is left at the end is short, and the engine full till then.
        good.sort(key=lambda n: -len(ids[n]))
        asked = [self._asked(ids[n], installation[n]) for n in good]
        found = dict(zip(good, self.engine.finish(asked), strict=True))
        for n, answer in found.items():
            faults[n] = answer.fault
        done = [n for n in range(len(texts)) if faults[n] is None]
        return Answers(
            self._table(rows, ids, found, done),
            refused(rows, texts, {n: fault for n, fault in enumerate(faults) if fault}),
        )

    def _tokens(self, text: str, *, is_chat: bool = False) -> Sequence[int]:
        readable = is_readable(text, self.context)
        return self.engine.tokens(text, is_chat=is_chat) if readable else ()

    def _asked(self, ids: Sequence[int], row: int) -> Asked:
        sampling = self.job.sampling
        room = min(sampling.max_tokens, self.context - len(ids))
        return Asked(ids, room, self.job.seed_of(row), sampling)

    def _table(
        self,
        rows: pa.Table,
        ids: Sequence[Sequence[int]],
        found: Mapping[int, Finished],
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
