"""Checks the name of a registered model before the model is fetched, released or scored with.

The registry accepts nearly any name, from everybody who may write to it. Millrace uses the name for
a folder, a table and a Triton model.
"""

import re

from millrace.models.common.errors import InputError

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
VALID = "at most 128 letters, digits, '.', '_' and '-', a letter or a digit first"
RESERVED = (".trial-", ".arms", ".columns")
"""Parts of the names of a release's helper models; see `serving/triton/server_index.py`."""


def name_fault(model: str) -> str | None:
    """Return why a model's name is not allowed; None if it is."""
    if not MODEL_NAME.fullmatch(model):
        return "its name cannot be the name of a folder"
    if ".." in model or model.endswith("."):
        return "its name cannot be the name of a folder"
    if any(part in model for part in RESERVED):
        return "its name is reserved for the helper models of releases"
    return None


def require_model_name(model: str) -> str:
    """Return the name of a model if it is allowed.

    Raises:
        InputError: the name is not allowed for a model that is fetched or released.
    """
    fault = name_fault(model)
    if fault is None:
        return model
    raise InputError(
        f"the registered model {printable_name(model)} cannot be used: {fault}",
        seen=printable_name(model),
        valid=VALID,
        hint="register the model under another name, or remove its alias",
    )


def printable_name(name: str, most: int = 80) -> str:
    """Return a name that is safe to print: quoted, escaped, and cut to `most` characters."""
    text = ascii(name)
    return text if len(text) <= most else f"{text[:most]}…"
