"""A request's body to what it asks for."""

import json
from typing import Any

import pytest

from millrace.models.common.language_generation import MAX_TOKENS
from millrace.models.config.batch_spec import SamplingSpec
from millrace.serving.batch.prompts.prompt_rows import Sampling as OfBatch
from millrace.serving.openai_api import request_body
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.request_body import TextRequest
from millrace.serving.triton.streams.stream_request import Sampling
from millrace.tasks.kinds.language import language_predict

USER = {"role": "user", "content": "hi"}


def completion(**values: Any) -> TextRequest:
    return request_body.read_completion(
        json.dumps({"model": "lm", "prompt": "x", **values}).encode()
    )


def chat(**values: Any) -> TextRequest:
    return request_body.read_chat(
        json.dumps({"model": "lm", "messages": [USER], **values}).encode()
    )


def test_a_plain_request_leaves_everything_to_the_server() -> None:
    sampling = Sampling(max_tokens=MAX_TOKENS)
    assert completion() == TextRequest("lm", ("x",), sampling, False, False, False)
    assert chat() == TextRequest("lm", ((USER,),), sampling, False, False, True)


SAMPLING = {
    "n": 2,
    "stop": ["a", "b"],
    "seed": -3,
    "temperature": 0,
    "top_p": 0.5,
    "max_tokens": 9,
    "presence_penalty": -2,
    "frequency_penalty": 1.5,
    "top_k": 4,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "ignore_eos": True,
}


@pytest.mark.parametrize("read", [completion, chat])
def test_every_option_is_passed_on(read) -> None:
    assert json.loads(read(**SAMPLING).sampling.as_json()) == SAMPLING
    assert read(**dict.fromkeys(SAMPLING)).sampling == Sampling(max_tokens=MAX_TOKENS)


def test_a_list_of_prompts_is_several() -> None:
    assert completion(prompt=["x", "", "y"]).prompts == ("x", "", "y")


def test_streams_and_their_usage() -> None:
    asked = chat(stream=True, stream_options={"include_usage": True})
    assert (asked.stream, asked.include_usage) == (True, True)
    assert not chat(stream=True, stream_options={}).include_usage
    assert not chat(stream=False).stream


def test_an_answer_has_256_tokens_where_the_request_does_not_say() -> None:
    for ask in (chat(), completion()):
        assert ask.sampling.max_tokens == MAX_TOKENS == 256
    assert OfBatch().max_tokens == SamplingSpec().max_tokens == MAX_TOKENS
    assert language_predict.MAX_TOKENS == MAX_TOKENS


def test_the_newer_name_of_max_tokens() -> None:
    assert chat(max_completion_tokens=5).sampling.max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).sampling.max_tokens == 5
    with pytest.raises(ApiError, match="'max_tokens' is 4 and 'max_completion_tokens' is 5"):
        chat(max_completion_tokens=5, max_tokens=4)


def test_messages_are_put_into_the_templates_words() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    answered = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "tool_calls": [],
        "audio": None,
    }
    asked = chat(
        messages=[
            {"role": "developer", "content": "short"},
            {"role": "user", "content": parts, "name": "anna"},
            answered,
        ]
    )
    assert asked.prompts[0] == (
        {"role": "system", "content": "short"},
        {"role": "user", "content": "a b", "name": "anna"},
        {"role": "assistant", "content": "c"},
    )


def test_what_changes_nothing_is_taken() -> None:
    chat(
        logprobs=False,
        top_logprobs=0,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        logit_bias={},
        store=False,
        user="anna",
        metadata={"a": "b"},
    )
    completion(best_of=1, echo=False, logprobs=None, suffix=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"5": 1}),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "low"),
        ("store", True),
    ],
)
def test_what_a_chat_does_not_have_is_refused_by_name(name, value) -> None:
    with pytest.raises(ApiError, match=f"'{name}' is not supported") as refused:
        chat(**{name: value})
    assert refused.value.status == 400
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 3), ("echo", True), ("logprobs", 2), ("suffix", "x")]
)
def test_what_a_completion_does_not_have_is_refused_by_name(name, value) -> None:
    with pytest.raises(ApiError, match=f"'{name}' is not supported"):
        completion(**{name: value})


BAD = [
    ({"temperature": 3}, "temperature", "less than or equal to 2, and it is 3"),
    ({"temperature": "1"}, "temperature", "valid number"),
    ({"temperature": True}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 1.5}, "max_tokens", "valid integer"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 10_000}, "n", "less than or equal to 128"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
    ({"stop": 5}, "stop", "valid string"),
    ({"stop": ["a", 5]}, "stop[1]", "valid string"),
    ({"stream": "yes"}, "stream", "valid boolean"),
    ({"model": 5}, "model", "valid string"),
    ({"model": ""}, "model", "at least 1 character"),
    ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", "Unknown"),
    ({"stream_options": {}}, "stream_options", "only allowed"),
    ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
]


@pytest.mark.parametrize("read", [completion, chat])
@pytest.mark.parametrize(("values", "param", "says"), BAD)
def test_what_is_not_valid_is_refused_by_name(read, values, param, says) -> None:
    with pytest.raises(ApiError, match=says) as refused:
        read(**values)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([], "messages", "at least 1"),
        ("hi", "messages", "valid list"),
        ([{"role": "user"}], "messages[0].content", "Missing"),
        ([{"role": "tool", "content": "x"}], "messages[0].role", "'system'"),
        ([USER, {**USER, "tool_calls": [{}]}], "messages[1].tool_calls", "unsupported"),
        ([{"role": "user", "content": None}], "messages[0].content", "valid"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type",
            "'text'",
        ),
    ],
)
def test_messages_that_are_none_are_refused(messages, param, says) -> None:
    with pytest.raises(ApiError, match=says) as refused:
        chat(messages=messages)
    assert refused.value.param == param


@pytest.mark.parametrize("prompt", [[1, 2], [[1], [2]], ["x", 3]])
def test_token_ids_are_refused_as_such(prompt) -> None:
    with pytest.raises(ApiError, match="token ids is not supported"):
        completion(prompt=prompt)


@pytest.mark.parametrize("prompt", [None, [], {}, 5, ["x"] * 65, [None]])
def test_prompts_that_are_none_are_refused(prompt) -> None:
    with pytest.raises(ApiError, match="1 to 64 strings") as refused:
        completion(prompt=prompt)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"model": "lm", "prompt": "\\ud800"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b"[]",
        b'"x"',
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body) -> None:
    for read in (request_body.read_completion, request_body.read_chat):
        with pytest.raises(ApiError, match="JSON") as refused:
            read(body)
        assert refused.value.status == 400


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ApiError, match="Missing required parameter: 'messages'") as refused:
        request_body.read_chat(b'{"model": "lm"}')
    assert refused.value.code == "missing_required_parameter"
