"""The columns of a model by their names, as the step in front of the served model reads them.

The step is `serving/triton/backends/named_columns`, which imports nothing of Millrace, so all that
it needs is in this JSON, beside the version's model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import ABSENT, TEXT, Encoding, Feature

ROWS = "rows"
"""Name of the input with rows of JSON, unless a column has this name."""
MOST_LISTED = 50
"""Categories that the description of a column lists."""


def columns_json(encoding: Encoding, key: Sequence[str] = ()) -> str:
    """Return the contents of `columns.json`.

    Args:
        encoding: the version's encoding.
        key: the columns that identify a row, which a request may have beside the features.
    """
    rules = encoding.rules()
    values = {
        "input": TEXT if encoding.tokenizer else encoding.input.name,
        "rows": rows_input([feature.name for feature in encoding.features]),
        "columns": [_column(feature) for feature in encoding.features],
        "key": [*key],
        "null_values": encoding.null_values,
        "rules": json.loads(rules) if rules else None,
        "labels": encoding.labels,
        "output": answers_of(encoding).output,
        "target": encoding.target,
    }
    return json.dumps(values)


def rows_input(names: list[str]) -> str:
    """Return the name of the input with rows of JSON: `rows`, with underscores if it is taken."""
    name = ROWS
    while name in names:
        name += "_"
    return name


def _column(feature: Feature) -> dict[str, Any]:
    named = asdict(feature)
    kept = ("name", "kind", "values", "categories", "nullable", "min", "max")
    width = 1 if feature.kind == TEXT else feature.width
    faults = {"missing": ABSENT, "unreadable": feature.unreadable}
    return {**{key: named[key] for key in kept}, "width": width, **faults}


def row_schema(columns: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of a row.

    Args:
        columns: `columns` of `columns.json`.
    """
    return {
        "type": "object",
        "properties": {column["name"]: _value_schema(column) for column in columns},
        "required": [column["name"] for column in columns],
    }


def _value_schema(column: Mapping[str, Any]) -> dict[str, Any]:
    schema = _plain_schema(column)
    if not column["nullable"]:
        return schema
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return {**schema, "type": [schema["type"], "null"]}


def _plain_schema(column: Mapping[str, Any]) -> dict[str, Any]:
    kind, categories = column["kind"], column["categories"]
    if kind == "vector":
        width = column["width"]
        items = {"type": "number", **_limits(column)}
        return {"type": "array", "items": items, "minItems": width, "maxItems": width}
    if kind == "category":
        types = {str: "string", bool: "boolean", int: "integer"}
        listed = {"enum": [*categories]} if len(categories) <= MOST_LISTED else {}
        return {"type": types[type(categories[0])], **listed}
    if kind == TEXT:
        return {"type": "string"}
    kind = {"float": "number", "int": "integer", "bool": "boolean"}[column["values"]]
    return {"type": kind, **_limits(column)}


def _limits(column: Mapping[str, Any]) -> dict[str, float]:
    named = {"minimum": column["min"], "maximum": column["max"]}
    return {name: limit for name, limit in named.items() if limit is not None}
