"""Prompts through the real `ray.data.llm`: a stand-in for vLLM, a GPU that Ray only believes in."""

import gc
import json
import logging
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deltalake
import pytest
import ray

from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.progress_counter import ActorProgress
from millrace.serving.batch.monitoring.throughput import Work
from millrace.serving.batch.prompts import vllm_job
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.prompts.vllm_engines import engine_arguments_of, vllm_version
from millrace.serving.batch.prompts.vllm_job import (
    STAGE,
    VllmJob,
    processor_of,
)
from millrace.serving.batch.scoring import RunOptions, Target, score
from tests.stand_ins.vllm_variant import write_variant

pytestmark = pytest.mark.slow

STAND_INS = Path(__file__).parents[1] / "stand_ins"
TEXT = "the old mill by the river turned its wheel all day and all night long. " * 4
CONTEXT = 64


@dataclass(frozen=True)
class Night:
    """A job, and the folder it works in."""

    folder: Path
    job: VllmJob
    tokenizer: Any

    def answer(
        self, prompts: list[str], how: RunOptions | None = None, **changes: Any
    ) -> BatchReport:
        source = self.folder / "prompts.jsonl"
        source.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
        job, told = replace(self.job, **changes), dict[str, ActorProgress]()
        target = Target(str(self.folder / "table"), str(self.folder / "dead"), "2026-01-05")
        found = open_input(str(source), job)
        report = score(
            found, job, target, how or RunOptions(), lambda _, each, __: told.update(each)
        )
        if not report.resumed:
            work = Work(report.scored, report.tokens_in or 0, report.tokens_out or 0)
            assert {name: each.work for name, each in told.items()} == {"engines": work}
        return report

    def rows(self, table: str = "table") -> list[dict[str, Any]]:
        found = deltalake.DeltaTable(self.folder / table).to_pyarrow_table()
        return found.sort_by("_row").to_pylist()  # type: ignore[no-any-return]

    def backwards(self, prompt: str) -> str:
        return str(self.tokenizer.decode(self.tokenizer.encode(prompt)[::-1]))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment that has vLLM, or something like it."""
    made = tmp_path_factory.mktemp("of vllm") / "python"
    made.write_text(f'#!/bin/sh\nPYTHONPATH={STAND_INS} exec {sys.executable} "$@"\n')
    made.chmod(0o755)
    ray.init("local", num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield made
    ray.shutdown()


@pytest.fixture
def night(tmp_path: Path, python: Path) -> Night:
    variant = tmp_path / "form"
    tokenizer = write_variant(variant, TEXT, CONTEXT)
    arguments = engine_arguments_of(variant, GenerationSpec())
    sampling = Sampling(max_tokens=CONTEXT)
    job = VllmJob("m", 3, "d", variant, sampling=sampling, arguments=arguments, python=python)
    return Night(tmp_path, replace(job, batch_size=8), tokenizer)


def wait_for_the_gpu() -> None:
    deadline = time.monotonic() + 60
    while not ray.available_resources().get("GPU"):
        gc.collect()  # as the next job does
        assert time.monotonic() < deadline, "an engine still holds it"
        time.sleep(0.1)


@pytest.mark.parametrize("is_spread", [False, True])
def test_every_prompt_is_answered_or_dead_with_its_reason(night: Night, is_spread: bool) -> None:
    prompts = [TEXT[n : n + 9] for n in range(40)]
    report = night.answer(
        [*prompts, "", TEXT * 4, "REFUSED", TEXT * 400], RunOptions(is_spread=is_spread)
    )
    assert (report.rows, report.scored, report.dead) == (44, 40, 4)
    rows = night.rows()
    assert [row["completion"] for row in rows] == [night.backwards(each) for each in prompts]
    counts = [len(night.tokenizer.encode(prompt)) for prompt in prompts]
    assert [row["prompt_tokens"] for row in rows] == counts
    assert [row["completion_tokens"] for row in rows] == [count + 1 for count in counts]
    assert {(row["finish_reason"], row["model_version"]) for row in rows} == {("stop", 3)}
    too_long = f"the prompt is longer than the model's context of {CONTEXT} tokens"
    refused = "vLLM refuses the prompt: The decoder prompt (length 7) is too long."
    dead = night.rows("dead")
    assert [row["reason"] for row in dead] == ["prompt is empty", too_long, refused, too_long]
    assert dead[2]["row"] == '{"prompt": "REFUSED"}'


def test_an_answer_is_drawn_by_the_seed_and_the_row_and_ends_at_a_stop(night: Night) -> None:
    sampling = Sampling(temperature=0.7, top_k=9, seed=5, stop=("the",))
    prompts = ["the old mill", "the old mill", "by the river"]
    night.answer(prompts, sampling=sampling)
    job, expected = replace(night.job, sampling=sampling), []
    for row, prompt in enumerate(prompts):
        ids = night.tokenizer.encode(prompt)
        text = night.tokenizer.decode([ids[job.seed_of(row) % len(ids)], *ids[::-1]])
        expected.append((text.partition("the")[0], "stop"))
    assert [(row["completion"], row["finish_reason"]) for row in night.rows()] == expected


@pytest.mark.chaos
def test_a_job_whose_engine_broke_goes_on_from_what_was_written(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_job, "BLOCK_BYTES", 512)
    (night.job.variant / "breaks").write_text(f"{night.folder} **/checkpoints/*/*.parquet")
    prompts = [*(TEXT[n : n + 9] for n in range(40)), "BROKEN"]
    with pytest.raises(WorkError, match="vLLM failed while answering a prompt") as caught:
        night.answer(prompts)
    assert "CUDA error: an illegal memory access" in str(caught.value)
    wait_for_the_gpu()  # though the error is kept
    (night.job.variant / "breaks").unlink()
    report = night.answer(prompts)
    assert 0 < report.resumed < report.scored == len(prompts)
    assert [row["_row"] for row in night.rows()] == list(range(len(prompts)))


@pytest.mark.chaos
def test_an_engine_that_died_is_replaced(night: Night) -> None:
    (night.job.variant / "fatal").touch()
    report = night.answer([TEXT[n : n + 9] for n in range(20)])
    assert report.scored == len({row["_row"] for row in night.rows()}) == 20


def test_an_engine_that_cannot_be_opened_is_told(night: Night) -> None:
    (night.job.variant / "unopenable").touch()
    with pytest.raises(WorkError, match="batch inference failed") as caught:
        night.answer(["the old mill"])
    assert "CUDA out of memory" in str(caught.value)


def test_which_vllm_is_there_is_asked_on_a_machine_with_a_gpu(python: Path) -> None:
    assert vllm_version(python) == "0.32.0+stand.in"


def test_a_python_that_is_not_there_is_told(tmp_path: Path, python: Path) -> None:
    with pytest.raises(InputError, match="cannot be used for the batch job") as caught:
        vllm_version(tmp_path / "python")
    assert "MILLRACE_VLLM_PYTHON" in str(caught.value)


def test_an_engine_of_several_gpus_gets_them_where_they_are_together(night: Night) -> None:
    arguments = engine_arguments_of(night.job.variant, GenerationSpec(tensor_parallel_size=2))
    job = replace(night.job, arguments=arguments)
    stage = processor_of(job, job.variant, {}).get_stage_by_name(STAGE)
    assert stage.fn_constructor_kwargs["engine_kwargs"]["distributed_executor_backend"] == "ray"
    assert stage.map_batches_kwargs["num_gpus"] == 0
    assert stage.map_batches_kwargs["ray_remote_args_fn"].args[0] == 2


def test_an_engine_of_one_gpu_runs_by_the_python_that_has_vllm(night: Night) -> None:
    processor = processor_of(replace(night.job, engines=3), Path("/elsewhere"), {"num_cpus": 0})
    assert processor.config.model_source == "/elsewhere"
    assert processor.list_stage_names() == [STAGE]
    options = processor.get_stage_by_name(STAGE).map_batches_kwargs
    assert (options["num_gpus"], options["num_cpus"]) == (1, 0)
    assert options["runtime_env"]["py_executable"] == shlex.quote(str(night.job.python))
    assert (options["compute"].min_size, options["compute"].max_size) == (3, 3)
