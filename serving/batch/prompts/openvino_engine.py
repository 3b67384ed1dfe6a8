"""OpenVINO GenAI for many prompts at once, with nobody waiting for any of them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import ends_of, greedy_config, prompt_ids, shown_ids
from millrace.serving.batch.prompts.prompt_rows import Sampling

NO_ROOM = "the engine's cache has no room for the answer"


@dataclass(frozen=True)
class Asked:
    """One prompt.

    Attributes:
        ids: its tokens.
        max_tokens: of the answer.
        seed: what the answer is drawn by, where it is.
        sampling: the rest.
    """

    ids: Sequence[int]
    max_tokens: int
    seed: int
    sampling: Sampling


@dataclass(frozen=True)
class Finished:
    """What became of a prompt.

    Attributes:
        text: the answer.
        reason: `stop` or `length`.
        tokens: that were generated.
        fault: why there is no answer.
    """

    text: str = ""
    reason: str = ""
    tokens: int = 0
    fault: str | None = None


class Engine:
    """An opened model.

    Args:
        variant: the folder of its files.
        properties: OpenVINO's, that the variant sets.
        threads: of the engine; 0 for all cores.
        sequences: answers at a time.
        batched_tokens: that it reads in a step; None for as many as OpenVINO GenAI chooses.
        cache_size_gib: memory of keys and values.
    """

    def __init__(
        self,
        variant: Path,
        properties: Mapping[str, str],
        *,
        threads: int,
        sequences: int,
        batched_tokens: int | None,
        cache_size_gib: int,
    ) -> None:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino as ov
        import openvino_genai as genai

        self._ov, self._genai, self._sequences = ov, genai, sequences
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = sequences
        # Every answer that is under way takes one in each step.
        tokens = batched_tokens or scheduler.max_num_batched_tokens
        scheduler.max_num_batched_tokens = max(tokens, sequences)
        scheduler.cache_size = cache_size_gib
        scheduler.enable_prefix_caching = True
        options: dict[str, Any] = dict(properties)
        # Several engines on one host would pin their threads to the same cores.
        options["ENABLE_CPU_PINNING"] = False
        if threads:
            options["INFERENCE_NUM_THREADS"] = threads
        try:
            self._pipeline = genai.ContinuousBatchingPipeline(
                str(variant), scheduler, "CPU", options
            )
        except RuntimeError:  # its text names the folders that it was built in
            raise WorkError(
                "OpenVINO GenAI cannot open the files of the model",
                valid="a variant for openvino_genai, and memory for it and its cache",
                hint="see export.candidates, or lower serving.generation.cache_size_gib",
            ) from None
        self._tokenizer = self._pipeline.get_tokenizer()
        self._defaults = self._pipeline.get_config()

    def tokens(self, text: str, *, is_chat: bool = False) -> Sequence[int]:
        """Return the tokens of a prompt: a text, or what the template made of a chat."""
        return [int(each) for each in prompt_ids(self._tokenizer, text, is_chat=is_chat)[0]]

    def finish(self, asked: Sequence[Asked]) -> list[Finished]:
        """Continue prompts, as many at a time as the engine may have, in their order."""
        waiting = list(enumerate(asked))[::-1]
        running: dict[int, Any] = {}
        ids: list[list[int]] = [[] for _ in asked]
        reasons: list[str | None] = [None] * len(asked)
        while waiting or running:
            while waiting and len(running) < self._sequences:
                number, each = waiting.pop()
                tensor = self._ov.Tensor(np.array([each.ids], np.int64))
                running[number] = self._pipeline.add_request(number, tensor, self._config(each))
            self._pipeline.step()
            for number, handle in list(running.items()):
                reasons[number] = self._read(handle, ids[number])
                if reasons[number] is not None:
                    del running[number]
        ends = ends_of(self._defaults)
        shown = [list(shown_ids(each, ends)) for each in ids]
        texts = self._tokenizer.decode(shown) if ids else []
        return [self._finished(*each) for each in zip(asked, ids, texts, reasons, strict=True)]

    def _read(self, handle: Any, ids: list[int]) -> str | None:
        """Take the new tokens of an answer, and return why it ended, None while it has not."""
        none, length = (
            self._genai.GenerationFinishReason.NONE,
            self._genai.GenerationFinishReason.LENGTH,
        )
        reason = None
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
                if output.finish_reason != none:
                    reason = "length" if output.finish_reason == length else "stop"
        if reason is None and handle.get_status() == self._genai.GenerationStatus.IGNORED:
            return NO_ROOM
        return reason

    def _finished(
        self, asked: Asked, ids: Sequence[int], text: str, reason: str | None
    ) -> Finished:
        if reason == NO_ROOM:
            return Finished(fault=NO_ROOM)
        ended = asked.sampling.ended(text)
        if ended is not None:
            return Finished(ended, "stop", len(ids))
        return Finished(text, reason or "stop", len(ids))

    def _config(self, asked: Asked) -> Any:
        """Translate to the engine's words."""
        sampling, config = asked.sampling, greedy_config(self._defaults, asked.max_tokens)
        config.stop_strings = set(sampling.stop)
        config.include_stop_str_in_output = True  # it is cut off where the answer is whole
        config.repetition_penalty = sampling.repetition_penalty
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = sampling.temperature, sampling.top_p
            config.rng_seed = asked.seed
            if sampling.top_k is not None:
                config.top_k = sampling.top_k
        return config
