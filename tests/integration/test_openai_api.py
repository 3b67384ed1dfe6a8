"""The OpenAI-compatible door, asked by OpenAI's own client, before a real Triton."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.openai_api.api_key import (
    KEYS_FILE,
    add_key,
    create_secret,
    revoke_key,
    update_keys,
)
from millrace.serving.triton import server as triton
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.model_config import specific, to_text
from tests.integration.ports import free_endpoint, free_ports
from tests.language_model import Made, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

TEXT = Path(os.__file__).read_text()
CONTEXT = 2048
PROMPT = "import os\n"
CHAT = [{"role": "user", "content": "what is né 😀?"}]
MUCH = 100_000_000
SMALL = 60
TOKENS = 24


@dataclass
class Door:
    """A door with its Triton."""

    installation: Installation
    endpoint: Endpoint
    triton: TritonClient
    made: Made
    url: str
    keys: dict[str, str]

    def client(self, key: str = "anna", **options: Any) -> OpenAI:
        """Return OpenAI's client, which never tries again by itself."""
        secret = self.keys.get(key, key)
        return OpenAI(
            base_url=f"{self.url}/v1", api_key=secret, max_retries=0, timeout=60, **options
        )

    def post(self, path: str, body: bytes | dict[str, Any], **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.keys['anna']}"} | headers
        return httpx.post(f"{self.url}{path}", content=content, headers=headers, timeout=60)

    def serve(self, name: str, version: int, **generation: Any) -> None:
        folder = self.installation.model_repository / name
        if not (folder / str(version)).exists():
            shutil.copytree(self.made.folder, folder / str(version))
        policy = specific([version])
        config = openvino_config(name, GenerationSpec(**generation), version_policy=policy)
        (folder / "config.pbtxt").write_text(to_text(config))
        self.triton.load(name)

    def gauges(self, model: str = "lm") -> dict[str, float]:
        """Return how things stand with a model: running, waiting, and the cache in use."""
        page = f"http://127.0.0.1:{self.endpoint.metrics_port}/metrics"
        with urllib.request.urlopen(page) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line[0] != "#"]
        found = (line.rpartition(" ") for line in lines if f'model="{model}"' in line)
        values = {name.partition("{")[0]: float(value) for name, _, value in found}
        names = ("running_sequences", "waiting_sequences", "cache_usage")
        return {name: values[f"millrace_lm_{name}"] for name in names}

    def is_idle(self, model: str = "lm") -> bool:
        return set(self.gauges(model).values()) == {0}


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def running(home: Path, endpoint: Endpoint) -> Iterator[str]:
    """Run the server as a supervisor does, and return its address."""
    (port,) = free_ports(1)
    options = {"--home": home, "--port": port, "--triton-grpc-port": endpoint.grpc_port}
    words = [str(word) for pair in options.items() for word in pair]
    with (home / "logs" / "openai.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.serving.openai_api.app", *words],
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(f"{url}/health"), 60)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(15)
    assert code in (0, -signal.SIGTERM)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("made") / "model"
    made = make(folder, TEXT, max_position_embeddings=CONTEXT)
    endpoint = free_endpoint()
    installation = Installation(tmp_path_factory.mktemp("home"), "", "").prepared()
    keys = {name: create_secret() for name in ("anna", "bob", "small")}
    for name, secret in keys.items():
        limit = SMALL if name == "small" else MUCH
        new = partial(add_key, name=name, tokens_per_minute=limit, secret=secret, now=time.time())
        update_keys(installation.home / KEYS_FILE, new)
    with (
        triton.running(installation, endpoint) as server,
        running(installation.home, endpoint) as url,
    ):
        opened = Door(installation, endpoint, server, made, url, keys)
        opened.serve("lm", 3, stream_interval=4)
        yield opened


@pytest.fixture(scope="module")
def expected(door: Door) -> str:
    return door.made.greedy(PROMPT, TOKENS)


def complete(door: Door, **values: Any) -> Any:
    asked = {"model": "lm", "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS, **values}
    return door.client().completions.create(**asked)


def chat(door: Door, **values: Any) -> Any:
    asked = {"model": "lm", "messages": CHAT, "temperature": 0, "max_tokens": TOKENS, **values}
    return door.client().chat.completions.create(**asked)


def test_a_completion_is_the_models_own(door, expected) -> None:
    found = complete(door)
    assert found.choices[0].text == expected
    assert found.choices[0].finish_reason == "length"
    assert found.object == "text_completion"
    assert found.model == "lm"
    assert found.system_fingerprint == "lm@3"
    tokens = door.made.ids(PROMPT).shape[1]
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (tokens, TOKENS)
    assert usage.total_tokens == tokens + TOKENS


def test_a_chat_is_the_models_own_by_its_template(door) -> None:
    template = door.made.tokenizer.apply_chat_template
    prompt = template(CHAT, add_generation_prompt=True, tokenize=False)
    found = chat(door)
    assert found.choices[0].message.content == door.made.greedy(prompt, TOKENS)
    assert found.choices[0].message.role == "assistant"
    assert found.usage.prompt_tokens == door.made.ids(prompt).shape[1]
    assert found.id.startswith("chatcmpl-")
    newer = chat(door, max_tokens=openai.omit, max_completion_tokens=3)
    assert newer.usage.completion_tokens == 3


def test_a_streamed_completion_joins_to_the_whole(door, expected) -> None:
    chunks = list(complete(door, stream=True, stream_options={"include_usage": True}))
    *told, last = chunks
    assert "".join(chunk.choices[0].text for chunk in told) == expected
    assert len(told) > 3
    assert [chunk.choices[0].finish_reason for chunk in told][-1] == "length"
    assert last.choices == []
    assert last.usage == complete(door).usage
    assert {(chunk.id, chunk.system_fingerprint) for chunk in chunks} == {(last.id, "lm@3")}
    assert all(chunk.usage is None for chunk in complete(door, stream=True))


def test_a_streamed_chat_opens_goes_on_and_ends(door) -> None:
    chunks = list(chat(door, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == chat(door).choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_the_bytes_of_a_stream_are_events_up_to_done(door) -> None:
    body = {"model": "lm", "prompt": PROMPT, "stream": True, "max_tokens": 2}
    found = door.post("/v1/completions", body)
    assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, end = found.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    told = [event for event in events if event != ": "]
    assert told
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in told)


def test_a_stop_string_ends_an_answer_and_is_not_in_it(door, expected) -> None:
    stop = expected[5:8]
    found = complete(door, stop=["never this", stop]).choices[0]
    assert (found.text, found.finish_reason) == (expected[: expected.find(stop)], "stop")
    chunks = list(complete(door, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == found.text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_prompts_and_answers_have_an_index_each(door, expected) -> None:
    found = complete(door, prompt=["def f", PROMPT], n=2, temperature=1, seed=5)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    alone = complete(door, prompt="def f", n=2, temperature=1, seed=5)
    assert [c.text for c in found.choices[:2]] == [c.text for c in alone.choices]
    assert len({choice.text for choice in found.choices}) == 4
    assert found.usage.completion_tokens == 4 * TOKENS
    greedily = complete(door, prompt=["def f", PROMPT], stream=True)
    texts = {0: "", 1: ""}
    for chunk in greedily:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: door.made.greedy("def f", TOKENS), 1: expected}


def test_seeds_and_temperature_reach_the_model(door, expected) -> None:
    first = complete(door, temperature=1, seed=11).choices[0].text
    assert complete(door, temperature=1, seed=11).choices[0].text == first
    assert complete(door, temperature=1, seed=12).choices[0].text != first
    assert complete(door, temperature=1, top_p=1e-6).choices[0].text == expected
    assert complete(door, frequency_penalty=0, presence_penalty=0).choices[0].text == expected
    repeated = complete(door, extra_body={"repetition_penalty": 1.5}).choices[0].text
    assert repeated != expected
    assert complete(door, extra_body={"top_k": 1}, temperature=1).choices[0].text == expected


def test_models_are_those_that_answer(door) -> None:
    client = door.client()
    assert [model.id for model in client.models.list()] == ["lm"]
    found = client.models.retrieve("lm")
    assert (found.object, found.owned_by, found.system_fingerprint) == ("model", "millrace", "lm@3")
    assert abs(found.created - time.time()) < 600
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("../lm")


def test_request_ids_come_back(door) -> None:
    own = door.client(default_headers={"x-request-id": "mine-1"})
    raw = own.completions.with_raw_response.create(model="lm", prompt="x", max_tokens=1)
    assert raw.request_id == "mine-1"
    ids = {chat(door, max_tokens=1)._request_id for _ in range(2)}
    assert len(ids) == 2
    with pytest.raises(openai.BadRequestError) as refused:
        chat(door, temperature=9)
    assert refused.value.request_id.startswith("req_")


def test_a_prompt_over_the_context_is_refused_with_both_numbers(door) -> None:
    prompt = "😀" * 600
    tokens = door.made.ids(prompt).shape[1]
    assert tokens > CONTEXT
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=f"{CONTEXT} tokens.*{tokens}") as refused:
            complete(door, prompt=prompt, stream=stream)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError, match=r"has 200\d\d\d") as refused:
        chat(door, messages=[{"role": "user", "content": "x" * 200_000}])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("key", ["mr-nobodys", "anna2"])
def test_a_bad_key_is_refused(door, key) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key") as refused:
        door.client(key).models.list()
    assert refused.value.code == "invalid_api_key"


def test_no_path_of_the_api_is_open(door) -> None:
    for path in ("models", "models/lm"):
        assert httpx.get(f"{door.url}/v1/{path}").status_code == 401
    for path in ("completions", "chat/completions"):
        assert httpx.post(f"{door.url}/v1/{path}", content=b"{").status_code == 401


def test_a_key_over_its_limit_waits_and_others_do_not(door) -> None:
    asked = {
        "model": "lm",
        "prompt": "x",
        "max_tokens": SMALL + 30,
        "extra_body": {"ignore_eos": True},
    }
    small = door.client("small").completions
    assert small.create(**asked).usage.completion_tokens == SMALL + 30
    with pytest.raises(openai.RateLimitError, match="60 tokens per minute") as refused:
        small.create(**asked)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 33
    assert refused.value.code == "rate_limit_exceeded"
    for key in ("anna", "bob"):
        assert door.client(key).completions.create(**asked).choices[0].text


def test_keys_come_and_go_while_it_runs(door) -> None:
    path, secret = door.installation.home / KEYS_FILE, create_secret()
    client = door.client(secret)

    def is_let_in() -> bool:
        try:
            return bool(client.models.list())
        except openai.AuthenticationError:
            return False

    assert not is_let_in()
    update_keys(
        path, partial(add_key, name="carl", tokens_per_minute=MUCH, secret=secret, now=time.time())
    )
    wait_for(is_let_in)
    update_keys(path, partial(revoke_key, name="carl"))
    wait_for(lambda: not is_let_in())
    assert secret not in path.read_text()


def test_keys_that_others_may_write_let_nobody_in(door) -> None:
    path, models = door.installation.home / KEYS_FILE, f"{door.url}/v1/models"
    headers = {"authorization": f"Bearer {door.keys['anna']}"}
    path.chmod(0o666)
    wait_for(lambda: httpx.get(models, headers=headers).status_code == 500)
    found = httpx.get(models, headers=headers)
    assert found.json()["error"]["type"] == "server_error"
    assert str(path) not in found.text
    path.chmod(0o600)
    wait_for(lambda: httpx.get(models, headers=headers).status_code == 200)


def stream_long(door: Door, **values: Any) -> Any:
    body = {"ignore_eos": True}
    return complete(door, max_tokens=CONTEXT - 50, extra_body=body, stream=True, **values)


def test_a_stream_that_is_left_frees_its_sequences(door) -> None:
    wait_for(door.is_idle)
    with stream_long(door, prompt=[PROMPT, "def f"], n=2, temperature=1) as stream:
        next(iter(stream))
        wait_for(lambda: door.gauges()["running_sequences"] == 4)
    wait_for(door.is_idle, 3)


def test_an_answer_that_nobody_waits_for_frees_its_sequence(door) -> None:
    body = {"model": "lm", "prompt": PROMPT, "max_tokens": CONTEXT - 50, "ignore_eos": True, "n": 8}
    content, host = json.dumps(body).encode(), door.url.removeprefix("http://")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(content)}\r\n"
    key = f"authorization: Bearer {door.keys['anna']}\r\n\r\n"
    address, _, port = host.partition(":")
    with closing(socket.create_connection((address, int(port)))) as client:
        client.sendall((head + key).encode() + content)
        wait_for(lambda: door.gauges()["running_sequences"] == 8)
    began = time.monotonic()
    wait_for(door.is_idle, 3)
    assert time.monotonic() - began < 3


def test_a_hundred_streams_on_one_loop(door, expected) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.completions.create(
            model="lm", prompt=PROMPT, temperature=0, max_tokens=TOKENS, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        # left alone it gives a connection five seconds, which a busy machine may need
        async with openai.AsyncOpenAI(
            base_url=f"{door.url}/v1", api_key=door.keys["bob"], max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(100)))

    assert asyncio.run(all_of_them()) == [expected] * 100


def refused_in_a_crowd(door: Door, asking: int) -> list[openai.InternalServerError]:
    """Have so many long answers asked for at once, and return the refusals."""
    together = threading.Barrier(asking)

    def ask(_: int) -> openai.InternalServerError | None:
        together.wait()
        try:
            complete(door, model="narrow", max_tokens=CONTEXT - 50, extra_body={"ignore_eos": True})
        except openai.InternalServerError as error:
            return error
        return None

    with ThreadPoolExecutor(asking) as crowd:
        return [each for each in crowd.map(ask, range(asking)) if each is not None]


def test_a_full_queue_is_told_and_passes(door) -> None:
    door.serve("narrow", 1, max_num_seqs=1, max_queue_size=1)
    refused, *_others = refused_in_a_crowd(door, 12)
    assert "1 requests wait" in refused.message
    assert (refused.status_code, refused.code) == (503, "overloaded")
    assert int(refused.response.headers["retry-after"]) == 1
    wait_for(lambda: door.is_idle("narrow"))
    assert complete(door, model="narrow").choices[0].text
    door.triton.unload("narrow")
    wait_for(
        lambda: not any(each.is_loaded for each in door.triton.index() if each.name == "narrow")
    )
    with pytest.raises(openai.InternalServerError) as refused:
        complete(door, model="narrow")
    assert (refused.value.status_code, refused.value.code) == (503, "model_unavailable")


def test_a_model_that_is_not_there(door) -> None:
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="'lmm' does not exist") as refused:
            complete(door, model="lmm", stream=stream)
        assert refused.value.code == "model_not_found"


def test_what_is_not_supported_is_refused_by_name(door) -> None:
    with pytest.raises(openai.BadRequestError, match="'logprobs' is not supported") as refused:
        chat(door, logprobs=True)
    assert refused.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError, match="presence_penalty is 1.0") as refused:
        complete(door, presence_penalty=1)
    assert refused.value.param == "presence_penalty"
    with pytest.raises(openai.BadRequestError, match="token ids"):
        complete(door, prompt=[1, 2, 3])
    with pytest.raises(openai.BadRequestError, match="the prompt is empty"):
        complete(door, prompt="")


def test_a_body_too_large_is_refused_before_it_is_read(door) -> None:
    large = b'"' + b"x" * (2 * 2**20) + b'"'
    found = door.post("/v1/completions", large)
    assert (found.status_code, found.json()["error"]["code"]) == (413, "request_too_large")

    def unannounced() -> Iterator[bytes]:
        for _ in range(64):
            yield b"x" * 2**16

    headers = {"authorization": f"Bearer {door.keys['anna']}"}
    url = f"{door.url}/v1/completions"
    assert httpx.post(url, content=unannounced(), headers=headers).status_code == 413
    assert answers(f"{door.url}/health")


def test_paths_that_are_not_there_have_openais_error(door) -> None:
    found = door.post("/v1/embeddings", {})
    assert (found.status_code, found.json()["error"]["code"]) == (404, "unknown_url")
    found = httpx.get(f"{door.url}/v1/completions")
    assert (found.status_code, found.json()["error"]["code"]) == (405, "unknown_url")


def test_a_new_version_answers_and_is_named(door) -> None:
    assert "moving" not in {each.id for each in door.client().models.list()}
    door.serve("moving", 1)
    assert complete(door, model="moving").system_fingerprint == "moving@1"
    with stream_long(door, model="moving") as stream:
        chunks = iter(stream)
        next(chunks)
        door.serve("moving", 2)
        found = [complete(door, model="moving", max_tokens=1) for _ in range(5)]
        rest = list(chunks)
    assert {each.system_fingerprint for each in found} == {"moving@2"}
    assert rest[-1].choices[0].finish_reason == "length"
    assert rest[-1].system_fingerprint == "moving@1"
    door.triton.unload("moving")


def test_a_door_whose_triton_is_away_says_so(door) -> None:
    nowhere = free_endpoint()
    with running(door.installation.home, nowhere) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key=door.keys["anna"], max_retries=0)
        for ask in (
            client.models.list,
            lambda: client.completions.create(model="lm", prompt="x"),
            lambda: client.completions.create(model="lm", prompt="x", stream=True),
        ):
            with pytest.raises(openai.InternalServerError) as refused:
                ask()
            assert (refused.value.status_code, refused.value.code) == (503, "model_unavailable")
            assert int(refused.value.response.headers["retry-after"]) == 5
            assert nowhere.grpc not in str(refused.value)


def test_the_log_has_a_line_for_each_request_and_no_secret(door) -> None:
    own = door.client("bob", default_headers={"x-request-id": "mine-2"})
    found = own.completions.create(
        model="lm", prompt="a secret of bob's", max_tokens=3, extra_body={"ignore_eos": True}
    )
    log = (door.installation.logs / "openai.log").read_text()
    (line,) = [line for line in log.splitlines() if "mine-2" in line]
    assert "done key bob, model 'lm': " in line
    assert f" {found.usage.prompt_tokens} tokens in, 3 out" in line
    assert "secret" not in log
    assert not any(secret in log for secret in door.keys.values())
    assert "Traceback" not in log
