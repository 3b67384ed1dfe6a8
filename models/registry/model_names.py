"""Names that a registered model may have to be fetched, released or scored with.

The registry takes nearly any name, from whoever may write to it. Here a name becomes a folder,
a table and a Triton model, so it is checked first.
"""

import re

from millrace.models.common.errors import InputError

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
VALID = "at most 128 letters, digits, '.', '_' and '-', a letter or a digit first"
RESERVED = (".trial-", ".arms")
"""In the names of helper models that a release makes; see `serving/triton/server_index.py`."""


def name_fault(model: str) -> str | None:
    """Return why a model cannot be released by its name, or None."""
    if not MODEL_NAME.fullmatch(model):
        return "its name cannot be a folder's"
    if ".." in model or model.endswith("."):
        return "its name cannot be a folder's"
    if any(part in model for part in RESERVED):
        return "its name is one that a release makes for itself"
    return None


def require_model_name(model: str) -> str:
    """Return the name of a model.

    Raises:
        InputError: no model that is fetched or released may be called so.
    """
    fault = name_fault(model)
    if fault is None:
        return model
    raise InputError(
        f"the registered model {printable_name(model)} cannot be used: {fault}",
        seen=printable_name(model),
        valid=VALID,
        hint="register the model by another name, or remove its alias",
    )


def printable_name(name: str, most: int = 80) -> str:
    """Return a name as it may be printed: quoted, without control characters, cut."""
    text = ascii(name)
    return text if len(text) <= most else f"{text[:most]}…"
