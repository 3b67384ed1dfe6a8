"""How onnxruntime-genai continues texts with an ONNX variant: in static batches of one length."""

import json
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from millrace.export.language.engine_speed import Continuation
from millrace.models.common.arrays import Array


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
