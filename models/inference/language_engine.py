"""Which engine serves a variant of a language model, and the properties that `engine.json` may set.

A model's files can set no other properties, so that they cannot set a property that is a path.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

EngineName = Literal["openvino_genai", "vllm"]
"""The engines, by the name of their backend in Triton."""
WEIGHTS = ".safetensors"
MODEL_JSON = "model.json"
"""File with the settings of Triton's vLLM backend, stored beside a variant."""
AUTO_FIT = -1
"""vLLM's value of `max_model_len` that limits the context to what fits into its cache."""
NO_SHARE = 0.01
"""Share of a GPU's memory that vLLM requires to be free when it starts.

If the cache size is set in bytes, the share has no other effect. With vLLM's default of 0.92, a
candidate could not be tried beside the live version.
"""


def engine_of(files: Iterable[str]) -> EngineName:
    """Return the engine that serves a variant, by the names of the variant's files.

    Args:
        files: names of the variant's files; files in folders, such as a draft's, do not count.
    """
    is_vllm = any(name.endswith(WEIGHTS) and "/" not in name for name in files)
    return "vllm" if is_vllm else "openvino_genai"


ENGINE = "engine.json"
"""File with a variant's properties; OpenVINO chooses the properties that the file leaves out."""
OWN = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")


def own_properties(folder: Path) -> dict[str, str]:
    """Return the OpenVINO properties that the `engine.json` of a variant sets."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN if name in values}
