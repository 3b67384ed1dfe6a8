"""Open and configure the engine of OpenVINO GenAI, and translate to and from its API."""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from language_generation import greedy_config  # type: ignore[import-not-found]
from lm_sampling import Sampling  # type: ignore[import-not-found]
from lm_stream import LENGTH, STOP, Answer, Stream  # type: ignore[import-not-found]

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # or it reports usage
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

DEVICE = "CPU"
ENGINE = "engine.json"
OWN_PROPERTIES = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
"""Properties that a version may set in `engine.json`: precision of computation and KV cache."""
SEED_STEP = 0x9E3779B1
SEED_SPACE = 2**32
"""The engine uses only the lower 32 bits of a seed."""


def version_parameters(folder: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of `config.pbtxt` that apply to one version.

    All loaded versions share one `config.pbtxt`, but a draft model is in the folder of its version.
    So `draft_model` is left out for a version whose folder has no draft.
    """
    has_draft = (folder / parameters.get("draft_model", "")).is_dir()
    return {key: each for key, each in parameters.items() if has_draft or key != "draft_model"}


def open_pipeline(folder: Path, values: Mapping[str, str]) -> Any:
    """Open the pipeline of a model.

    Args:
        folder: the version's folder, with model, tokenizer and detokenizer as OpenVINO IR.
        values: the version's parameters; see `version_parameters`.
    """
    properties = {**own_properties(folder), **read_properties(folder, values)}
    scheduler = scheduler_config(values)
    return genai.ContinuousBatchingPipeline(str(folder), scheduler, DEVICE, properties)


def scheduler_config(values: Mapping[str, str]) -> Any:
    """Return the settings of the engine's scheduler."""
    config = genai.SchedulerConfig()
    config.max_num_seqs = int(values["max_num_seqs"])
    config.max_num_batched_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    config.cache_size = int(values["cache_size_gib"])
    has_draft = bool(values.get("draft_model"))
    config.enable_prefix_caching = values["enable_prefix_caching"] == "true" and not has_draft
    return config


def read_properties(folder: Path, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the OpenVINO properties that correspond to a version's parameters."""
    properties: dict[str, Any] = {}
    if int(values.get("num_threads", "0")) > 0:
        properties["INFERENCE_NUM_THREADS"] = int(values["num_threads"])
    if values.get("draft_model"):
        draft = folder / values["draft_model"]
        own = {**own_properties(draft), **properties}
        properties["draft_model"] = genai.draft_model(str(draft), DEVICE, **own)
    return properties


def own_properties(folder: Path) -> dict[str, str]:
    """Return the properties in a model's `engine.json`; OpenVINO chooses all others."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN_PROPERTIES if name in values}


def add_request(pipeline: Any, number: int, ids: Any, config: Any) -> Any:
    """Add an answer to the engine, and return the handle of its generation.

    Args:
        pipeline: the engine.
        number: a unique number for the answer.
        ids: the prompt, int64 tokens [1, tokens].
        config: see `generation_config`.
    """
    return pipeline.add_request(number, ov.Tensor(ids), config)


def generation_config(sampling: Sampling, index: int, defaults: Any, guesses: int | None) -> Any:
    """Return the engine's configuration for one of the answers to a prompt.

    Args:
        sampling: the request's sampling, with max_tokens and seed set.
        index: the index of the answer, from 0 to n - 1; each index gets its own seed.
        defaults: the engine's default configuration, which has the tokens that end a text.
        guesses: tokens that the draft model proposes at a time; None: no draft model.
    """
    config = greedy_config(defaults, sampling.max_tokens, ignore_eos=sampling.ignore_eos)
    config.min_new_tokens = sampling.min_tokens
    config.repetition_penalty = sampling.repetition_penalty
    config.do_sample = not sampling.is_greedy
    if config.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        if sampling.top_k is not None:
            config.top_k = sampling.top_k
        config.rng_seed = (sampling.seed + index * SEED_STEP) % SEED_SPACE
    if guesses is not None:
        config.num_assistant_tokens = guesses
    return config


def read_tokens(stream: Stream, answer: Answer, now: float, ends: Collection[int]) -> None:
    """Add the tokens that the engine has generated to an answer.

    Args:
        stream: the request.
        answer: one of its answers.
        now: the time, in seconds of `perf_counter`.
        ends: the tokens that end an answer; an end token counts as output but is not shown.
    """
    ends = () if stream.request.sampling.ignore_eos else ends
    while answer.handle.can_read():
        for output in answer.handle.read().values():
            answer.add(output.generated_ids)
            stream.record_tokens(now)
            if output.finish_reason != genai.GenerationFinishReason.NONE:
                is_length = output.finish_reason == genai.GenerationFinishReason.LENGTH
                answer.end(LENGTH if is_length else STOP, ends)


def is_ignored(answer: Answer) -> bool:
    """Whether the engine gave up an answer because the KV cache has no room for it."""
    ignored = genai.GenerationStatus.IGNORED
    return not answer.has_ended and answer.handle.get_status() == ignored
