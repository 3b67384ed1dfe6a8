"""Which engine serves a variant of a language model, and the properties that `engine.json` may set.

A model's files set no other properties: some of an engine's properties are paths.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

EngineName = Literal["openvino_genai", "vllm"]
"""Names of their backends in Triton."""
WEIGHTS = ".safetensors"
MODEL_JSON = "model.json"
"""The settings of Triton's vLLM backend, beside a variant."""
AUTO_FIT = -1
"""vLLM's value for the longest text that its cache has room for, if the context is longer."""
NO_SHARE = 0.01
"""Share of a GPU's memory that vLLM requires to be free at its start.

With a cache size in bytes it has no other effect. vLLM's default of 0.92 would leave no room for a
version that is tried beside the live one.
"""


def engine_of(files: Iterable[str]) -> EngineName:
    """Return the engine that opens a variant, by the names of its files.

    Args:
        files: their names; files in folders, such as a draft's, do not count.
    """
    is_vllm = any(name.endswith(WEIGHTS) and "/" not in name for name in files)
    return "vllm" if is_vllm else "openvino_genai"


ENGINE = "engine.json"
"""The file; OpenVINO chooses the properties that it leaves out."""
OWN = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")


def own_properties(folder: Path) -> dict[str, str]:
    """Return OpenVINO's properties that a variant's folder sets."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN if name in values}
