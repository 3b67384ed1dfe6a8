"""Which engine a form of a language model is for, and what `engine.json` may say of it.

Nothing else is taken from a model's files: an engine has properties that are paths.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

EngineName = Literal["openvino_genai", "vllm"]
"""As Triton calls the backend of each."""
WEIGHTS = ".safetensors"
MODEL_JSON = "model.json"
"""What Triton's vLLM backend reads beside a form."""
AUTO_FIT = -1
"""vLLM's word for as long a text as its cache has room for, where the model's context is longer."""
NO_SHARE = 0.01
"""Of a GPU's memory that vLLM asks to be free at the start. With the cache told in bytes it is
nothing else, and vLLM's own 0.92 would leave no room for a version that is tried beside the live
one.
"""


def engine_of(files: Iterable[str]) -> EngineName:
    """Return the engine that opens a form, by the names of its files.

    Args:
        files: names; those in folders, as a draft's, do not count.
    """
    is_vllm = any(name.endswith(WEIGHTS) and "/" not in name for name in files)
    return "vllm" if is_vllm else "openvino_genai"


ENGINE = "engine.json"
"""The file; OpenVINO chooses what it leaves out."""
OWN = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")


def own_properties(folder: Path) -> dict[str, str]:
    """Return OpenVINO's properties that a form's folder sets."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN if name in values}
