"""Which type each column is held to: declared, else stored with the table, else inferred.

Inference looks at the first rows only. Whole numbers and fractions become int and float, text and
truth values become category and bool; a target of text, whole numbers or truth values is a
category (classification), one of fractions a float (regression).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from models.columns import RESERVED, Category, Column, TableSchema, ValueType
from models.errors import InputError
from models.pipeline import ColumnSpec, ColumnType, DatasetSpec
from models.sample import sampled, seen_type, vector_width
from models.source import require_columns

MAX_CATEGORIES = 1000


@dataclass(frozen=True)
class Role:
    """What a column is for; decides how its values are read."""

    target: bool = False
    feature: bool = False
    key: bool = False


def resolve_schema(
    spec: DatasetSpec,
    names: Sequence[str],
    sample: Sequence[pa.RecordBatch],
    stored: TableSchema | None = None,
) -> TableSchema:
    """Return the schema that every row is held to.

    Args:
        spec: the pipeline file's `dataset` part.
        names: every column of the source.
        sample: the source's first rows.
        stored: schema of the table's newest snapshot.

    Raises:
        InputError: a column is not there, cannot be learnt from, or tells no type.
    """
    require_columns(spec, names)
    features = feature_names(spec, names)
    kept = dict.fromkeys((*spec.key, *features, spec.target, *spec.columns))
    columns = tuple(_resolve_column(name, spec, features, sample, stored) for name in kept)
    return TableSchema(columns, spec.key, spec.target, features)


def feature_names(spec: DatasetSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to learn from: the listed ones, or all that are left over.

    Raises:
        InputError: the target is among them or none is left, or a name is ours.
    """
    taken = [name for name in RESERVED if name in names]
    if taken:
        raise InputError(
            f"{spec.source} has a column with a name that Millrace keeps for itself",
            seen=", ".join(taken),
            hint="rename it",
        )
    if spec.features is None:
        left_out = {*spec.key, spec.target, *_plain_text(spec)}
        features = tuple(name for name in names if name not in left_out)
    else:
        features = tuple(dict.fromkeys(spec.features))
    if spec.target in (*features, *spec.key):
        raise InputError(
            "the target is among the features or the key",
            seen=spec.target,
            hint="take it out of dataset.features and dataset.key",
        )
    if not features:
        raise InputError(
            f"no column of {spec.source} is left to learn from",
            seen=", ".join(names),
            hint="name some in dataset.features",
        )
    return features


def _plain_text(spec: DatasetSpec) -> list[str]:
    return [name for name, column in spec.columns.items() if column.type == "string"]


def _resolve_column(
    name: str,
    spec: DatasetSpec,
    features: tuple[str, ...],
    sample: Sequence[pa.RecordBatch],
    stored: TableSchema | None,
) -> Column:
    declared = spec.columns.get(name, ColumnSpec())
    role = Role(name == spec.target, name in features, name in spec.key)
    held = _held(name, declared, stored)
    column = held or _inferred(name, declared, role, sample)
    _require_usable(column, role)
    _require_fitting_limits(column, declared)
    return replace(
        column,
        min=declared.min,
        max=declared.max,
        nullable=declared.nullable and not role.target and not role.key,
        categories=_sorted(declared.categories, column.values),
    )


def _sorted(
    categories: Sequence[Category] | None, values: ValueType
) -> tuple[Category, ...] | None:
    if categories is None:
        return None
    same_type = map(str, categories) if values == "string" else categories
    return tuple(sorted(set(same_type)))


def _held(name: str, declared: ColumnSpec, stored: TableSchema | None) -> Column | None:
    """Return the stored column unless the declaration now says something else."""
    if stored is None or name not in stored.arrow.names:
        return None
    column = stored.column(name)
    type_ = _declared_type(declared)
    if type_ not in (None, column.type):
        return None
    if declared.categories is not None and _value_type(declared.categories) != column.values:
        return None
    return column


def _inferred(
    name: str, declared: ColumnSpec, role: Role, sample: Sequence[pa.RecordBatch]
) -> Column:
    type_ = _declared_type(declared)
    if declared.categories is not None and type_ == "category":
        return Column(name, "category", values=_value_type(declared.categories))
    array = sampled(name, sample)
    seen = seen_type(array)
    if seen is None and type_ in (None, "category", "vector"):
        raise InputError(
            f"the first rows hold no value in column {name!r}, so its type cannot be told",
            hint=f"declare it in dataset.columns, or leave it out: {{{name}: {{type: float}}}}",
        )
    if type_ is None:
        type_ = _type_for(seen or "float", role)
    if type_ == "category":
        return Column(name, "category", values=_values_of(name, seen))
    if type_ == "vector":
        return Column(name, "vector", width=vector_width(name, array))
    return Column(name, type_)


def _declared_type(declared: ColumnSpec) -> ColumnType | None:
    if declared.type is None and declared.categories is not None:
        return "category"
    return declared.type


def _type_for(seen: str, role: Role) -> ColumnType:
    """Return the type that a column of the seen type is held to in its role."""
    if role.target and seen in ("int", "string", "bool"):
        return "category"
    if role.feature and seen == "string":
        return "category"
    types: dict[str, ColumnType] = {
        "float": "float",
        "int": "int",
        "bool": "bool",
        "string": "string",
        "vector": "vector",
    }
    return types.get(seen, "string")


def _require_usable(column: Column, role: Role) -> None:
    if role.target and column.type in ("vector", "string"):
        raise InputError(
            f"the target {column.name!r} cannot be predicted: it holds a {column.type}",
            valid="text or whole numbers (classes), or numbers",
            hint="choose another dataset.target, or declare its type in dataset.columns",
        )
    if role.feature and column.type == "string":
        raise InputError(
            f"column {column.name!r} is text or a type that cannot be learnt from",
            valid="float, int, bool, category, vector",
            hint=f"leave {column.name!r} out of dataset.features, or declare it as a category",
        )


def _require_fitting_limits(column: Column, declared: ColumnSpec) -> None:
    """Refuse a declaration that would hold for no row, or be passed over in silence."""
    low, high = declared.min, declared.max
    if (low is not None or high is not None) and not column.numeric:
        problem = f"min and max are for numbers, and it is a {column.type}"
    elif low is not None and high is not None and low > high:
        problem = f"min {low:g} is above max {high:g}"
    elif declared.categories is not None and column.type != "category":
        problem = f"categories are for the type category, and it is a {column.type}"
    else:
        return
    raise InputError(
        f"dataset.columns.{column.name} does not fit: {problem}",
        seen=declared.model_dump_json(exclude_none=True),
        hint="mend the declaration, or leave the limits out",
    )


def _value_type(categories: Sequence[Category]) -> ValueType:
    if all(isinstance(value, bool) for value in categories):
        return "bool"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in categories):
        return "int"
    return "string"


def _values_of(name: str, seen: str | None) -> ValueType:
    """Return the type of a category's values from what is seen."""
    values: dict[str | None, ValueType] = {"int": "int", "bool": "bool", "string": "string"}
    if seen not in values:
        raise InputError(
            f"column {name!r} cannot be a category",
            seen=seen,
            valid="text, whole numbers or truth values",
            hint=f"declare {name!r} as float in dataset.columns",
        )
    return values[seen]
