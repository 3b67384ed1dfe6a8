"""The parts of the language models' backend that need neither Triton nor the engine."""

import importlib
import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from millrace.models.common import language_generation
from millrace.serving.triton import backend_directory
from tests.language_model import byte_tokenizer

FOLDER = backend_directory.BACKENDS / "openvino_genai"
TEXTS = ("né 😀 日本語 \0 plain", "\ufffd said \ufffd\ufffd", "", "👩‍👩‍👧‍👦" * 3)


def module(name: str) -> ModuleType:
    """Import a file of the backend as the backend itself does, by its bare name."""
    sys.modules.setdefault("language_generation", language_generation)  # it has a copy beside it
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


text, sampling, errors, request, pipeline = map(
    module, ("lm_text", "lm_sampling", "lm_errors", "lm_request", "lm_pipeline")
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(Path(__file__).read_text())


def in_pieces(ids: list[int], tokenizer, sizes: list[int]) -> list[str]:
    """Return what a detokenizer gives as the tokens come, so many at a time."""
    detokenizer, pieces = text.Detokenizer(), []
    while ids:
        size = sizes[len(pieces) % len(sizes)]
        detokenizer.add(ids[:size])
        ids = ids[size:]
        known, all_of = (tokenizer.decode(window) for window in detokenizer.windows())
        pieces.append(detokenizer.new_text(known, all_of, is_last=not ids))
    return pieces


@pytest.mark.parametrize("sizes", [[1], [4], [1, 4, 4, 4], [3, 1, 7]])
def test_pieces_join_to_the_text(tokenizer, sizes) -> None:
    for whole in TEXTS:
        ids = tokenizer(whole).input_ids
        assert "".join(in_pieces(ids, tokenizer, sizes)) == whole


def test_pieces_of_broken_bytes_join_to_what_is_decoded_at_once(tokenizer) -> None:
    chance = random.Random(1)
    for _ in range(200):
        ids = [chance.randrange(2, len(tokenizer)) for _ in range(40)]
        pieces = in_pieces(ids, tokenizer, [chance.randrange(1, 6)])
        assert "".join(pieces) == tokenizer.decode(ids)


def test_no_piece_ends_within_a_character(tokenizer) -> None:
    pieces = in_pieces(tokenizer("😀ñ").input_ids, tokenizer, [1])
    assert "".join(pieces) == "😀ñ"
    assert {"😀", "ñ"} <= set(pieces)
    assert not any(text.BROKEN in piece for piece in pieces)


def test_windows_stay_small(tokenizer) -> None:
    detokenizer = text.Detokenizer()
    for token in tokenizer("plain words and no more " * 40).input_ids:
        detokenizer.add([token])
        known, all_of = detokenizer.windows()
        assert len(all_of) <= 2
        detokenizer.new_text(tokenizer.decode(known), tokenizer.decode(all_of), is_last=False)


@pytest.mark.parametrize("stops", [["abcab"], ["xx", "ca"], ["b", "abca"], ["nothing"], []])
def test_a_stop_is_found_wherever_pieces_are_cut(stops) -> None:
    whole = "xabcabcabxaxxb"
    ends = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
    for size in range(1, len(whole) + 1):
        found, given = text.StopFilter(stops), ""
        for start in range(0, len(whole), size):
            given += found.filter(whole[start : start + size], is_last=start + size >= len(whole))
        assert given == (whole[: min(ends)[1]] if ends else whole)
        assert found.found == bool(ends)


def test_only_what_may_be_a_stop_waits() -> None:
    stops = text.StopFilter(["END"])
    assert stops.filter("the E", is_last=False) == "the "
    assert stops.filter("NT ", is_last=False) == "ENT "
    assert stops.filter("EN", is_last=True) == "EN"


def test_sampling_is_read() -> None:
    read = sampling.parse_sampling(
        '{"stop": "a", "presence_penalty": 0, "top_k": -1, "seed": -3, "temperature": 0}', 4
    )
    assert (read.stop, read.top_k, read.seed, read.is_greedy) == (("a",), None, -3, True)
    assert sampling.parse_sampling("", 4) == sampling.Sampling()
    assert sampling.parse_sampling('{"n": null, "stop": null}', 4) == sampling.Sampling()


@pytest.mark.parametrize(
    "wrong",
    ['{"stop": 1}', '{"top_k": -2}', '{"n": 5}', '{"seed": 9223372036854775808}', '{"n": 1e2}']
    + [f'{{"max_tokens": {"9" * 5000}}}', "null", '"x"', '{"stop": ["x"]', '{"n": true}'],
)
def test_sampling_that_is_not_valid_is_refused(wrong) -> None:
    with pytest.raises(errors.RequestError, match=r"^invalid: ") as error:
        sampling.parse_sampling(wrong, 4)
    assert len(str(error.value)) < 400


def test_templates_come_from_either_file(tmp_path) -> None:
    template_of = language_generation.chat_template_of
    assert template_of(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "{{ bos_token }}!", "bos_token": {"content": "<s>"}}')
    assert template_of(tmp_path).prompt([]) == "<s>!"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    assert template_of(tmp_path).prompt([{"content": "<é>"}]) == '"<é>"'


def chat(template: str) -> str:
    """Return the prompt that a chat template makes of one message."""
    messages = np.array([b'[{"role": "user", "content": "<\xc3\xa9>"}]'], object)
    template = language_generation.ChatTemplate(template)
    return request.render_chat({"messages": messages}, template)


def test_a_chat_is_rendered_by_the_models_template() -> None:
    assert chat("{{ messages[0].content | tojson }}") == '"<é>"'


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_can_do_no_harm(source: str) -> None:
    with pytest.raises(errors.RequestError, match="rejects these messages$"):
        chat(source)


def test_what_drafts_is_in_the_version_and_not_in_the_configuration(tmp_path: Path) -> None:
    values = {"draft_model": "draft", "max_num_seqs": "4", "cache_size_gib": "1"}
    values["enable_prefix_caching"] = "true"
    alone = pipeline.version_parameters(tmp_path, values)
    assert alone == {key: each for key, each in values.items() if key != "draft_model"}
    assert pipeline.scheduler_config(alone).enable_prefix_caching
    (tmp_path / "draft").mkdir()
    assert pipeline.version_parameters(tmp_path, values) == values
    assert not pipeline.scheduler_config(values).enable_prefix_caching, (
        "the engine cannot have both"
    )
