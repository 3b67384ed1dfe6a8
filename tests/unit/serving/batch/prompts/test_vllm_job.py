"""How vLLM is started for a night of prompts, and which of them come to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.config.language_spec import GenerationSpec
from millrace.models.data.folder import Folder
from millrace.models.data.sources.source import Chunk
from millrace.serving.batch.input.reader import split_chunk
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.prompts.vllm_engines import ends_of, engine_arguments_of
from millrace.serving.batch.prompts.vllm_job import Tokens, VllmJob, processor_config
from millrace.serving.triton.language.language_config import engine_arguments
from tests.stand_ins.vllm_variant import write_variant

TEXT = "the old mill by the river turned its wheel all day and all night long. " * 4
CONTEXT = 32
VARIANT = Path("/forms/lm")


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "form"
    write_variant(folder, TEXT, CONTEXT)
    return folder


def job(variant: Path = VARIANT, **generation: Any) -> VllmJob:
    arguments = engine_arguments_of(variant, GenerationSpec(**generation))
    return VllmJob("m", 3, "d", variant, arguments=arguments, vllm="0.33.0")


def read(of: VllmJob, prompts: list[str], first: int = 0) -> tuple[pa.Table, pa.Table]:
    rows = pa.record_batch({"prompt": prompts})
    return split_chunk(Chunk(rows), first, of.encoded(rows))


def test_an_engine_of_the_night_is_the_live_one_but_for_what_helps_single_streams() -> None:
    spec = GenerationSpec(
        **{"cache_size_gib": 8, "tensor_parallel_size": 2, "enable_prefix_caching": False},
        **{"draft": "small", "stream_interval": 4, "max_num_seqs": 16},
    )
    live, night = engine_arguments(VARIANT, spec), engine_arguments_of(VARIANT, spec)
    assert set(live) - set(night) == {"speculative_config", "stream_interval"}
    assert {name for name in night if night[name] != live[name]} == {"max_num_seqs"}
    assert night["max_num_seqs"] == 256


def test_the_live_engine_may_have_more_answers_at_a_time() -> None:
    assert engine_arguments_of(VARIANT, GenerationSpec(max_num_seqs=512))["max_num_seqs"] == 512


def test_an_engine_may_be_told_how_many_tokens_it_reads_in_a_step() -> None:
    assert "max_num_batched_tokens" not in engine_arguments_of(VARIANT, GenerationSpec())
    for asked, given in ((8192, 8192), (16, 256)):
        arguments = engine_arguments_of(VARIANT, GenerationSpec(), asked)
        assert arguments["max_num_batched_tokens"] == given


def test_ray_is_told_of_the_engines_and_runs_no_other_stage() -> None:
    config = processor_config(
        replace(job(tensor_parallel_size=2), engines=3, batch_size=64), VARIANT
    )
    assert config.model_source == str(VARIANT)
    assert config.engine_kwargs["tensor_parallel_size"] == 2
    assert "model" not in config.engine_kwargs
    assert config.concurrency == (3, 3)
    assert config.should_continue_on_error
    stages = ("chat_template", "tokenize", "detokenize", "prepare_multimodal")
    assert not any(getattr(config, f"{stage}_stage") for stage in stages)


@pytest.mark.parametrize(("batch_size", "batches"), [(256, 4), (1024, 4), (64, 16), (10, 103)])
def test_an_engine_has_batches_enough_to_be_full(batch_size: int, batches: int) -> None:
    found = processor_config(replace(job(), batch_size=batch_size), VARIANT).max_concurrent_batches
    assert found == batches


def test_a_config_does_not_change_its_job() -> None:
    given = job()
    processor_config(given, VARIANT)
    assert given == job()


@pytest.mark.parametrize(
    "other",
    [
        replace(job(), vllm="0.34.0"),
        job(cache_size_gib=2),
        job(tensor_parallel_size=2),
        replace(job(), prompt="question"),
    ],
)
def test_what_changes_the_answers_makes_another_job(other: VllmJob) -> None:
    assert other.parameters() != job().parameters()


@pytest.mark.parametrize(
    "other", [replace(job(), engines=4, batch_size=8), job(max_num_seqs=512), job(VARIANT / "copy")]
)
def test_what_does_not_is_the_same_job(other: VllmJob) -> None:
    assert other.parameters() == job().parameters()


def test_prompts_become_tokens_or_are_put_aside(variant: Path, tmp_path: Path) -> None:
    state = JobState(Folder(str(tmp_path)))
    prompts = ["the old mill", TEXT, "by the river", TEXT * 100]
    good, _ = read(job(variant), prompts, 5)
    tokens = Tokens(variant, state)
    rows = tokens(good)
    assert rows["_row"].to_pylist() == [5, 7]
    assert rows["text"].to_pylist() == [prompts[0], prompts[2]]
    ids = [tokens.tokenizer(text)["input_ids"] for text in rows["text"].to_pylist()]
    assert rows["tokenized_prompt"].to_pylist() == ids
    dead = state.read_refused()
    assert dead["_row"].to_pylist() == [6, 8]
    reason = f"the prompt is longer than the model's context of {CONTEXT} tokens"
    assert set(dead["reason"].to_pylist()) == {reason}


def test_no_prompt_may_be_left(variant: Path, tmp_path: Path) -> None:
    good, _ = read(job(variant), [TEXT])
    assert Tokens(variant, JobState(Folder(str(tmp_path))))(good).num_rows == 0


@pytest.mark.parametrize(
    ("told", "ends"), [("7", {0, 7}), ("[7, 9]", {0, 7, 9}), ("null", {0}), (None, {0, 5})]
)
def test_an_answer_ends_where_the_tokenizer_and_the_config_say(
    tmp_path: Path, told: str | None, ends: set[int]
) -> None:
    write_variant(tmp_path / "form", TEXT, CONTEXT)
    config = tmp_path / "form" / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 0', '"eos_token_id": 5'))
    if told is not None:
        kept = tmp_path / "form" / "generation_config.json"
        kept.write_text(f'{{"eos_token_id": {told}}}')
    assert ends_of(tmp_path / "form") == ends
