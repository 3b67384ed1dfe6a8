"""Pieces of answers to OpenAI's objects, and errors to OpenAI's errors."""

import pytest

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.serving.openai_api.error_response import is_unknown_model, translate_error
from millrace.serving.openai_api.reply import PromptPiece, Reply, Usage, is_cut_off
from millrace.serving.openai_api.request_body import TextRequest
from millrace.serving.triton.streams.stream_request import Piece, Sampling, parse_error


def reply(*, is_chat: bool, n: int = 1, prompts: int = 1, include_usage: bool = False) -> Reply:
    ask = TextRequest("lm", ("x",) * prompts, Sampling(n=n), True, include_usage, is_chat)
    return Reply(ask, "id-1", 1234)


def heard(prompt: int, *parts: tuple[str, str, int], version: int = 3) -> PromptPiece:
    texts, reasons, tokens = zip(*parts, strict=True)
    return PromptPiece(prompt, version, Piece(texts, reasons, 5 + prompt, tokens, is_last=False))


PIECES = [
    heard(1, ("a", "", 1), ("b", "", 1)),
    heard(0, ("c", "", 2), ("", "", 0)),
    heard(1, ("d", "stop", 1), ("", "", 0)),
    heard(0, ("e", "length", 1), ("f", "stop", 9)),
    heard(1, ("", "", 0), ("g", "length", 1)),
]


def usage_of(pieces: list[PromptPiece]) -> Usage:
    usage = Usage()
    for piece in pieces:
        usage.count_piece(piece)
    return usage


def test_a_whole_answer_has_the_choices_of_all_prompts_in_order() -> None:
    whole = reply(is_chat=False, n=2, prompts=2).build_response(PIECES, usage_of(PIECES))
    found = [(each["index"], each["text"], each["finish_reason"]) for each in whole["choices"]]
    assert found == [(0, "ce", "length"), (1, "f", "stop"), (2, "ad", "stop"), (3, "bg", "length")]
    assert whole["usage"] == {"prompt_tokens": 11, "completion_tokens": 16, "total_tokens": 27}
    assert whole["object"] == "text_completion"
    assert whole["system_fingerprint"] == "lm@3"


def test_a_whole_chat() -> None:
    whole = reply(is_chat=True).build_response([heard(0, ("hi", "stop", 2))], Usage())
    message = {"role": "assistant", "content": "hi", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert whole["choices"] == [choice]
    assert whole["object"] == "chat.completion"


def test_answers_of_two_versions_name_both() -> None:
    pieces = [heard(0, ("a", "stop", 1), version=4), heard(1, ("b", "stop", 1), version=3)]
    assert (
        reply(is_chat=False, prompts=2).build_response(pieces, Usage())["system_fingerprint"]
        == "lm@3,lm@4"
    )


def test_chunks_of_a_completion_have_the_index_of_prompt_and_answer() -> None:
    made = reply(is_chat=False, n=2, prompts=2)
    chunks = [chunk for piece in PIECES for chunk in made.build_chunks(piece)]
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    texts = {index: "" for index in range(4)}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "ce", 1: "f", 2: "ad", 3: "bg"}
    assert made.build_first_chunks(PIECES[0]) == []


def test_chunks_of_a_chat_open_go_on_and_end() -> None:
    made = reply(is_chat=True, n=2, include_usage=True)
    piece = heard(0, ("hi", "", 1), ("", "stop", 1))
    deltas = [
        (
            chunk["choices"][0]["index"],
            chunk["choices"][0]["delta"],
            chunk["choices"][0]["finish_reason"],
        )
        for chunk in made.build_first_chunks(piece) + made.build_chunks(piece)
    ]
    assert deltas == [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (0, {"content": "hi"}, None),
        (1, {}, "stop"),
    ]


def test_usage_comes_last_and_only_if_it_is_wanted() -> None:
    usage = usage_of(PIECES)
    with_usage = reply(is_chat=True, include_usage=True)
    (last,) = with_usage.build_last_chunks([3], usage)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 27)
    assert with_usage.build_chunks(heard(0, ("hi", "", 1)))[0]["usage"] is None
    assert reply(is_chat=True).build_last_chunks([3], usage) == []


def test_an_answer_that_was_given_up_is_not_whole() -> None:
    assert is_cut_off(heard(0, ("a", "stop", 1), ("b", "cancelled", 1)).piece)
    assert not is_cut_off(heard(0, ("a", "stop", 1), ("b", "", 1), ("c", "length", 1)).piece)


def test_a_chat_without_a_template_names_the_way_in() -> None:
    text = "invalid: the model has no chat template; send text_input, not messages"
    error = translate_error(parse_error(text, "lm"), "lm", "messages")
    assert (error.status, error.param) == (400, "messages")
    assert "/v1/completions" in error.message
    assert "text_input" not in error.message


def test_a_prompt_over_the_context_names_both_numbers() -> None:
    text = (
        "invalid: the prompt has 5000 tokens, and the model's context, prompt and answer "
        "together, is 4096"
    )
    error = translate_error(parse_error(text, "lm"), "lm", "messages")
    assert (error.status, error.code, error.param) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert "4096 tokens" in error.message
    assert "5000 tokens" in error.message


def test_a_prompt_that_is_not_even_tokenized_names_both_numbers_too() -> None:
    text = (
        "invalid: the prompt has 99999 characters, and the model's context, 256 tokens, takes "
        "at most 16384"
    )
    error = translate_error(parse_error(text, "lm"), "lm", "prompt")
    assert error.code == "context_length_exceeded"
    assert all(number in error.message for number in ("99999", "256", "16384"))


PATH = "/home/builder/openvino.genai/src/cpp"


@pytest.mark.parametrize(
    ("text", "status", "code", "retry_after"),
    [
        ("invalid: stop is 5, and must be a string", 400, "invalid_value", None),
        ("full: 128 requests wait already, the limit; try again later", 503, "overloaded", 1),
        ("unavailable: the model is being unloaded; try again", 503, "model_unavailable", 5),
        (f"Request for unknown model: {PATH}", 404, "model_not_found", None),
        (f"Failed to process the request(s): {PATH}", 503, "model_unavailable", 5),
        (f"Check '{PATH}' failed", 500, None, None),
    ],
)
def test_errors_of_the_server_in_openais_form(text, status, code, retry_after) -> None:
    error = translate_error(parse_error(text, "lm"), "lm", "prompt")
    assert (error.status, error.code, error.retry_after) == (status, code, retry_after)
    assert PATH not in str(error.body())
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}


def test_what_the_request_did_wrong_is_passed_on_and_nothing_else() -> None:
    error = translate_error(parse_error("invalid: stop is 5", "lm"), "lm", "prompt")
    assert error.message == "lm rejects this request: stop is 5."
    assert error.param == "stop"
    assert translate_error(parse_error("invalid: x is 5", "lm"), "lm", "prompt").param is None
    for error in (TransientError("x", seen=PATH), WorkError("x", seen=PATH)):
        assert PATH not in translate_error(error, "lm", "prompt").message


def test_a_model_that_is_not_there_is_told_from_what_is_invalid() -> None:
    assert is_unknown_model(parse_error("Request for unknown model: 'lm' is not found", "lm"))
    assert not is_unknown_model(parse_error("invalid: x", "lm"))
    assert not is_unknown_model(InputError("x"))
