"""Which type each column is held to: declared, else stored with the table, else inferred.

Inference looks at the first rows only. Whole numbers and fractions become int and float, text and
truth values become category and bool; a target of text, whole numbers or truth values is a
category (classification), one of fractions a float (regression), and so is one of many whole
numbers with few rows each; `dataset.task` decides otherwise. Where there is a text to continue,
text stays text.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import TEXTS, ColumnSpec, ColumnType, DatasetSpec
from millrace.models.data.coerce import NULL_WORDS, mask, plain
from millrace.models.data.messages import is_list_of_structs
from millrace.models.data.sample import NUMBER_SHARE, sampled, seen_type, vector_width
from millrace.models.data.schema import RESERVED, Category, Column, TableSchema, ValueType
from millrace.models.data.sources.source import TEXT, require_columns

log = logging.getLogger("millrace")

MAX_CATEGORIES = 1000
FEW_CLASSES = 20
"""So many whole numbers, or fewer, are classes, however few rows each has."""
ROWS_OF_A_CLASS = 20
"""Fewer rows than these for each of more numbers than that are measurements, not classes."""
NUMBERED_SHARE = 0.9
"""More numbers than that are classes where so many of those from 0, or 1, to the largest occur."""
TYPES_OF_TASK: dict[str, tuple[ColumnType, ...]] = {
    "classification": ("category",),
    "regression": ("float", "int"),
}
"""Types of a target, the one that it has by itself first."""
MAX_DESCRIBED = 30

_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)? ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)?"
_DATE = rf"^{_DAY}([T ]{_TIME})?$"


@dataclass(frozen=True)
class Role:
    """What a column is for; decides how its values are read."""

    target: bool = False
    feature: bool = False
    key: bool = False
    continued: bool = False


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
    features, dates = _without_dates(spec, feature_names(spec, names), sample, stored)
    kept = dict.fromkeys((*spec.key, *features, spec.target, *spec.columns, *dates))
    columns = tuple(
        _date_column(name, spec)
        if name in dates
        else _resolve_column(name, spec, features, sample, stored)
        for name in kept
    )
    return TableSchema(columns, spec.key, spec.target, features)


def describe(schema: TableSchema) -> str:
    """Return in one line what is learnt from, what is only kept, and what is predicted.

    Args:
        schema: a snapshot's, with its categories filled in.
    """
    target = f"target {_worded(schema.column(schema.target))}"
    learnt = _listed([_worded(schema.column(name)) for name in schema.features])
    used = {*schema.features, schema.target}
    kept = [column.name for column in schema.columns if column.name not in used]
    parts = [learnt, f"kept, not learnt from: {_listed(kept)}" if kept else "", target]
    return "; ".join(part for part in parts if part)


def _worded(column: Column) -> str:
    size = len(column.categories or ()) if column.type == "category" else column.width
    return f"{column.name} {column.type}" + (f" of {size}" if size else "")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MAX_DESCRIBED
    return ", ".join(words[:MAX_DESCRIBED]) + (f", … {more} more" if more > 0 else "")


def _without_dates(
    spec: DatasetSpec,
    features: tuple[str, ...],
    sample: Sequence[pa.RecordBatch],
    stored: TableSchema | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Part the features into those to learn from and dates, which are only kept.

    Raises:
        InputError: a date is listed in `dataset.features`, or nothing else is left.
    """
    dates = tuple(
        name
        for name in features
        if _declared_type(spec.columns.get(name, ColumnSpec())) is None
        and (_is_date(sampled(name, sample)) or (not spec.features and _held_text(name, stored)))
    )
    left = tuple(name for name in features if name not in dates)
    if dates and spec.features is not None:
        raise InputError(
            f"column {dates[0]!r} holds dates, and a date is not a feature yet",
            valid="float, int, bool, category, vector",
            hint="derive numbers from it in the data, e.g. days since a day, the month or the "
            f"weekday; and leave {dates[0]!r} out of dataset.features",
        )
    if not left and features:
        raise InputError(
            f"no column of {spec.source} is left to learn from: dates and plain text are not "
            "features",
            seen=", ".join(dates),
            hint="derive numbers from them in the data, e.g. days since a day",
        )
    return left, dates


def _held_text(name: str, stored: TableSchema | None) -> bool:
    """Whether the table keeps the column as text that is not learnt from."""
    return (
        stored is not None and name in stored.arrow.names and stored.column(name).type == "string"
    )


def _is_date(array: pa.Array) -> bool:
    """Whether nearly all cells are dates or timestamps, as such or as ISO text."""
    if seen_type(array) is None:
        return False
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        return True
    return pa.types.is_string(array.type) and _mostly(array, _DATE)


def _mostly(text: pa.Array, pattern: str) -> bool:
    """Whether nearly all cells of a text column, nulls left out, match a pattern."""
    words = pc.utf8_trim_whitespace(text.drop_null())
    words = words.filter(pc.invert(pc.is_in(words, pa.array(NULL_WORDS))))
    matching = np.count_nonzero(mask(pc.match_substring_regex(words, pattern)))
    return matching > 0 and bool(matching >= NUMBER_SHARE * len(words))


def _date_column(name: str, spec: DatasetSpec) -> Column:
    """Return a date's column: text, in which a gap hurts nobody, for nothing learns from it."""
    declared = spec.columns.get(name, ColumnSpec())
    column = Column(name, "string", nullable=True)
    _require_fitting_limits(column, declared)
    return column


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
    if not features and spec.features != ():
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
    declared = _declared(name, spec)
    role = Role(name == spec.target, name in features, name in spec.key, spec.continued)
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


def _declared(name: str, spec: DatasetSpec) -> ColumnSpec:
    """Return a column's declaration, of the target with what `dataset.task` says.

    Raises:
        InputError: its declared type says something else.
    """
    declared = spec.columns.get(name, ColumnSpec())
    if name != spec.target or spec.task is None:
        return declared
    types, type_ = TYPES_OF_TASK[spec.task], _declared_type(declared)
    if type_ is None:
        return declared.model_copy(update={"type": types[0]})
    if type_ not in types:
        raise InputError(
            f"dataset.task and the type of the target {name!r} contradict each other",
            seen=f"task: {spec.task}, type: {type_}",
            valid=f"{spec.task} of a {' or '.join(types)}",
            hint="leave one of them out",
        )
    return declared


def is_measured(numbers: Collection[int], rows: int) -> bool:
    """Tell whether whole numbers are measurements rather than the numbers of classes.

    Args:
        numbers: the different ones.
        rows: that hold one.
    """
    distinct = len(numbers)
    if distinct <= FEW_CLASSES or distinct > MAX_CATEGORIES:
        return distinct > FEW_CLASSES
    is_numbered = min(numbers) in (0, 1) and distinct >= NUMBERED_SHARE * max(numbers)
    return distinct > rows / ROWS_OF_A_CLASS or not is_numbered


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
    if type_ is None and role.target and role.continued and _holds_chats(name, sample):
        type_ = "messages"
    if type_ is not None and type_ in TEXTS:
        return Column(name, type_)
    return _seen(name, type_, role, sample)


def _seen(
    name: str, type_: ColumnType | None, role: Role, sample: Sequence[pa.RecordBatch]
) -> Column:
    """Return the column as its first values have it; `type_` is the declared type, if one is."""
    array = sampled(name, sample)
    seen = seen_type(array)
    if seen == "string" and not role.target and type_ is None and _is_truth(name, sample, array):
        seen = "bool"
    if seen is None and type_ in (None, "category", "vector"):
        raise InputError(
            f"the first rows hold no value in column {name!r}, so its type cannot be told",
            hint=f"declare it in dataset.columns, or leave it out: {{{name}: {{type: float}}}}",
        )
    if type_ is None and role.target and not role.continued and seen == "int":
        type_ = _type_of_whole(name, array)
    if type_ is None:
        type_ = _type_for(seen or "float", role)
    if type_ == "category":
        return Column(name, "category", values=_values_of(name, seen))
    if type_ == "vector":
        return Column(name, "vector", width=vector_width(name, array))
    return Column(name, type_)


def _type_of_whole(name: str, array: pa.Array) -> ColumnType:
    """Return the type of a target of whole numbers, and say so where it could be another."""
    numbers = array.drop_null().unique().to_pylist()
    rows = len(array) - array.null_count
    held = f"{name} holds {len(numbers):,} different whole numbers in {rows:,} rows"
    if is_measured(numbers, rows):
        log.info(
            "%s, so it is learnt as a number (regression); dataset.task: classification makes a "
            "class of each",
            held,
        )
        return "float"
    if len(numbers) > FEW_CLASSES:
        log.warning(
            "%s, and each is a class of its own (classification); dataset.task: regression learns "
            "it as a number",
            held,
        )
    return "category"


def _holds_chats(name: str, sample: Sequence[pa.RecordBatch]) -> bool:
    kinds = [batch.schema.field(name).type for batch in sample if name in batch.schema.names]
    return any(is_list_of_structs(kind) for kind in kinds)


def _is_truth(name: str, sample: Sequence[pa.RecordBatch], array: pa.Array) -> bool:
    """Whether text whose type is still to be found out is nearly all true or false."""
    fields = [batch.schema.field(name) for batch in sample if name in batch.schema.names]
    found_out = any(
        field.metadata == TEXT or not pa.types.is_string(plain(pa.nulls(0, field.type)).type)
        for field in fields
        if not pa.types.is_null(field.type)
    )
    return found_out and _mostly(array, r"(?i)^(true|false)$")


def _declared_type(declared: ColumnSpec) -> ColumnType | None:
    if declared.type is None and declared.categories is not None:
        return "category"
    return declared.type


def _type_for(seen: str, role: Role) -> ColumnType:
    """Return the type that a column of the seen type is held to in its role."""
    if role.continued and (role.target or role.feature) and seen == "string":
        return "text"
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
    if role.target and role.continued and column.type not in TEXTS:
        raise InputError(
            f"the target {column.name!r} cannot be continued: it holds a {column.type}",
            valid=", ".join(TEXTS),
            hint="choose another dataset.target, or declare it in dataset.columns as {type: text}",
        )
    if role.target and column.type in ("vector", "string", "bool"):
        raise InputError(
            f"the target {column.name!r} cannot be predicted: it holds a {column.type}",
            valid="text or whole numbers (classes), or numbers",
            hint="choose another dataset.target, or declare it as a category in dataset.columns",
        )
    if role.feature and column.type in ("string", "messages"):
        raise InputError(
            f"column {column.name!r} is text or a type that cannot be learnt from",
            valid="float, int, bool, category, vector, text",
            hint=f"leave {column.name!r} out of dataset.features, declare it a category, or text",
        )


def _require_fitting_limits(column: Column, declared: ColumnSpec) -> None:
    """Refuse a declaration that would hold for no row, or be passed over in silence."""
    low, high = declared.min, declared.max
    if (low is not None or high is not None) and not column.numeric:
        problem = f"min and max are for numbers, and it is a {column.type}"
    elif low is not None and high is not None and low > high:
        problem = f"min {low:g} is above max {high:g}"
    elif column.type in TEXTS and declared.nullable:
        problem = "there is nothing to learn from a text that is missing, so it cannot be nullable"
    elif declared.categories is not None and column.type != "category":
        problem = f"categories are for the type category, and it is a {column.type}"
    else:
        return
    raise InputError(
        f"dataset.columns.{column.name} does not fit: {problem}",
        seen=declared.model_dump_json(exclude_none=True),
        hint="mend the declaration, or leave it out",
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
