"""Prompts through a real engine, with a small model of random weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import chat_template_of
from millrace.models.data.schema import Column
from millrace.models.data.sources.source import Chunk
from millrace.serving.batch.input.reader import split_chunk
from millrace.serving.batch.prompts.openvino_job import Generator, PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from tests.language_model import CONTEXT, Made, make

TEXT = "the old mill by the river turned its wheel all day and all night long. " * 40
PROMPTS = [TEXT[n : n + 5 + 7 * n] for n in range(9)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("lm") / "model", TEXT)


@pytest.fixture(scope="module")
def job(made: Made) -> PromptJob:
    return PromptJob("m", 3, "digest", made.folder, sampling=Sampling(max_tokens=12), threads=1)


@pytest.fixture(scope="module")
def generator(job: PromptJob) -> Generator:
    return job.worker()


def read(job: PromptJob, first: int = 0, **columns: Any) -> tuple[pa.Table, pa.Table]:
    rows = pa.record_batch(columns)
    return split_chunk(Chunk(rows), first, job.encoded(rows))


def completions(generator: Generator, prompts: list[str], first: int = 0) -> list[str]:
    good, _ = read(generator.job, first, prompt=prompts)
    rows = generator(good).rows.sort_by("_row")
    return rows["completion"].to_pylist()  # type: ignore[no-any-return]


def test_greedy_answers_are_those_of_transformers(made: Made, generator: Generator) -> None:
    assert completions(generator, PROMPTS) == [made.greedy(prompt, 12) for prompt in PROMPTS]


def test_an_answer_does_not_depend_on_what_is_answered_beside_it(generator: Generator) -> None:
    assert completions(generator, PROMPTS[3:4]) == completions(generator, PROMPTS)[3:4]


def test_tokens_are_counted_in_and_out(made: Made, generator: Generator) -> None:
    good, _ = read(generator.job, prompt=PROMPTS)
    rows = generator(good).rows.sort_by("_row")
    assert rows["prompt_tokens"].to_pylist() == [made.ids(p).shape[1] for p in PROMPTS]
    assert set(rows["completion_tokens"].to_pylist()) == {12}
    assert set(rows["finish_reason"].to_pylist()) == {"length"}
    assert set(rows["model_version"].to_pylist()) == {3}
    assert rows.schema == generator.job.output


def test_a_stop_ends_an_answer_and_is_not_part_of_it(
    made: Made, job: PromptJob, generator: Generator
) -> None:
    whole = made.greedy(PROMPTS[2], 12)
    stop = whole[len(whole) // 2 :][:2]
    stopping = replace(job, sampling=replace(job.sampling, stop=(stop,))).worker()
    good, _ = read(job, prompt=[PROMPTS[2]])
    (row,) = stopping(good).rows.to_pylist()
    assert row["completion"] == whole[: whole.find(stop)]
    assert row["finish_reason"] == "stop"


def test_what_is_drawn_depends_on_the_seed_and_the_place_of_the_row(job: PromptJob) -> None:
    drawn = replace(job, sampling=replace(job.sampling, temperature=1.5, seed=7)).worker()
    once = completions(drawn, [PROMPTS[1]] * 4)
    assert completions(drawn, [PROMPTS[1]] * 2, first=2) == once[2:]
    assert len(set(once)) > 1


@pytest.mark.parametrize(
    ("prompts", "reasons"),
    [
        (["a", None, "b"], ["prompt is missing"]),
        (["a", "", "  \n", "b"], ["prompt is empty"] * 2),
    ],
)
def test_what_is_no_prompt_is_dead(
    job: PromptJob, prompts: list[str | None], reasons: list[str]
) -> None:
    good, dead = read(job, prompt=pa.array(prompts, pa.string()))
    assert (len(good), dead["reason"].to_pylist()) == (2, reasons)


def test_a_prompt_that_is_not_text_is_dead(job: PromptJob) -> None:
    _, dead = read(job, prompt=pa.array([["a", "list"]]))
    assert dead["reason"].to_pylist() == ["prompt is not text"]


@pytest.mark.parametrize("times", [1, 500])
def test_a_prompt_that_is_too_long_is_dead_and_its_neighbours_are_answered(
    generator: Generator, times: int
) -> None:
    good, _ = read(generator.job, id=[1, 2, 3], prompt=["the", TEXT * times, "mill"])
    answers = generator(good)
    assert answers.rows["_row"].to_pylist() == [0, 2]
    (dead,) = answers.refused.to_pylist()
    assert dead["reason"] == f"the prompt is longer than the model's context of {CONTEXT} tokens"
    assert dead["row"].startswith('{"prompt": "the old mill')


def test_an_answer_ends_with_the_context(job: PromptJob, generator: Generator) -> None:
    prompt = next(p for n in range(700, 0, -5) if len(generator._tokenize(p := TEXT[:n])) < CONTEXT)
    good, _ = read(job, prompt=[prompt])
    (row,) = generator(good).rows.to_pylist()
    assert row["prompt_tokens"] + row["completion_tokens"] <= CONTEXT


def test_prompts_have_the_keys_that_the_input_has(made: Made) -> None:
    job = PromptJob("m", 3, "d", made.folder, key=("id",))
    good, dead = read(job, id=[5, None], prompt=["a", "b"])
    assert good["_key"].to_pylist() == ["5"]
    assert dead["reason"].to_pylist() == ["the key is missing, or not text"]


def test_a_prompt_without_a_key_is_known_by_its_text(job: PromptJob) -> None:
    keys = read(job, prompt=["a", "b", "a"])[0]["_key"].to_pylist()
    assert keys[0] == keys[2] != keys[1]


def test_the_engine_may_have_fewer_answers_at_a_time(job: PromptJob, generator: Generator) -> None:
    narrow = replace(job, max_num_seqs=2).worker()
    assert completions(narrow, PROMPTS) == completions(generator, PROMPTS)


def test_the_engine_may_read_fewer_tokens_in_a_step(job: PromptJob, generator: Generator) -> None:
    narrow = replace(job, max_num_seqs=2, max_num_batched_tokens=2).worker()
    assert completions(narrow, PROMPTS) == completions(generator, PROMPTS)


def test_files_of_another_form_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_ctx": 8}')
    with pytest.raises(WorkError, match="cannot open the files of the model"):
        PromptJob("m", 3, "d", tmp_path).worker()


CHAT = [{"role": "user", "content": "the mill"}]
TOOL = [{"role": "tool", "content": "4"}]


def test_a_column_of_messages_is_asked_as_the_template_has_it(job: PromptJob, made: Made) -> None:
    chats = replace(job, template=chat_template_of(made.folder))
    good, dead = read(chats, prompt=pa.array([CHAT, TOOL, None, []]))
    assert good["prompt"].to_pylist() == ["<|user|>the mill\n<|assistant|>"]
    assert dead["reason"].to_pylist() == [
        "the model's chat template refuses the messages: no tools",
        "prompt is missing",
        "the chat has no message",
    ]


def test_messages_are_text_too_where_the_dataset_holds_them_so(job: PromptJob, made: Made) -> None:
    template, held = chat_template_of(made.folder), (Column("prompt", "messages"),)
    text = json.dumps(CHAT)
    for each, wanted in (
        (job, text),
        (replace(job, dataset_columns=held), "<|user|>the mill\n<|assistant|>"),
    ):
        good, _ = read(replace(each, template=template), prompt=[text])
        assert good["prompt"].to_pylist() == [wanted]
    assert (
        replace(job, dataset_columns=held).read_prompt(pa.record_batch({"prompt": [text]})) == CHAT
    )


def test_chats_without_a_template_are_dead(job: PromptJob) -> None:
    _, dead = read(job, prompt=pa.array([CHAT]))
    assert dead["reason"].to_pylist() == [
        "the model has no chat template, and the prompt is a chat"
    ]
