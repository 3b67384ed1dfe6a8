"""Builds the module that `model.family` names.

A family is a callable: it takes `in_features`, `num_classes` and `model.params`, and returns a
`torch.nn.Module` from `[rows, in_features]` to `[rows, num_classes]`. So a user's own module class
is a family without changes. For a text, a family takes `vocab_size`, `padding` and `max_tokens`
instead of `in_features`, and its module reads int64 `[rows, tokens]`.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from millrace.models.common import user_code
from millrace.models.common.errors import InputError, nearest
from millrace.models.config.model_kind import load_object
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family_params import FAMILIES
from millrace.models.families.network import Network
from millrace.models.families.objective import Objective
from millrace.models.families.pretrained import resolve_pretrained
from millrace.models.inference.features import Encoding

Family = Callable[..., nn.Module]
OF_TEXT = ("text_classifier",)


def family_of(spec: ModelSpec, folder: Path) -> Family:
    """Return the family that `spec` names.

    Args:
        spec: the pipeline file's `model` part.
        folder: folder of the user's modules.

    Raises:
        InputError: the family, module or class does not exist.
    """
    if ":" in spec.family:
        family = user_code.load(spec.family, folder)
        if callable(family):
            return cast(Family, family)
        raise InputError(
            f"model.family {spec.family!r} is not a class or function: it cannot be called",
            seen=type(family).__name__,
            valid="a torch.nn.Module class, or a function that returns a module",
            hint="name a class: module:Class",
        )
    if spec.family not in FAMILIES:
        raise InputError(
            f"model.family {spec.family!r} is not known",
            seen=spec.family,
            valid=f"{', '.join(FAMILIES)} or module:Class",
            hint=nearest(spec.family, list(FAMILIES)) or "use your own class: module:Class",
        )
    return cast(Family, load_object(FAMILIES[spec.family]))


def build_network(
    spec: ModelSpec, folder: Path, encoding: Encoding, objective: Objective
) -> Network:
    """Build the network and run it on two rows, so that errors appear before training.

    Raises:
        InputError: the params do not fit the constructor, or the output has the wrong shape.
    """
    family_of(spec, folder)
    _require_fitting(spec, encoding)
    inputs: dict[str, Any] = {"in_features": encoding.in_features}
    if encoding.tokenizer is not None:
        names = ("vocab_size", "padding", "max_tokens")
        inputs = {name: getattr(encoding.tokenizer, name) for name in names}
    network = Network(encoding, build_module(spec, folder, inputs, objective.outputs))
    _try_out(network, spec, encoding, objective)
    return network


def build_module(
    spec: ModelSpec, folder: Path, inputs: Mapping[str, Any], outputs: int
) -> nn.Module:
    """Build the family's module.

    Args:
        spec: the pipeline file's `model` part.
        folder: folder of the user's modules.
        inputs: the arguments that describe the input: `in_features`, or of a text `vocab_size`,
            `padding` and `max_tokens`.
        outputs: number of outputs, the argument `num_classes`.

    Raises:
        InputError: the params do not fit the constructor, or nothing can be trained.
    """
    family = family_of(spec, folder)
    given = {**inputs, "num_classes": outputs, **_base(spec, folder)}
    _require_arguments(spec, family, given)
    try:
        net = family(**given, **spec.params)
    except InputError:
        raise
    except Exception as error:  # the user's own constructor may raise anything
        location = user_code.describe_location(error, folder)
        raise InputError(
            f"the family {spec.family!r} could not be built with the given params",
            seen=f"params {spec.params}: {error}{location}",
            valid=f"{spec.family}{_signature(family)}",
            hint=f"fix model.params in the pipeline file{', or the module' if location else ''}",
        ) from error
    if not isinstance(net, nn.Module):
        raise InputError(
            f"the family {spec.family!r} returned no torch.nn.Module",
            seen=type(net).__name__,
            valid="a torch.nn.Module class, or a function that returns a module",
            hint="return the module, or name its class in model.family",
        )
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise InputError(
            f"the family {spec.family!r} has no parameters to train",
            valid="a module with at least one parameter that requires a gradient",
            hint="register layers as attributes of the module",
        )
    return net


def _require_arguments(spec: ModelSpec, family: Family, given: Mapping[str, Any]) -> None:
    """Refuse a constructor that does not take what a module is given, or `model.params`.

    Args:
        spec: the pipeline file's `model` part.
        family: the user's class or function.
        given: the arguments that Millrace passes, by name.
    """
    try:
        parameters = inspect.signature(family).parameters
    except (TypeError, ValueError):  # code in C says nothing; the call itself does
        return
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name: each for name, each in parameters.items() if each.kind in kinds}
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    contract = f"{', '.join(given)} and model.params, by these names"
    seen = f"{spec.family}{_signature(family)}"
    lacking = [] if takes_any else [name for name in given if name not in named]
    if lacking:
        raise InputError(
            f"the family {spec.family!r} does not take {' and '.join(lacking)}",
            seen=seen,
            valid=f"a class or function that takes {contract}",
            hint=f"add {', '.join(lacking)} to its arguments; num_classes is the number of "
            "outputs, 1 in a regression",
        )
    if twice := [name for name in spec.params if name in given]:
        raise InputError(
            f"model.params has {', '.join(twice)}, which Millrace itself passes",
            valid=contract,
            hint=f"leave {', '.join(twice)} out of model.params",
        )
    own = [name for name in named if name not in given]
    if unknown := [] if takes_any else [name for name in spec.params if name not in own]:
        raise InputError(
            f"the family {spec.family!r} takes no {' and no '.join(unknown)}, which model.params "
            "has",
            seen=seen,
            valid=", ".join(own) or "no params",
            hint=nearest(unknown[0], own) or "leave it out, or add it to the arguments",
        )
    empty = inspect.Parameter.empty
    if needed := [n for n in own if n not in spec.params and named[n].default is empty]:
        raise InputError(
            f"the family {spec.family!r} needs {' and '.join(needed)}, which model.params lacks",
            seen=seen,
            valid=f"a value for each argument; Millrace passes {', '.join(given)}",
            hint=f"set model.params: {{{needed[0]}: …}}, or give it a default",
        )


def _require_fitting(spec: ModelSpec, encoding: Encoding) -> None:
    """Refuse text for a family that reads numbers, and numbers for a family that reads text."""
    is_text = encoding.tokenizer is not None
    if ":" in spec.family or is_text == (spec.family in OF_TEXT):
        return
    columns = ", ".join(f"{feature.name}: {feature.kind}" for feature in encoding.features)
    if is_text:
        raise InputError(
            f"the family {spec.family!r} does not read text",
            seen=columns,
            valid=f"model.family: {', '.join(OF_TEXT)}",
            hint="change model.family, or leave the text out of dataset.features",
        )
    raise InputError(
        f"the family {spec.family!r} reads one text column and nothing else",
        seen=columns,
        valid="dataset.features with one column, declared as {type: text} in dataset.columns",
        hint="declare the column, e.g. dataset.columns: {body: {type: text}}",
    )


def _base(spec: ModelSpec, folder: Path) -> dict[str, Any]:
    """Return the arguments that name a pretrained model."""
    if spec.pretrained is None:
        return {}
    base = {"pretrained": resolve_pretrained(spec.pretrained, folder)}
    return base if spec.revision is None else {**base, "revision": spec.revision}


def _signature(family: Family) -> str:
    try:
        return str(inspect.signature(family))
    except (TypeError, ValueError):
        return "(in_features, num_classes, …)"


def _input_shape(encoding: Encoding) -> str:
    if encoding.tokenizer is None:
        return f"float32 [rows, {encoding.in_features}]"
    return f"int64 [rows, tokens], at most {encoding.tokenizer.max_tokens} tokens"


def _try_out(network: Network, spec: ModelSpec, encoding: Encoding, objective: Objective) -> None:
    expected = (2, objective.outputs)
    network.eval()
    try:
        with torch.no_grad():
            answer = network(torch.from_numpy(encoding.input.example(2)))
    except Exception as error:  # the user's own forward may raise anything
        raise InputError(
            f"the family {spec.family!r} fails on a batch of two rows",
            seen=f"{type(error).__name__}: {error}",
            valid=f"{_input_shape(encoding)} to [rows, {objective.outputs}]",
            hint="fix the module's forward, or model.params",
        ) from error
    finally:
        network.train()
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != expected:
        raise InputError(
            f"the output of the family {spec.family!r} has the wrong shape",
            seen=list(getattr(answer, "shape", [])) or type(answer).__name__,
            valid=f"{list(expected)} for two rows",
            hint="forward must return logits of shape [rows, num_classes]",
        )
