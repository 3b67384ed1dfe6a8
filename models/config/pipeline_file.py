"""Reads a pipeline file, and reports all of its problems at once, with line numbers.

A misspelt key is refused with the nearest valid one.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from millrace.models.common.bounded_files import YAML_BYTES, bounded_text, bounded_yaml
from millrace.models.common.errors import InputError, missing_file, nearest
from millrace.models.common.printable import redact
from millrace.models.config.model_kind import all_families
from millrace.models.config.pipeline import NAME, Pipeline

SET = "--set"

Location = tuple[str | int, ...]


class _Loader(yaml.CSafeLoader):
    """YAML's safe loader, but a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} occurs twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_pipeline(path: Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file.

    Args:
        path: the YAML file; relative paths in it start from its folder.
        overrides: values of `--set`, each `a.b=value` with the value in YAML.

    Raises:
        InputError: the file does not exist, is not YAML, or is not valid; the message lists every
            problem.
    """
    text = _read_text(path)
    values = _parse_yaml(text, path)
    lines = _find_lines(text)
    for override in overrides:
        key = _apply_override(values, override)
        lines = {each: line for each, line in lines.items() if each[: len(key)] != key}
        lines[key] = f"{SET} {'.'.join(map(str, key))}"
    try:
        pipeline = Pipeline.model_validate(values)
    except ValidationError as error:
        raise _invalid_error(path, error, lines) from error
    _require_known_family(pipeline.model.family, path, lines)
    _require_possible_goal(pipeline, path, lines)
    return pipeline.with_folder(path.resolve().parent)


def resolved_yaml(pipeline: Pipeline) -> str:
    """Return the pipeline as YAML, with all defaults, and without passwords in addresses.

    The text is stored in the registry, which others may read.
    """
    values = _redact_values(pipeline.model_dump(mode="json"))
    return str(yaml.dump(values, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True))


def _redact_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _redact_values(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_redact_values(each) for each in value]
    return redact(value) if isinstance(value, str) else value


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of pipeline files, for editors."""
    return Pipeline.model_json_schema()


def _read_text(path: Path) -> str:
    try:
        return bounded_text(path, YAML_BYTES)
    except FileNotFoundError as error:
        raise missing_file(
            path.resolve(), "the pipeline file", endings=(".yaml", ".yml")
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"the pipeline file {path} cannot be read", seen=error) from error


def _parse_yaml(text: str, path: Path) -> dict[str, Any]:
    try:
        values = bounded_yaml(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(
            f"{path}{where}: this is not valid YAML",
            seen=" ".join(filter(None, (error.problem, error.context))),
            hint="fix that line; YAML is structured by indentation, with spaces",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path} is not valid YAML", seen=error) from error
    if not isinstance(values, dict):
        raise InputError(
            f"{path} holds no pipeline",
            seen="nothing" if values is None else type(values).__name__,
            valid="a mapping with name and dataset, and more as needed",
            hint="start from examples/digits.yaml",
        )
    return values


def _find_lines(text: str) -> dict[Location, str]:
    """Return `line N` for every key of a YAML text."""
    lines: dict[Location, str] = {}

    def walk(node: yaml.Node | None, parent: Location) -> None:
        if isinstance(node, yaml.MappingNode):
            children = [(key.value, key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = [(index, value, value) for index, value in enumerate(node.value)]
        else:
            return
        for name, marked, value in children:
            lines[(*parent, name)] = f"line {marked.start_mark.line + 1}"
            walk(value, (*parent, name))

    walk(yaml.compose(text, Loader=_Loader), ())
    return lines


def _apply_override(values: dict[str, Any], override: str) -> Location:
    """Set `a.b=value` in `values`, and return the location of the key."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(
            "a --set override is malformed",
            seen=override,
            valid="key=value or part.key=value",
            hint="e.g. --set training.epochs=5",
        )
    try:
        value = bounded_yaml(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError("the value of a --set override is not YAML", seen=override) from error
    inner = values
    for part in parts[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[parts[-1]] = value
    return tuple(parts)


def _invalid_error(path: Path, error: ValidationError, lines: dict[Location, str]) -> InputError:
    errors = [each for each in error.errors() if not _is_consequence(each, error.errors())]
    origins = [_find_origin(each["loc"], lines) for each in errors]
    listed = "".join(
        f"\n  {_describe_problem(*each)}" for each in zip(errors, origins, strict=True)
    )
    count = f"{len(errors)} problems" if len(errors) > 1 else "a problem"
    again = f" {SET} …" if any(SET in origin for origin in origins) else ""
    return InputError(
        f"{count} in {_name_sources(path, origins)}{listed}",
        hint=f"fix what is listed above; then run `millrace check {path}{again}`",
    )


def _is_consequence(problem: Any, others: Sequence[Any]) -> bool:
    """Return whether a list is too short only because items in it are wrong."""
    place = problem["loc"]
    within = (each["loc"] for each in others if len(each["loc"]) > len(place))
    return problem["type"] == "too_short" and any(each[: len(place)] == place for each in within)


def _name_sources(path: Path, origins: Sequence[str]) -> str:
    """Return where values of these origins have to be fixed: the file, `--set` or both."""
    overridden = [SET in origin for origin in origins]
    file = "" if all(overridden) else f"the pipeline file {path}"
    return " and ".join(filter(None, (file, SET if any(overridden) else "")))


def _find_origin(place: Location, lines: dict[Location, str]) -> str:
    """Return where a value comes from: its line, and any `--set` that changed a part of it."""
    above = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), "")
    within = [
        line
        for each, line in lines.items()
        if line.startswith(SET) and len(each) > len(place) and each[: len(place)] == place
    ]
    return " and ".join(filter(None, (above, *within)))


def _describe_problem(error: Any, origin: str) -> str:
    """Return a problem in one line: where, what, the value seen and the nearest valid name."""
    place: Location = error["loc"]
    dotted = ".".join(str(part) for part in place) or "the file"
    where = origin if origin.endswith(f" {dotted}") else ": ".join(filter(None, (origin, dotted)))
    return f"{where}: {_explain(error, place)}"


def _explain(error: Any, place: Location) -> str:
    kind, seen = error["type"], error["input"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        known = _known_keys(place[:-1])
        hint = nearest(str(place[-1]), known)
        return f"there is no such key; {hint or 'valid: ' + ', '.join(known)}"
    if kind == "string_pattern_mismatch" and place == ("name",):
        why = "; names with a dot are reserved for Millrace" if "." in str(seen) else ""
        return f"must be {NAME}; seen {seen!r}{why}; choose another name"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    message = message.replace("a valid tuple", "a list").replace("tuple", "list")  # in YAML's terms
    text = f"{message}; seen {seen!r}" if not isinstance(seen, dict) else message
    if kind == "literal_error" and isinstance(seen, str):
        expected = error["ctx"]["expected"].replace(" or ", ", ").split(", ")
        hint = nearest(seen, [word.strip("'") for word in expected])
        text += f"; {hint}" if hint else ""
    if kind == "string_type" and isinstance(seen, bool | int | float):
        text += "; put it in quotes"
    return text


def _known_keys(place: Location) -> list[str]:
    """Return the valid keys at a location of the pipeline file."""
    model: Any = Pipeline
    for part in place:
        field = getattr(model, "model_fields", {}).get(part)
        model = _find_model(field.annotation if field else None) or model
    return list(model.model_fields)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in an annotation such as `dict[str, ColumnSpec]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = getattr(annotation, "__args__", ())
    return next((model for argument in inner if (model := _find_model(argument))), None)


def _require_known_family(family: str, path: Path, lines: dict[Location, str]) -> None:
    families = all_families()
    if family in families or ":" in family:
        return
    origin = _find_origin(("model", "family"), lines)
    raise InputError(
        f"a problem in {_name_sources(path, [origin])}\n"
        f"  {origin + ': ' if origin else ''}model.family: there is no such family",
        seen=family,
        valid=f"{', '.join(families)}, or module:Class of your own",
        hint=nearest(family, families),
    )


def _require_possible_goal(pipeline: Pipeline, path: Path, lines: dict[Location, str]) -> None:
    """Raise InputError if no version of the pipeline could ever prove its goal."""
    goal, most = pipeline.serving.slo, pipeline.serving.max_batch_size
    if goal is None and pipeline.promotion.require.slo:
        raise _goal_error(
            *(path, lines, ("promotion", "require", "slo"), "there is no goal to prove"),
            seen="true, and no serving.slo",
            valid="serving.slo with the largest p99 and the requests per second",
        )
    if goal is not None and max(goal.rows) > most:
        raise _goal_error(
            *(path, lines, ("serving", "slo", "rows"), "the server takes no such request"),
            seen=f"{max(goal.rows)} rows",
            valid=f"at most serving.max_batch_size, {most}",
        )


def _goal_error(
    path: Path, lines: dict[Location, str], key: Location, what: str, *, seen: str, valid: str
) -> InputError:
    origin = _find_origin(key, lines)
    return InputError(
        f"a problem in {_name_sources(path, [origin])}\n"
        f"  {origin + ': ' if origin else ''}{'.'.join(map(str, key))}: {what}",
        seen=seen,
        valid=valid,
    )
