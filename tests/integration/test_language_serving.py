"""Causal language models on the embedded Triton, beside transformers' own answers."""

import asyncio
import json
import os
import random
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton import server as triton
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.model_config import loaded_anew, specific, to_text
from millrace.serving.triton.streams.stream_client import AsyncStreamClient, StreamClient
from millrace.serving.triton.streams.stream_request import Piece, Sampling
from tests.integration.backends import kill_backends
from tests.integration.ports import free_endpoint
from tests.language_model import ASSISTANT, Made, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

TEXT = Path(os.__file__).read_text()
CONTEXT = 4096
TOKENS = 16
INTERVAL = 4
"""Tokens between two pieces, as the model here is so quick that its answers would come in two."""
LONG = Sampling(temperature=1, ignore_eos=True, max_tokens=CONTEXT - 50)
LONGER = replace(LONG, max_tokens=8 * CONTEXT)
"""For the model `narrow`: LONG is over in two seconds, in which a busy machine may not do much."""
PROMPT = "import os\n"
ODD = ("😀", "né €", "a\0b", "\0", " ", "\n\n", "\u202e\ufeff", "日本語")
PROMPTS = tuple(TEXT[start : start + 1 + start % 190] for start in range(0, 56 * 577, 577)) + ODD
GREEDY = Sampling(temperature=0, max_tokens=TOKENS)


@dataclass
class Served:
    """A Triton for language models."""

    installation: Installation
    endpoint: Endpoint
    triton: TritonClient
    client: StreamClient
    made: Made

    def serve(
        self,
        name: str,
        version: int = 1,
        files: Path | None = None,
        generation: GenerationSpec | None = None,
        parameters: dict[str, str] | None = None,
    ) -> None:
        folder = self.installation.model_repository / name
        if not (folder / str(version)).exists():
            shutil.copytree(files or self.made.folder, folder / str(version))
        config = openvino_config(
            name,
            generation or GenerationSpec(),
            version_policy=specific([version]),
            parameters=parameters,
        )
        (folder / "config.pbtxt").write_text(to_text(config))
        self.triton.load(name)

    def gauges(self, model: str) -> dict[str, float]:
        """Return how things stand with a model: what is running, waiting, and the cache in use."""
        page = f"http://127.0.0.1:{self.endpoint.metrics_port}/metrics"
        with urllib.request.urlopen(page) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line[0] != "#"]
        found = (line.rpartition(" ") for line in lines if f'model="{model}"' in line)
        return {name.partition("{")[0]: float(value) for name, _, value in found}

    def is_idle(self, model: str) -> bool:
        names = ("running_sequences", "waiting_sequences", "cache_usage")
        now = self.gauges(model)
        return all(now[f"millrace_lm_{name}"] == 0 for name in names)

    def generate(self, model: str, **inputs: Any) -> httpx.Response:
        url = f"http://{self.endpoint.http}/v2/models/{model}/generate"
        return httpx.post(url, json=inputs, timeout=30)


@contextmanager
def serving(home: Path, made: Made) -> Iterator[Served]:
    installation, endpoint = Installation(home, "", "").prepared(), free_endpoint()
    with triton.running(installation, endpoint) as server, StreamClient(endpoint, 3) as client:
        yield Served(installation, endpoint, server, client, made)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = make(tmp_path_factory.mktemp("made") / "model", TEXT, max_position_embeddings=CONTEXT)
    with serving(tmp_path_factory.mktemp("home"), made) as found:
        found.serve("lm", generation=GenerationSpec(stream_interval=INTERVAL))
        yield found


@pytest.fixture(scope="module")
def narrow(served: Served, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without chat template, for two answers at a time and three requests that wait."""
    files = tmp_path_factory.mktemp("narrow") / "model"
    shutil.copytree(served.made.folder, files)
    (files / "chat_template.jinja").unlink()
    config = json.loads((files / "config.json").read_text())
    (files / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 16 * CONTEXT})
    )
    served.serve("narrow", files=files, generation=GenerationSpec(max_num_seqs=2, max_queue_size=3))
    return "narrow"


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def expected(served: Served) -> list[str]:
    return [served.made.greedy(prompt, TOKENS) for prompt in PROMPTS]


def greedy(served: Served, prompt: str) -> str:
    return served.client.complete("lm", prompt, GREEDY).texts[0]


def test_greedy_answers_are_those_of_transformers(served, expected) -> None:
    assert [greedy(served, prompt) for prompt in PROMPTS] == expected


def test_32_in_flight_change_no_answer(served, expected) -> None:
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(lambda prompt: greedy(served, prompt), PROMPTS)) == expected


def whole(served: Served, model: str, prompt: str, sampling: Sampling) -> str:
    """Return an answer that came as one response."""
    answer = served.generate(model, text_input=prompt, sampling_parameters=sampling.as_json())
    return str(answer.json()["text_output"])


def test_the_pieces_of_a_stream_join_to_the_whole_answer(served) -> None:
    for seed in range(12):
        sampling = Sampling(temperature=1.5, seed=seed, max_tokens=60, ignore_eos=True)
        pieces = list(served.client.generate("lm", ODD[seed % len(ODD)], sampling))
        assert len(pieces) > 5
        assert pieces[0].output_tokens == (1,), "the first token goes at once"
        streamed = "".join(piece.texts[0] for piece in pieces)
        assert streamed == whole(served, "lm", ODD[seed % len(ODD)], sampling)


def answer(served: Served, **values: Any) -> Piece:
    return served.client.complete("lm", PROMPT, Sampling(**{"max_tokens": 40, **values}))


@pytest.mark.parametrize("values", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}])
def test_what_leaves_no_chance_is_greedy(served, values) -> None:
    assert answer(served, seed=3, **values).texts == answer(served, temperature=0).texts
    assert answer(served, seed=3).texts != answer(served, temperature=0).texts


def test_a_penalty_leaves_fewer_repetitions(served) -> None:
    def kinds(**values: Any) -> int:
        found = answer(served, temperature=0, max_tokens=200, ignore_eos=True, **values)
        return len(set(served.made.ids(found.texts[0])[0].tolist()))

    assert kinds(repetition_penalty=1.5) > kinds()


def test_wider_sampling_is_wider(served) -> None:
    def kinds(**values: Any) -> int:
        texts = [answer(served, seed=seed, max_tokens=1, **values).texts[0] for seed in range(24)]
        return len(set(texts))

    assert kinds(top_k=2) <= 2 < kinds(top_k=200)
    assert kinds(temperature=0.01) < kinds(temperature=2.0)
    assert kinds(top_p=0.005) < kinds(top_p=0.9)


def test_a_seed_repeats_its_answer_alone_and_among_others(served) -> None:
    alone = answer(served, seed=5).texts
    assert answer(served, seed=5).texts == alone
    with ThreadPoolExecutor(32) as threads:
        together = list(threads.map(lambda seed: answer(served, seed=seed).texts, range(32)))
    assert together[5] == alone
    assert len(set(together)) == 32


def test_without_a_seed_answers_differ(served) -> None:
    assert len({answer(served).texts for _ in range(4)}) == 4


@pytest.mark.parametrize("width", [1, 2, 3, 5, 9, 17])
def test_a_stop_string_ends_the_answer_wherever_it_lies(served, width) -> None:
    text = answer(served, temperature=0, max_tokens=60).texts[0]
    for start in range(3, 40, 9):
        stop = text[start : start + width]
        sampling = Sampling(temperature=0, max_tokens=60, stop=["never this", stop])
        pieces = list(served.client.generate("lm", PROMPT, sampling))
        joined = "".join(piece.texts[0] for piece in pieces)
        assert joined == text[: text.find(stop)] == whole(served, "lm", PROMPT, sampling)
        assert pieces[-1].finish_reasons == ("stop",)
        assert sum(piece.output_tokens[0] for piece in pieces) < 60


def test_a_stop_string_that_does_not_come_takes_nothing(served) -> None:
    plain = answer(served, temperature=0)
    stopped = answer(served, temperature=0, stop=plain.texts[0][-3:] + "§")
    assert stopped == plain
    assert plain.finish_reasons == ("length",)


def test_n_answers_come_in_one_stream(served) -> None:
    several = answer(served, seed=7, n=4)
    assert len(set(several.texts)) == 4
    assert several.texts[0] == answer(served, seed=7).texts[0]
    assert several.output_tokens == (40,) * 4
    assert several.finish_reasons == ("length",) * 4
    sampling = Sampling(seed=7, n=4, max_tokens=40).as_json()
    at_once = served.generate("lm", text_input=PROMPT, sampling_parameters=sampling).json()
    assert tuple(at_once["text_output"]) == several.texts


@pytest.fixture(scope="module")
def ending(served: Served, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    """A model whose text ends with a token that it soon takes, and its greedy tokens till then."""
    ids = served.made.ids(PROMPT)
    tokens = served.made.model.generate(
        ids, max_new_tokens=12, do_sample=False, pad_token_id=1, attention_mask=ids * 0 + 1
    )[0, ids.shape[1] :].tolist()
    end = next(n for n in range(3, 12) if tokens[n] not in tokens[:n])
    files = tmp_path_factory.mktemp("ending") / "model"
    shutil.copytree(served.made.folder, files)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((files / name).read_text()) | {"eos_token_id": tokens[end]}
        (files / name).write_text(json.dumps(values))
    served.serve("ending", files=files)
    return "ending", tokens[: end + 1]


def test_the_end_of_text_ends_an_answer_unless_told_otherwise(served, ending) -> None:
    model, tokens = ending
    found = served.client.complete(model, PROMPT, Sampling(temperature=0, max_tokens=30))
    assert found.finish_reasons == ("stop",)
    assert found.output_tokens == (len(tokens),)
    for more in (Sampling(ignore_eos=True), Sampling(min_tokens=30)):
        sampling = Sampling(
            temperature=0, max_tokens=30, ignore_eos=more.ignore_eos, min_tokens=more.min_tokens
        )
        found = served.client.complete(model, PROMPT, sampling)
        assert (found.finish_reasons, found.output_tokens) == (("length",), (30,))


def test_tokens_are_counted(served) -> None:
    for prompt in PROMPTS[:8]:
        found = served.client.complete("lm", prompt, Sampling(max_tokens=7, ignore_eos=True))
        assert found.input_tokens == served.made.ids(prompt).shape[1]
        assert found.output_tokens == (7,)
    unsaid = served.client.complete("lm", PROMPT, Sampling(ignore_eos=True))
    room = CONTEXT - served.made.ids(PROMPT).shape[1]
    assert unsaid.output_tokens == (min(MAX_TOKENS, room),)


def test_a_long_prompt_is_refused_with_both_numbers(served) -> None:
    prompt = "😀" * 1100
    tokens = served.made.ids(prompt).shape[1]
    assert tokens >= CONTEXT
    with pytest.raises(InputError, match=f"{tokens} tokens.*{CONTEXT}"):
        served.client.complete("lm", prompt)
    with pytest.raises(InputError, match="300000 characters"):
        served.client.complete("lm", "x" * 300_000)


def test_an_answer_is_cut_where_the_context_ends(served) -> None:
    prompt = "\0" * (CONTEXT - 6)
    assert served.made.ids(prompt).shape[1] == CONTEXT - 6
    found = served.client.complete("lm", prompt, Sampling(max_tokens=100, ignore_eos=True))
    assert (found.output_tokens, found.finish_reasons) == ((6,), ("length",))


CHAT = [
    {"role": "user", "content": "what is <|pad|> né 😀?"},
    {"role": "assistant", "content": "nothing"},
    {"role": "user", "content": "and now?"},
]


def test_a_chat_is_asked_by_the_models_template(served) -> None:
    tokenizer = served.made.tokenizer
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert prompt.endswith(ASSISTANT)
    found = served.client.complete("lm", CHAT, GREEDY)
    assert found.input_tokens == served.made.ids(prompt).shape[1]
    assert found.texts[0] == served.made.greedy(prompt, TOKENS)


BAD = [
    ("", "", "the prompt is empty"),
    ("a\udc80", "", "text_input is not UTF-8: byte 0xed at position 1"),
    ([], "", "messages is .*, and must be a list of objects"),
    ([{"role": "user"}], "", '"content"'),
    ([{"role": "tool", "content": "x"}], "", "template rejects these messages: no tools"),
    ([{"role": "user", "content": "\udc80"}], "", "surrogate"),
    ("x", "{", "sampling_parameters is not JSON"),
    ("x", "[1]", r"\[1\], and must be a JSON object"),
    ("x", '{"a":' * 100_000, "sampling_parameters is JSON that cannot be read"),
    ("x", '{"temprature": 1}', "'temprature'; known are"),
    ("x", '{"temperature": NaN}', "NaN, which is not JSON"),
    ("x", '{"temperature": 1e999}', "temperature"),
    ("x", '{"temperature": -1}', "temperature is -1, and must be a number, at least 0"),
    ("x", '{"temperature": true}', "temperature is true"),
    ("x", '{"top_p": 0}', "above 0 and at most 1"),
    ("x", '{"top_k": 1.5}', "whole number"),
    ("x", '{"repetition_penalty": 0}', "above 0"),
    ("x", '{"presence_penalty": 1}', "presence_penalty is 1, and must be 0"),
    ("x", '{"frequency_penalty": "1"}', 'frequency_penalty is "1", and must be 0'),
    ("x", '{"seed": 1e3}', "seed is 1000.0"),
    ("x", '{"stop": ["a", ""]}', "stop is"),
    ("x", '{"max_tokens": 0}', "max_tokens is 0, and must be a whole number from 1"),
    ("x", '{"max_tokens": 2, "min_tokens": 3}', "min_tokens is 3, and must be at most"),
    ("x", '{"n": 33}', "n is 33, and must be at most 32"),
    ("x", '{"ignore_eos": 1}', "true or false"),
]


@pytest.mark.parametrize(("prompt", "sampling", "says"), BAD)
def test_what_is_not_valid_is_refused_by_name(served, prompt, sampling, says) -> None:
    with pytest.raises(InputError, match=says) as refused:
        served.client.complete("lm", prompt, sampling)
    assert "/" not in str(refused.value), "no path of the engine's build"
    served.client.ping("lm")


def test_either_a_text_or_messages(served, narrow) -> None:
    both = served.generate("lm", text_input="x", messages="[]")
    neither = served.generate("lm", sampling_parameters="{}")
    for found, said in ((both, "both"), (neither, "neither")):
        assert found.status_code == 400
        assert f"and this one has {said}" in found.json()["error"]
    with pytest.raises(InputError, match="no chat template; send text_input, not messages"):
        served.client.complete(narrow, CHAT)


def test_generate_by_http_is_one_answer_or_a_stream(served, expected) -> None:
    greedily = GREEDY.as_json()
    found = served.generate(
        "lm",
        text_input=PROMPTS[1],
        sampling_parameters=greedily,
        exclude_input_in_output=False,
        return_finish_reason=True,
        return_num_output_tokens=True,
    ).json()
    assert found["text_output"] == PROMPTS[1] + expected[1]
    assert (found["finish_reason"], found["num_output_tokens"]) == ("length", TOKENS)
    assert "num_input_tokens" not in found
    url = f"http://{served.endpoint.http}/v2/models/lm/generate_stream"
    body = {"text_input": PROMPTS[1], "sampling_parameters": greedily, "stream": True}
    with httpx.stream("POST", url, json=body, timeout=30) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert len(lines) > 2
    assert "".join(json.loads(line)["text_output"] for line in lines) == expected[1]


def test_a_full_queue_refuses_at_once_and_answers_later(served, narrow) -> None:
    with ExitStack() as held:
        streams = [served.client.generate(narrow, PROMPT, LONGER) for _ in range(2)]
        for each in streams:
            next(held.enter_context(closing(each)))
        threads = held.enter_context(ThreadPoolExecutor(3))
        ask = partial(served.client.complete, narrow, PROMPTS[0], GREEDY)
        waiting = [threads.submit(ask) for _ in range(3)]
        wait_for(lambda: served.gauges(narrow)["millrace_lm_waiting_sequences"] == 3)
        with pytest.raises(TransientError, match="3 requests wait already"):
            served.client.complete(narrow, "x")
        assert served.gauges(narrow)["millrace_lm_running_sequences"] == 2
        for each in streams:
            each.close()
        answers = {each.result().texts[0] for each in waiting}
    assert answers == {ask().texts[0]} == {served.made.greedy(PROMPTS[0], TOKENS)}


@pytest.mark.chaos
def test_cancelled_at_random_moments_nothing_stays_behind(served, expected) -> None:
    chance = random.Random(4)
    moments = [(chance.randrange(1, 40), chance.uniform(0.02, 1.5)) for _ in range(32)]

    def give_up(moment: tuple[int, float]) -> int:
        count, seconds = moment
        got = 0
        pieces = served.client.generate("lm", PROMPT, LONG, deadline=seconds)
        with closing(pieces), suppress(TransientError):  # its time was up
            for _ in range(count):
                got += len(next(pieces).texts)
        return got

    with ThreadPoolExecutor(32) as threads:
        got = list(threads.map(give_up, moments))
    assert 0 < sum(got) < sum(count for count, _ in moments), "some by pieces, some by time"
    wait_for(lambda: served.is_idle("lm"))
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(lambda prompt: greedy(served, prompt), PROMPTS)) == expected


def test_metrics_count_what_was_served(served) -> None:
    wait_for(lambda: served.is_idle("lm"))
    before = served.gauges("lm")
    served.client.complete("lm", PROMPT, Sampling(max_tokens=21, n=2, ignore_eos=True))
    first = "millrace_lm_time_to_first_token_us"
    wait_for(lambda: served.gauges("lm")[f"{first}_count"] > before[f"{first}_count"])
    grown = {name: value - before[name] for name, value in served.gauges("lm").items()}
    assert grown["millrace_lm_output_tokens_total"] == 42
    assert grown["millrace_lm_input_tokens_total"] == served.made.ids(PROMPT).shape[1]
    assert grown[f"{first}_count"] == grown["millrace_lm_time_per_output_token_us_count"] == 1
    assert 0 < grown["millrace_lm_time_per_output_token_us_sum"] < grown[f"{first}_sum"] * 100


def test_a_draft_changes_no_greedy_answer(served, expected, tmp_path) -> None:
    shutil.copytree(served.made.folder, tmp_path / "model")
    shutil.copytree(served.made.folder, tmp_path / "model" / "draft")
    guessing = GenerationSpec(draft="draft", num_assistant_tokens=3)
    served.serve("guessed", files=tmp_path / "model", generation=guessing)

    def ask(prompt: str) -> str:
        return served.client.complete("guessed", prompt, GREEDY).texts[0]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, PROMPTS[:16])) == expected[:16]
    several = Sampling(seed=1, n=3, max_tokens=20, ignore_eos=True)
    assert len(set(served.client.complete("guessed", PROMPT, several).texts)) == 3
    served.triton.unload("guessed")


@pytest.mark.chaos
def test_a_swap_of_versions_leaves_streams_whole(served) -> None:
    served.serve("swapped")
    sampling = Sampling(temperature=1, seed=1, max_tokens=3000, ignore_eos=True)
    with closing(served.client.generate("swapped", PROMPT, sampling)) as stream:
        pieces = [next(stream)]
        served.serve("swapped", version=2)
        states = {each.version: each.state for each in served.triton.index()}
        assert served.triton.live_version("swapped") == 2
        pieces += stream
    assert "UNLOADING" in states.values(), "the stream was not over"
    assert sum(piece.output_tokens[0] for piece in pieces) == 3000
    assert pieces[-1].finish_reasons == ("length",)
    text = "".join(piece.texts[0] for piece in pieces)
    assert text == whole(served, "swapped", PROMPT, sampling)
    wait_for(lambda: not any(each.state == "UNLOADING" for each in served.triton.index()))
    assert served.client.complete("swapped", PROMPT, GREEDY).texts[0] == greedy(served, PROMPT)
    served.triton.unload("swapped")


def poisoned(files: Path) -> None:
    """Have the engine fail at the token of ASSISTANT: the graph's shapes do not fit then."""
    core = ov.Core()
    graph = core.read_model(files / "openvino_model.xml")
    ids = next(p for p in graph.get_parameters() if "input_ids" in p.output(0).get_names())
    users = list(ids.output(0).get_target_inputs())
    flat = ops.reshape(ids, ops.constant([-1]), special_zero=False)
    hits = ops.convert(ops.equal(flat, ops.constant(3, dtype=np.int64)), "i64")
    factor = ops.add(
        ops.reduce_max(hits, ops.constant([0]), keep_dims=True),
        ops.constant([1], dtype=np.int64),
    )
    shape = ops.multiply(ops.shape_of(ids, output_type="i64"), factor)
    ids_or_failure = ops.reshape(ids, shape, special_zero=False)
    for user in users:
        if user.get_node().get_type_name() != "ShapeOf":
            user.replace_source_output(ids_or_failure.output(0))
    ov.save_model(graph, files / "new.xml", compress_to_fp16=False)
    del graph
    for suffix in ("xml", "bin"):
        (files / f"new.{suffix}").replace(files / f"openvino_model.{suffix}")


@pytest.mark.chaos
def test_a_failing_engine_ends_its_requests_and_is_made_anew(served, tmp_path) -> None:
    shutil.copytree(served.made.folder, tmp_path / "model")
    poisoned(tmp_path / "model")
    served.serve("poisoned", files=tmp_path / "model")
    with closing(served.client.generate("poisoned", PROMPT, LONG)) as stream:
        next(stream)
        for failing in (
            lambda: served.client.complete("poisoned", ASSISTANT),
            lambda: list(stream),
        ):
            with pytest.raises(TransientError, match="the engine failed.*try again") as failed:
                failing()
            assert "/" not in str(failed.value)
    found = served.client.complete("poisoned", PROMPT, GREEDY)
    assert found.texts[0] == greedy(served, PROMPT)
    log = triton.log_file(served.installation, served.endpoint).read_text()
    assert "the engine failed, and is opened again" in log
    wait_for(lambda: served.is_idle("poisoned"))
    served.triton.unload("poisoned")


@pytest.mark.chaos
def test_a_killed_backend_ends_its_streams_and_comes_back(served, tmp_path: Path) -> None:
    greedy_answer = greedy(served, PROMPT)
    for number in range(4):
        home = tmp_path / str(number)
        with serving(home, served.made) as other:
            try:
                _kill_and_come_back(other, greedy_answer)
            except (AssertionError, TransientError):
                # Triton ends too where the process held its lock when it was killed; `up` starts it
                logs = "".join(log.read_text() for log in other.installation.logs.iterdir())
                if "boost::interprocess::lock_exception" not in logs:
                    raise
            else:
                return
    pytest.fail("Triton ended with its backend each time")


def _kill_and_come_back(served: Served, greedy_answer: str) -> None:
    served.serve("doomed")
    folder = str(served.installation.model_repository / "doomed")
    with closing(served.client.generate("doomed", PROMPT, LONG)) as stream:
        next(stream)
        assert kill_backends(folder) == 1
        began = time.monotonic()
        with pytest.raises(TransientError, match="died; the next release"):
            list(stream)
        assert time.monotonic() - began < 20
    with pytest.raises(TransientError, match="died; the next release loads the model again"):
        served.client.complete("doomed", PROMPT)
    with pytest.raises(TransientError):
        served.client.ping("doomed")
    served.serve("doomed", parameters=loaded_anew())
    served.client.ping("doomed")
    with closing(served.client.generate("doomed", PROMPT, LONG)) as stream:
        next(stream)
        assert kill_backends(folder) == 1
        served.serve("doomed", parameters=loaded_anew())
        began = time.monotonic()
        with pytest.raises(TransientError, match="died"):
            list(stream)
        assert time.monotonic() - began < 30, "another process answers, but not this stream"
    assert served.client.complete("doomed", PROMPT, GREEDY).texts[0] == greedy_answer


def test_there_is_a_client_for_asyncio(served, expected) -> None:
    async def both() -> tuple[list[str], int]:
        async with AsyncStreamClient(served.endpoint, 3) as client:
            long = client.generate("lm", PROMPT, LONG)
            await anext(long)
            calls = [client.complete("lm", prompt, GREEDY) for prompt in PROMPTS[:8]]
            answers = await asyncio.gather(*calls)
            await long.aclose()
            with pytest.raises(InputError, match="the prompt is empty"):
                await client.complete("lm", "")
            with pytest.raises(TransientError, match=r"0\.2 s were not enough"):
                await client.complete("lm", PROMPT, LONG, deadline=0.2)
            return [each.texts[0] for each in answers], len(answers)

    assert asyncio.run(both()) == (expected[:8], 8)
    wait_for(lambda: served.is_idle("lm"))


def test_a_model_or_a_server_that_is_not_there(served) -> None:
    with pytest.raises(InputError, match="no such model"):
        served.client.complete("nothing", "x")
    with (
        StreamClient(free_endpoint()) as client,
        pytest.raises(TransientError, match="no Triton"),
    ):
        client.complete("lm", "x")
