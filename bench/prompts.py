"""P8: a batch job of prompts, beside the engine alone and beside transformers.generate.

A language model with random weights, the layers of SmolLM2-135M in int8, answers prompts of several
lengths. The engine alone gets all of them at once. transformers has the checkpoint in float32, as a
script without an export would, and some of the prompts, in batches that are padded on the left:
each batch goes on until its longest answer is done. All count the tokens read and generated.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bench.language_model import SERVED, WrittenModel, write_model
from bench.measure import Row, measure_in_turn
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.scoring import RunOptions, Target, score

ROUNDS, ROUNDS_BESIDE = 3, 2
PROMPTS, NEW_TOKENS = 512, 64
OF_TRANSFORMERS, TOGETHER = 64, 32
"""Prompts of a measurement, and prompts of a batch."""
LENGTHS = (80, 200, 400, 800)
"""Characters of the prompts, in turn."""
DATE = "2026-01-05"
GOAL, GOAL_BESIDE = 0.95, 3.0


def prompts_row(folder: Path, cores: int) -> Row:
    """P8: a batch job of prompts beside the engine alone; Ray must be connected."""
    made = write_model(folder / "lm", SERVED)
    chance = np.random.default_rng(0)
    starts = chance.integers(0, len(made.text) - max(LENGTHS), PROMPTS)
    prompts = [made.text[s : s + LENGTHS[n % len(LENGTHS)]] for n, s in enumerate(starts)]
    job = _Job(folder, made.int8, prompts, cores)
    rounds = measure_in_turn(job, _Alone(made.int8, prompts), ROUNDS)
    torch.set_num_threads(cores)
    transformers = _Transformers(made, prompts[:OF_TRANSFORMERS])
    beside = measure_in_turn(job, transformers, ROUNDS_BESIDE, 0)
    last = job.reports[-1]
    return Row(
        name="P8",
        what=f"tokens/s of a batch job ÷ the engine alone, {PROMPTS} prompts, "
        f"{last.tokens_in:,} tokens in, {last.tokens_out:,} out; ÷ transformers.generate in "
        f"float32 {beside.ratio:.2f}",
        value=rounds.ratio,
        goal=f"≥ {GOAL}, and ≥ {GOAL_BESIDE:g}",
        holds=rounds.ratio >= GOAL and beside.ratio >= GOAL_BESIDE,
        samples={
            "job": rounds.a,
            "alone": rounds.b,
            "job_again": beside.a,
            "transformers": beside.b,
        },
    )


class _Job:
    """A batch job, including its start and its commit."""

    def __init__(self, folder: Path, variant: Path, prompts: list[str], actors: int) -> None:
        self.folder, self.variant, self.actors = folder, variant, actors
        self.rows = folder / "prompts.parquet"
        pq.write_table(pa.table({"id": range(len(prompts)), "prompt": prompts}), self.rows)
        self.reports: list[BatchReport] = []

    def __call__(self) -> float:
        table = str(self.folder / f"answers{len(self.reports)}")
        work = PromptJob(
            *("m", 1, "d", self.variant),
            sampling=Sampling(max_tokens=NEW_TOKENS),
            key=("id",),
            threads=1,
        )
        found, target = open_input(str(self.rows), work), Target(table, f"{table}-dead", DATE)
        done = score(found, work, target, RunOptions(num_actors=self.actors))
        self.reports.append(done)
        return ((done.tokens_in or 0) + (done.tokens_out or 0)) / done.seconds


class _Alone:
    """The engine in this process: opened again for each call, with all prompts at once."""

    def __init__(self, variant: Path, prompts: list[str]) -> None:
        self.variant, self.prompts = variant, prompts

    def __call__(self) -> float:
        import openvino_genai as genai

        from millrace.models.inference.language_engine import own_properties

        start = time.perf_counter()
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        pipeline = genai.ContinuousBatchingPipeline(
            str(self.variant), scheduler, "CPU", own_properties(self.variant)
        )
        tokenizer, config = pipeline.get_tokenizer(), pipeline.get_config()
        config.max_new_tokens, config.do_sample = NEW_TOKENS, False
        config.apply_chat_template = False
        ids: list[Any] = [tokenizer.encode(each).input_ids for each in self.prompts]
        found = pipeline.generate(ids, [config] * len(ids))
        tokens = sum(each.shape[1] for each in ids)
        tokens += sum(len(each.m_generation_ids[0]) for each in found)
        return float(tokens / (time.perf_counter() - start))


@dataclass(frozen=True)
class _Transformers:
    """A user's script; its model is loaded before."""

    made: WrittenModel
    prompts: list[str]

    def __call__(self) -> float:
        start = time.perf_counter()
        firsts = range(0, len(self.prompts), TOGETHER)
        tokens = sum(self._generate(self.prompts[first : first + TOGETHER]) for first in firsts)
        return tokens / (time.perf_counter() - start)

    def _generate(self, prompts: list[str]) -> int:
        """Continue prompts, and return the number of tokens read and generated, without padding."""
        mask, new = self.made.generate(prompts, NEW_TOKENS)
        return int(mask.sum() + (new != self.made.tokenizer.pad_token_id).sum())
