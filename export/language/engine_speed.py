"""The engines that continue texts with a variant on the CPU, and how fast they are."""

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
CACHE_GIB = 1
ROUNDS, LEAST = 7, 2
SECONDS = 4.0
"""For the rounds of one number of streams, at most; `LEAST` are always made."""
Properties = Mapping[str, str | int]
EXACT: Properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""What makes the engine compute as transformers does: its defaults are shorter numbers."""


@dataclass(frozen=True)
class LanguageSpeed:
    """What was measured with the threads of one server.

    Attributes:
        time_to_first_token_ms: median at one stream, of prompts of `prompt_tokens`.
        ms_per_token: median at one stream, of every token after the first.
        tokens_per_second: median by the number of streams: new tokens of all of them together.
        prompt_tokens: length of the prompts.
        new_tokens: of each answer.
        peak_memory_bytes: of the process, a cache of 1 GiB at most included; 0 for vLLM, whose
            memory is the GPU's.
    """

    time_to_first_token_ms: float
    ms_per_token: float
    tokens_per_second: Mapping[int, float]
    prompt_tokens: int
    new_tokens: int
    peak_memory_bytes: int = 0

    @property
    def latency_ms(self) -> float:
        """Time to the first token and of one more, at one stream."""
        return self.time_to_first_token_ms + self.ms_per_token

    @property
    def per_second(self) -> float:
        """New tokens per second at the most streams."""
        return self.tokens_per_second[max(STREAMS)]


@dataclass(frozen=True)
class Continuation:
    """One round of continued prompts.

    Attributes:
        tokens: of each prompt, `new` of them.
        first: seconds to the first token of any.
        whole: seconds to the last of all.
    """

    tokens: list[list[int]]
    first: float
    whole: float


class Engine:
    """OpenVINO GenAI's continuous batching, greedy and without prefix caching.

    Args:
        variant: the folder.
        properties: of the device.
    """

    def __init__(self, variant: Path, properties: Properties) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = max(STREAMS)
        # the same prompts come several times: what is measured is work, not memory
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
        """Continue all prompts at once by `new` tokens each, whatever they are."""
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
    """Measure one stream, and then several.

    Args:
        run: continues prompts.
        prompts: as many as the most streams, all of one length.
        new: tokens of each answer, 2 or more.
    """
    rates: dict[int, float] = {}
    rounds: list[Continuation] = []
    for streams in reversed(STREAMS):
        rounds = _rounds(run, prompts[:streams], new)
        rates[streams] = streams * new / median(each.whole for each in rounds)
    # the last were of one stream
    first = median(each.first for each in rounds)
    later = median((each.whole - each.first) / (new - 1) for each in rounds)
    return LanguageSpeed(
        first * 1000, later * 1000, dict(sorted(rates.items())), len(prompts[0]), new
    )


def _rounds(run: Run, prompts: Sequence[Array], new: int) -> list[Continuation]:
    """Run some rounds; the first of all warms up and is left out."""
    run(prompts, new)
    made: list[Continuation] = []
    until = time.perf_counter() + SECONDS
    while len(made) < LEAST or (len(made) < ROUNDS and time.perf_counter() < until):
        made.append(run(prompts, new))
    return made


class OnnxEngine:
    """onnxruntime-genai's generator, greedy.

    Args:
        variant: the folder.
        threads: of one operator.
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
        """Return the logits of one piece, `[n, vocabulary]`."""
        generator = self._generator(1, len(ids) + 1)
        generator.append_tokens(ids.astype(np.int32)[None])
        return np.asarray(generator.get_output("logits")[0], np.float32)

    def run(self, prompts: Sequence[Array], new: int) -> Continuation:
        """Continue all prompts by `new` tokens each, those of one length together.

        A text is never ended early: its end is the least likely token till then.
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
