"""vLLM as the engine that generates and scores texts with a variant, on a GPU.

vLLM pins other releases of torch and transformers than Millrace does, so it usually has its own
Python environment. `VllmEngine` runs there. Of Millrace's dependencies, that environment needs
numpy only.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millrace.export.language.engine_speed import CACHE_GIB, STREAMS, Continuation
from millrace.models.common.arrays import Array
from millrace.models.inference.language_engine import AUTO_FIT, NO_SHARE


class VllmEngine:
    """vLLM's offline engine, with greedy decoding and without prefix caching.

    Args:
        variant: folder of the variant.
    """

    def __init__(self, variant: Path) -> None:
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model=str(variant),
            dtype="auto",
            max_model_len=AUTO_FIT,
            max_num_seqs=max(STREAMS),
            kv_cache_memory_bytes=CACHE_GIB * 2**30,
            gpu_memory_utilization=NO_SHARE,
            # off, because the same prompts are repeated and a cache would hide their cost
            enable_prefix_caching=False,
            max_logprobs=-1,
        )
        self._count = 0

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text from the variant's own tokenizer."""
        return [int(token) for token in self._llm.get_tokenizer()(text).input_ids]

    def logits_of(self, ids: Array) -> Array:
        """Return log-probabilities of a token sequence, `[n, vocabulary]`.

        The last row, for the token after the sequence, is all zeros. The prompt is the sequence
        without its last token, because vLLM must generate a token, and a prompt that fills the
        context leaves no room for one.

        Args:
            ids: `[n]`, two tokens or more.
        """
        sampling = self._vllm.SamplingParams(
            **{"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "detokenize": False},
            **{"prompt_logprobs": -1, "logprobs": -1, "flat_logprobs": True},
        )
        prompt = {"prompt_token_ids": ids[:-1].tolist()}
        (output,) = self._llm.generate([prompt], sampling, use_tqdm=False)
        rows = [*by_token(output.prompt_logprobs)[1:], *by_token(output.outputs[0].logprobs)]
        return np.stack([*rows, np.zeros_like(rows[0])])

    def run(self, prompts: Sequence[Array], new: int) -> Continuation:
        """Continue all prompts at once by `new` tokens each; an end token does not end a text."""
        sampling = self._vllm.SamplingParams(
            **{"max_tokens": new, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
        )
        engine, began, first = self._llm.llm_engine, time.perf_counter(), 0.0
        places = {self._added(engine, prompt, sampling): n for n, prompt in enumerate(prompts)}
        tokens: list[list[int]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[places[output.request_id]] = list(output.outputs[0].token_ids)
            if not first and any(tokens):
                first = time.perf_counter() - began
        return Continuation(tokens, first, time.perf_counter() - began)

    def texts(self, prompts: Sequence[str], new: int) -> list[str]:
        """Return the greedy continuations of texts, of at most `new` tokens each."""
        sampling = self._vllm.SamplingParams(max_tokens=new, temperature=0.0)
        return [each.outputs[0].text for each in self._llm.generate(list(prompts), sampling)]

    def _added(self, engine: Any, prompt: Array, sampling: Any) -> str:
        self._count += 1
        name = str(self._count)
        engine.add_request(name, {"prompt_token_ids": prompt.tolist()}, sampling)
        return name


def by_token(flat: Any) -> list[Array]:
    """Return vLLM's flat log-probabilities as one float32 array `[vocabulary]` per position.

    The first position of a prompt has no log-probabilities, so its array is empty.

    Args:
        flat: vLLM's `FlatLogprobs`. Every position, except the first position of a prompt, has all
            tokens of the vocabulary.
    """
    ids, logs = np.asarray(flat.token_ids, int), np.asarray(flat.logprobs, np.float32)
    rows = []
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        some = ids[start:end]
        row = np.zeros(int(some.max()) + 1 if len(some) else 0, np.float32)
        row[some] = logs[start:end]
        rows.append(row)
    return rows
