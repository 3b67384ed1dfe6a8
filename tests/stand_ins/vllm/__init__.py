"""As much of vLLM as `ray.data.llm` of Ray 2.60 asks for; its model says a prompt backwards.

The names, and what is raised, are those of vLLM 0.32. A prompt with REFUSED in it is refused. Files
in the model's folder make faults: with `unopenable` no engine opens; with `fatal` the engine dies
at the first prompt, and removes the file; with `breaks` it fails at a prompt with BROKEN in it, as
soon as there is a file of the pattern that `breaks` holds.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from . import inputs, outputs
from .exceptions import VLLMValidationError
from .sampling_params import SamplingParams
from .v1.engine.exceptions import EngineDeadError

__version__ = "0.32.0+stand.in"
__all__ = ["AsyncEngineArgs", "AsyncLLMEngine", "SamplingParams", "inputs", "outputs"]
END = 0


@dataclass(frozen=True)
class AsyncEngineArgs:
    model: str
    runner: str
    dtype: str
    distributed_executor_backend: str
    tensor_parallel_size: int
    max_num_seqs: int
    max_model_len: int
    kv_cache_memory_bytes: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    enable_log_requests: bool
    disable_log_stats: bool = False

    def create_engine_config(self) -> Any:
        return SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=self.max_num_seqs),
            parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        )


@dataclass
class AsyncLLMEngine:
    folder: Path
    log_stats: bool
    tokenizer: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @classmethod
    def from_engine_args(cls, arguments: AsyncEngineArgs, stat_loggers: Any) -> "AsyncLLMEngine":
        if (Path(arguments.model) / "unopenable").exists():
            raise RuntimeError("CUDA out of memory")
        return cls(Path(arguments.model), not arguments.disable_log_stats)

    async def generate(
        self, request_id: str, prompt: Any, sampling_params: SamplingParams, lora_request: Any
    ) -> AsyncIterator[outputs.RequestOutput]:
        ids = prompt["prompt_token_ids"]
        text = self.tokenizer.decode(ids)
        if "REFUSED" in text:
            raise VLLMValidationError(f"The decoder prompt (length {len(ids)}) is too long.")
        if "BROKEN" in text and (self.folder / "breaks").exists():
            folder, _, pattern = (self.folder / "breaks").read_text().partition(" ")
            async with asyncio.timeout(200):
                while not [f for f in Path(folder).glob(pattern) if ".pending" not in f.name]:
                    await asyncio.sleep(0.05)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if (self.folder / "fatal").exists():
            (self.folder / "fatal").unlink()
            raise EngineDeadError
        metrics = outputs.Metrics() if self.log_stats else None
        answer = self._answer(ids, sampling_params)
        yield outputs.RequestOutput(request_id, ids, [answer], metrics=metrics)

    def _answer(self, ids: list[int], wanted: SamplingParams) -> outputs.CompletionOutput:
        drawn = [] if wanted.seed is None else [ids[wanted.seed % len(ids)]]
        tokens = [*drawn, *reversed(ids), END][: wanted.max_tokens]
        text = self.tokenizer.decode(tokens)
        for stop in wanted.stop:
            if stop in text:
                text = text[: text.find(stop) + len(stop)]
        return outputs.CompletionOutput(text, tokens)

    async def do_log_stats(self) -> None:
        pass

    def shutdown(self) -> None:
        pass
