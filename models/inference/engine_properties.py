"""What a form of a language model may say of its engine: in what numbers it computes.

Nothing else is taken from a model's files: an engine has properties that are paths.
"""

import json
from pathlib import Path

ENGINE = "engine.json"
"""The file; OpenVINO chooses what it leaves out."""
OWN = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")


def own_properties(folder: Path) -> dict[str, str]:
    """Return OpenVINO's properties that a form's folder sets."""
    file = folder / ENGINE
    values = json.loads(file.read_text()) if file.exists() else {}
    return {name: str(values[name]) for name in OWN if name in values}
