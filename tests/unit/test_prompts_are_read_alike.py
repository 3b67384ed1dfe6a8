"""Golden answers, the live backend and batch jobs read prompts as transformers does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.export.language.engine_speed import EXACT
from millrace.export.language.golden_texts import answer_prompts
from millrace.export.language.transformers_reference import split_texts
from millrace.export.openvino.from_checkpoint import write_exact_variant
from millrace.models.common.language_generation import chat_template_of
from millrace.models.data.sources.source import Chunk
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.serving.batch.input.reader import split_chunk
from millrace.serving.batch.prompts.openvino_job import Generator, PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.triton.language import generation_check
from tests.instruct_model import CHATML, CHATS, LLAMA, TURN_END, Instruct, opened, write_instruct
from tests.unit.serving.test_language_backend import module

backend = module("lm_request")
ASKED = [chat[:2] for chat in CHATS]
TEXTS = ["rain falls", "what does the wind do?", "日本 ☂", "<|im_start|>user\nwhat"]


@pytest.fixture(
    scope="module",
    params=[
        ("qwen3", CHATML, False, True),
        ("llama", LLAMA, True, False),
    ],
    ids=["chatml", "begun-by-a-post-processor-and-ended-by-no-special-token"],
)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Instruct, Path]:
    """A decoder, and its form for the engine."""
    kind, template, begins, special = request.param
    folder = tmp_path_factory.mktemp("instruct")
    write_instruct(folder / "made", kind, template, begins=begins, special=special)
    write_exact_variant(folder / "made", folder / "form")
    return opened(folder / "made"), folder / "form"


@pytest.fixture(scope="module")
def generator(made: tuple[Instruct, Path]) -> Generator:
    template = chat_template_of(made[1])
    return PromptJob(
        "m", 1, "d", made[1], sampling=Sampling(max_tokens=24), threads=1, template=template
    ).worker()


def scored(generator: Generator, prompts: pa.Array) -> list[dict[str, Any]]:
    rows = pa.record_batch({"prompt": prompts})
    good, dead = split_chunk(Chunk(rows), 0, generator.job.encoded(rows))
    assert not len(dead), dead
    return generator(good).rows.sort_by("_row").to_pylist()  # type: ignore[no-any-return]


def test_golden_answers_are_those_of_a_text_and_not_of_a_chat(made: tuple[Instruct, Path]) -> None:
    mine, variant = made
    wanted = [mine.text(prompt) for prompt in TEXTS]
    assert answer_prompts(variant, TEXTS, 24, dict(EXACT)) == wanted


def test_a_batch_of_texts_and_of_chats_is_answered_as_transformers_does(
    made: tuple[Instruct, Path], generator: Generator
) -> None:
    mine, _ = made
    texts = scored(generator, pa.array(TEXTS))
    assert [row["completion"] for row in texts] == [mine.text(prompt) for prompt in TEXTS]
    chats = scored(generator, pa.array(ASKED))
    assert [row["completion"] for row in chats] == [mine.chat(chat) for chat in ASKED]
    assert {row["finish_reason"] for row in chats} == {"stop"}, "it has learnt to end a turn"
    assert not any(TURN_END in row["completion"] for row in chats)


def test_the_backend_reads_a_chat_as_transformers_does(
    made: tuple[Instruct, Path], generator: Generator
) -> None:
    mine, variant = made
    tokenizer, template = generator.engine._tokenizer, chat_template_of(variant)
    for chat in ASKED:
        messages = np.array([json.dumps(chat).encode()], object)
        bounds = backend.Bounds(128, 4)
        read = backend.read_request({"messages": messages}, tokenizer, template, bounds)
        asked = mine.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert read.ids[0].tolist() == mine.tokenizer(asked, add_special_tokens=False).input_ids


def test_a_prompt_of_a_certificate_begins_once(made: tuple[Instruct, Path]) -> None:
    words = made[0].tokenizer
    whole = words.apply_chat_template(CHATS[0], tokenize=False)
    ids = words(whole, add_special_tokens=False).input_ids[:12]
    ((text, again),) = split_texts(words, [np.array(ids)])
    assert again == ids
    assert not text.startswith("<s>")


def test_the_end_of_a_turn_is_found_in_the_template(made: tuple[Instruct, Path]) -> None:
    folder = made[0].folder
    files = {file.name: file.read_bytes() for file in folder.glob("*token*")}
    template = folder / "chat_template.jinja"
    found = LanguageTokenizer({**files, template.name: template.read_bytes()}).turn_ends
    assert found == (made[0].tokenizer.convert_tokens_to_ids(TURN_END),)


def test_a_form_alone_answers_a_text_and_not_a_chat(
    made: tuple[Instruct, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine, variant = made
    (tmp_path / "texts").write_text(json.dumps(TEXTS))
    monkeypatch.setattr("sys.argv", ["alone", str(variant), "24"])
    with (tmp_path / "texts").open() as texts:
        monkeypatch.setattr("sys.stdin", texts)
        generation_check.main()
    answers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answers == [mine.text(prompt) for prompt in TEXTS]
