"""Opening the engine as `config.pbtxt` and the version's own `engine.json` say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lm_no_telemetry  # type: ignore[import-not-found]  # noqa: F401
import openvino_genai as genai

DEVICE = "CPU"
ENGINE = "engine.json"
OWN = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
"""What a version may say of the engine: in what numbers it computes, and keeps keys and values."""


def own_values(folder: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of `config.pbtxt` as they hold for one version.

    All loaded versions have one `config.pbtxt`, and what drafts is in the version: one without it
    stays loaded beside one with it.
    """
    has_draft = (folder / parameters.get("draft_model", "")).is_dir()
    return {key: each for key, each in parameters.items() if has_draft or key != "draft_model"}


def opened(folder: Path, values: Mapping[str, str]) -> Any:
    """Open the pipeline of a model.

    Args:
        folder: the version's, with the model, tokenizer and detokenizer as OpenVINO IR.
        values: its parameters, see `own_values`.
    """
    options = {**own_properties(folder), **properties(folder, values)}
    return genai.ContinuousBatchingPipeline(str(folder), scheduler(values), DEVICE, options)


def scheduler(values: Mapping[str, str]) -> Any:
    """Return how the engine schedules."""
    config = genai.SchedulerConfig()
    config.max_num_seqs = int(values["max_num_seqs"])
    config.max_num_batched_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    config.cache_size = int(values["cache_size_gib"])
    is_alone = not values.get("draft_model")
    config.enable_prefix_caching = values["enable_prefix_caching"] == "true" and is_alone
    return config


def properties(folder: Path, values: Mapping[str, str]) -> dict[str, Any]:
    """Return OpenVINO's properties by a version's parameters."""
    options: dict[str, Any] = {}
    if int(values.get("num_threads", "0")) > 0:
        options["INFERENCE_NUM_THREADS"] = int(values["num_threads"])
    if values.get("draft_model"):
        draft = folder / values["draft_model"]
        own = {**own_properties(draft), **options}
        options["draft_model"] = genai.draft_model(str(draft), DEVICE, **own)
    return options


def own_properties(folder: Path) -> dict[str, str]:
    """Return what a model's own files say of the engine; OpenVINO chooses what they leave out."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN if name in values}
