"""The engines that generate text with a variant on the CPU, and their speed."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.language_generation import greedy_config, prompt_ids

STREAMS = (1, 8, 32)
"""Numbers of streams to measure the speed at. A stream is one of the prompts that run at once."""
CACHE_GIB = 1
ROUNDS, LEAST = 7, 2
SECONDS = 4.0
"""Time limit of the rounds for one number of streams; at least `LEAST` rounds are always run."""
Properties = Mapping[str, str | int]
EXACT: Properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""OpenVINO properties for float32, in which transformers computes; the defaults of the engine have
lower precision."""


@dataclass(frozen=True)
class LanguageSpeed:
    """The speed and memory of a variant, measured with as many threads as one server uses.

    Attributes:
        time_to_first_token_ms: median time to the first token with one stream, in milliseconds.
        ms_per_token: median time per later token with one stream, in milliseconds.
        tokens_per_second: new tokens per second of all streams together, by number of streams; from
            the median time of several rounds.
        prompt_tokens: tokens of each prompt.
        new_tokens: tokens of each continuation.
        peak_memory_bytes: peak memory of the process, with a key-value cache of up to 1 GiB; 0 for
            vLLM, which uses GPU memory.
        other_load: share of the cores that other programs took meanwhile.
    """

    time_to_first_token_ms: float
    ms_per_token: float
    tokens_per_second: Mapping[int, float]
    prompt_tokens: int
    new_tokens: int
    peak_memory_bytes: int = 0
    other_load: float = 0.0

    @property
    def latency_ms(self) -> float:
        """Milliseconds to the first token plus those of one later token, with one stream."""
        return self.time_to_first_token_ms + self.ms_per_token

    @property
    def per_second(self) -> float:
        """New tokens per second at the largest number of streams."""
        return self.tokens_per_second[max(STREAMS)]


@dataclass(frozen=True)
class Continuation:
    """The continuations of several prompts that ran at once.

    Attributes:
        tokens: the new tokens of each prompt.
        first: seconds until the first token of any prompt.
        whole: seconds until the last token of all prompts.
    """

    tokens: list[list[int]]
    first: float
    whole: float


class Engine:
    """OpenVINO GenAI's continuous batching, with greedy decoding and without prefix caching.

    Args:
        variant: folder of the variant.
        properties: OpenVINO properties of the device.
    """

    def __init__(self, variant: Path, properties: Properties) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = max(STREAMS)
        # off, because the same prompts are repeated and a cache would hide their cost
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(
            variant, scheduler, "CPU", dict(properties)
        )
        self._count = 0

    def token_ids(self, text: str) -> list[int]:
        """Return the tokens that the variant's own tokenizer makes of a text."""
        found = prompt_ids(self._pipeline.get_tokenizer(), text, is_chat=False)
        return [int(token) for token in found[0]]

    def run(self, prompts: Sequence[Array], new: int) -> Continuation:
        """Continue all prompts at once by `new` tokens each; an end token does not end a text."""
        config = greedy_config(self._pipeline.get_config(), new, ignore_eos=True)
        began = time.perf_counter()
        handles = [self._added(prompt, config) for prompt in prompts]
        tokens: list[list[int]] = [[] for _ in prompts]
        first = 0.0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for handle, generated in zip(handles, tokens, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        generated += output.generated_ids
            if not first and any(tokens):
                first = time.perf_counter() - began
        return Continuation(tokens, first, time.perf_counter() - began)

    def _added(self, prompt: Array, config: Any) -> Any:
        import openvino

        self._count += 1
        return self._pipeline.add_request(self._count, openvino.Tensor(prompt[None]), config)


Run = Callable[[Sequence[Array], int], Continuation]


def speed_of(run: Run, prompts: Sequence[Array], new: int) -> LanguageSpeed:
    """Measure the speed at each number of streams in `STREAMS`.

    Args:
        run: continues prompts; called with prompts and the number of new tokens.
        prompts: prompts of equal length, as many as the largest number of streams.
        new: tokens of each continuation, 2 or more.
    """
    rates: dict[int, float] = {}
    rounds: list[Continuation] = []
    for streams in reversed(STREAMS):
        rounds = _rounds(run, prompts[:streams], new)
        rates[streams] = streams * new / median(each.whole for each in rounds)
    # the last rounds had one stream
    first = median(each.first for each in rounds)
    later = median((each.whole - each.first) / (new - 1) for each in rounds)
    return LanguageSpeed(
        first * 1000, later * 1000, dict(sorted(rates.items())), len(prompts[0]), new
    )


def _rounds(run: Run, prompts: Sequence[Array], new: int) -> list[Continuation]:
    """Run one round to warm up, then several rounds; return the rounds after the warm-up."""
    run(prompts, new)
    made: list[Continuation] = []
    until = time.perf_counter() + SECONDS
    while len(made) < LEAST or (len(made) < ROUNDS and time.perf_counter() < until):
        made.append(run(prompts, new))
    return made


class OnnxEngine:
    """onnxruntime-genai's generator, with greedy decoding.

    Args:
        variant: folder of the variant.
        threads: threads of one operator.
    """

    def __init__(self, variant: Path, threads: int) -> None:
        import onnxruntime_genai as genai  # type: ignore[import-not-found,unused-ignore]

        genai.disable_telemetry_events()
        config = genai.Config(str(variant))
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self._genai, self._model = genai, genai.Model(config)
        self._tokenizer = genai.Tokenizer(self._model)

    def token_ids(self, text: str) -> list[int]:
        """Return the tokens that the variant's own tokenizer makes of a text."""
        return [int(token) for token in self._tokenizer.encode(text)]

    def logits_of(self, ids: Array) -> Array:
        """Return the logits of one token sequence, `[n, vocabulary]`."""
        generator = self._generator(1, len(ids) + 1)
        generator.append_tokens(ids.astype(np.int32)[None])
        return np.asarray(generator.get_output("logits")[0], np.float32)

    def run(self, prompts: Sequence[Array], new: int) -> Continuation:
        """Continue all prompts by `new` tokens each; prompts of equal length run together.

        No text ends early, because `min_length` suppresses the end token.
        """
        began, first = time.perf_counter(), 0.0
        tokens: dict[int, list[int]] = {}
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        for length, group in groupby(order, key=lambda n: len(prompts[n])):
            numbers = list(group)
            generator = self._generator(len(numbers), length + new)
            generator.append_tokens(np.stack([prompts[n] for n in numbers]).astype(np.int32))
            while not generator.is_done():
                generator.generate_next_token()
                first = first or time.perf_counter() - began
            for place, n in enumerate(numbers):
                whole = generator.get_sequence(place)
                tokens[n] = [int(token) for token in whole[length : length + new]]
        in_order = [tokens[n] for n in range(len(prompts))]
        return Continuation(in_order, first, time.perf_counter() - began)

    def _generator(self, batch: int, length: int) -> Any:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(
            **{"batch_size": batch, "do_sample": False},
            **{"min_length": length, "max_length": length},
        )
        return self._genai.Generator(self._model, params)
