"""Checks the names in `model.params` against the parameters that a family's constructor has.

The constructor of a family of Millrace is read from its source, because importing it takes as long
as importing torch.
"""

import ast
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from millrace.models.common.errors import InputError, nearest
from millrace.models.config.training_spec import ModelSpec

FAMILIES = {
    "mlp": "millrace.models.families.mlp:Perceptron",
    "cnn": "millrace.models.families.cnn:ResNet",
    "text_classifier": "millrace.models.families.text_classifier:TextClassifier",
}
"""The class of each family, as `module:Class`."""
CLASSES = "num_classes"
GIVEN = (CLASSES, "in_features", "vocab_size", "padding", "max_tokens", "pretrained", "revision")
"""Arguments that a family gets from the dataset and from other keys of `model`."""


def require_known_params(spec: ModelSpec, family: Callable[..., Any] | None = None) -> None:
    """Check that the family has a parameter for each key of `model.params`.

    A constructor that takes any keyword is not checked.

    Args:
        spec: the pipeline file's `model` part.
        family: the family, if the user wrote it.

    Raises:
        InputError: the constructor has no such parameter.
    """
    names = _names_of(family) if family else _names_in_source(FAMILIES[spec.family])
    unknown = [name for name in spec.params if name not in (names or spec.params)]
    if names is None or not unknown:
        return
    own = [name for name in names if name not in GIVEN]
    raise InputError(
        f"model.params.{unknown[0]} is not a parameter of the family {spec.family}",
        seen=", ".join(unknown),
        valid=", ".join(own) or "no params",
        hint=nearest(unknown[0], own) or "use a name from the list above",
    )


def _names_of(family: Callable[..., Any]) -> list[str] | None:
    """Return the keywords that a callable takes, but `num_classes`; None if it takes any."""
    try:
        parameters = inspect.signature(family).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind == each.VAR_KEYWORD for each in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in kinds and each.name != CLASSES]


def _names_in_source(reference: str) -> list[str] | None:
    """Return the keywords of a class's constructor, but `num_classes`; None if it takes any."""
    module, _, name = reference.partition(":")
    found = find_spec(module)
    tree = ast.parse(Path((found and found.origin) or "").read_text(encoding="utf-8"))
    functions = [
        function
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name == name
        for function in each.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    ]
    takes = functions[0].args
    if takes.kwarg is not None:
        return None
    names = [each.arg for each in (*takes.args, *takes.kwonlyargs)]
    return [each for each in names if each not in ("self", CLASSES)]
