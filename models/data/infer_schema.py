"""Decides each column's type: the declared one, else the newest snapshot's, else an inferred one.

Inference reads the first rows only. Whole numbers become int, fractions become float, text becomes
category and booleans become bool. A target of text, whole numbers or booleans is a category
(classification). A target of fractions is a float (regression), and so is a target of many
different whole numbers with few rows each. `dataset.task` overrides the inferred type of the
target. Text columns of a language model stay text.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import TEXTS, ColumnSpec, ColumnType, DatasetSpec
from millrace.models.data.column_sample import (
    find_missing_words,
    has_chats,
    is_bool_text,
    is_date,
    is_open_text,
    leading_zero,
    sample_column,
    seen_type,
    vector_width,
    without_null_values,
)
from millrace.models.data.schema import RESERVED, Category, Column, TableSchema, ValueType
from millrace.models.data.sources.source import require_columns

log = logging.getLogger("millrace")

MAX_CATEGORIES = 1000
FEW_CLASSES = 20
"""Up to this many different whole numbers are classes, however few rows each has."""
ROWS_OF_A_CLASS = 20
"""More than `FEW_CLASSES` numbers are measurements if each has fewer rows than this on average."""
NUMBERED_SHARE = 0.9
"""More than `FEW_CLASSES` numbers are classes only if they are nearly consecutive: they start at 0
or 1, and at least this share of the numbers up to the largest occurs.
"""
TYPES_OF_TASK: dict[str, tuple[ColumnType, ...]] = {
    "classification": ("category",),
    "regression": ("float", "int"),
}
"""Column types of the target for each task, the default first."""


@dataclass(frozen=True)
class Role:
    """What a column is used for, which decides how its values are read.

    Attributes:
        target: whether the column is the target.
        feature: whether the column is a feature.
        key: whether the column is a part of the key.
        continued: whether the target of the dataset is text that a language model continues.
    """

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
    """Return the schema that every row must fit.

    Args:
        spec: the pipeline file's `dataset` part.
        names: every column of the source.
        sample: the source's first rows.
        stored: schema of the table's newest snapshot; None if there is none.

    Raises:
        InputError: a column does not exist, cannot be used, or has a type that cannot be inferred.
    """
    require_columns(spec, names)
    sample = [without_null_values(batch, spec.null_values) for batch in sample]
    features, dates = _split_dates(spec, feature_names(spec, names), sample, stored)
    kept = dict.fromkeys((*spec.key, *features, spec.target, *spec.columns, *dates))
    columns = tuple(
        _date_column(name, spec)
        if name in dates
        else _resolve_column(name, spec, features, sample, stored)
        for name in kept
    )
    return TableSchema(columns, spec.key, spec.target, features, spec.null_values)


def _split_dates(
    spec: DatasetSpec,
    features: tuple[str, ...],
    sample: Sequence[pa.RecordBatch],
    stored: TableSchema | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the features into columns to learn from, and dates or plain text that are only stored.

    Raises:
        InputError: `dataset.features` lists a date, or no feature is left.
    """
    dates = tuple(
        name
        for name in features
        if spec.column(name).declared_type is None
        and (
            is_date(sample_column(name, sample))
            or (not spec.features and _is_stored_text(name, stored))
        )
    )
    left = tuple(name for name in features if name not in dates)
    if dates and spec.features is not None:
        raise InputError(
            f"column {dates[0]!r} holds dates, which cannot be features yet",
            valid="float, int, bool, category, vector",
            hint="add columns with numbers made from the dates, e.g. the month, the weekday or the "
            f"number of days since a fixed day; and leave {dates[0]!r} out of dataset.features",
        )
    if not left and features:
        raise InputError(
            f"no column of {spec.source} is left to learn from, because dates and plain text are "
            "not features",
            seen=", ".join(dates),
            hint="add columns with numbers made from the dates, e.g. the number of days since a "
            "fixed day",
        )
    return left, dates


def _is_stored_text(name: str, stored: TableSchema | None) -> bool:
    """Return whether the table stores the column as text that is not a feature."""
    column = stored.find(name) if stored else None
    return column is not None and column.type == "string"


def _date_column(name: str, spec: DatasetSpec) -> Column:
    """Return a column for dates: stored as text, nullable because it is not a feature."""
    column = Column(name, "string", nullable=True)
    _require_fitting_limits(column, spec.column(name))
    return column


def feature_names(spec: DatasetSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to learn from, by default all but the key, the target and plain text.

    Raises:
        InputError: the target is also a feature or a key, no column is left, or a name is reserved.
    """
    reserved = [name for name in RESERVED if name in names]
    if reserved:
        raise InputError(
            f"{spec.source} has a column with a name that is reserved for Millrace",
            seen=", ".join(reserved),
            hint="rename the column",
        )
    if spec.features is None:
        plain_text = [name for name, column in spec.columns.items() if column.type == "string"]
        left_out = {*spec.key, spec.target, *plain_text}
        features = tuple(name for name in names if name not in left_out)
    else:
        features = tuple(dict.fromkeys(spec.features))
    if spec.target in (*features, *spec.key):
        raise InputError(
            "the column in dataset.target is also among the features or the key",
            seen=spec.target,
            hint="remove the target from dataset.features and dataset.key",
        )
    if not features and spec.features != ():
        raise InputError(
            f"no column of {spec.source} is left to learn from",
            seen=", ".join(names),
            hint="name at least one column in dataset.features",
        )
    return features


def _resolve_column(
    name: str,
    spec: DatasetSpec,
    features: tuple[str, ...],
    sample: Sequence[pa.RecordBatch],
    stored: TableSchema | None,
) -> Column:
    declared = _read_declaration(name, spec)
    role = Role(name == spec.target, name in features, name in spec.key, spec.continued)
    column = _find_stored(name, declared, stored) or _infer_column(name, declared, role, sample)
    _require_usable(column, role)
    _require_fitting_limits(column, declared)
    return replace(
        column,
        min=declared.min,
        max=declared.max,
        nullable=declared.nullable and not role.target and not role.key,
        categories=_sort_categories(declared.categories, column.values),
    )


def _read_declaration(name: str, spec: DatasetSpec) -> ColumnSpec:
    """Return a column's declaration; `dataset.task` sets the type of an undeclared target.

    Raises:
        InputError: the declared type contradicts `dataset.task`.
    """
    declared = spec.column(name)
    if name != spec.target or spec.task is None:
        return declared
    types, type_ = TYPES_OF_TASK[spec.task], declared.declared_type
    if type_ is None:
        return declared.model_copy(update={"type": types[0]})
    if type_ not in types:
        raise InputError(
            f"dataset.task and the type of the target {name!r} contradict each other",
            seen=f"task: {spec.task}, type: {type_}",
            valid=f"task: {spec.task}, type: {' or '.join(types)}",
            hint=f"remove dataset.task, or the type of {name!r} in dataset.columns",
        )
    return declared


def _sort_categories(
    categories: Sequence[Category] | None, values: ValueType
) -> tuple[Category, ...] | None:
    if categories is None:
        return None
    same_type = map(str, categories) if values == "string" else categories
    return tuple(sorted(set(same_type)))


def _find_stored(name: str, declared: ColumnSpec, stored: TableSchema | None) -> Column | None:
    """Return the stored column; None if there is none, or if the declaration contradicts it."""
    column = stored.find(name) if stored else None
    if column is None or declared.declared_type not in (None, column.type):
        return None
    if declared.categories is not None and _value_type(declared.categories) != column.values:
        return None
    return column


def _infer_column(
    name: str, declared: ColumnSpec, role: Role, sample: Sequence[pa.RecordBatch]
) -> Column:
    type_ = declared.declared_type
    if declared.categories is not None and type_ == "category":
        return Column(name, "category", values=_value_type(declared.categories))
    if type_ is None and role.target and role.continued and has_chats(name, sample):
        type_ = "messages"
    if type_ is None and role.key and not role.feature and is_open_text(name, sample):
        type_ = "string"  # as numbers, the keys 007 and 7 would be one
    if type_ is not None and type_ in TEXTS:
        return Column(name, type_)
    return _infer_from_values(name, type_, role, sample)


def _infer_from_values(
    name: str, type_: ColumnType | None, role: Role, sample: Sequence[pa.RecordBatch]
) -> Column:
    """Infer a column from its first values; `type_` is None if the type is not declared."""
    array = sample_column(name, sample)
    seen = seen_type(array)
    if seen == "string" and not role.target and type_ is None and is_bool_text(name, sample, array):
        seen = "bool"
    if seen is None and type_ in (None, "category", "vector"):
        raise InputError(
            f"the first rows hold no value in column {name!r}, so its type cannot be inferred",
            hint=f"declare it in dataset.columns, e.g. {{{name}: {{type: float}}}}; or leave it "
            "out of dataset.features",
        )
    if type_ is None and role.target and not role.continued and seen == "int":
        type_ = _type_of_whole_numbers(name, array)
    if type_ is None:
        type_ = _type_in_role(seen or "float", role)
        _warn_of_zeros(name, type_, sample)
    if type_ == "category":
        _warn_of_missing_words(name, array)
        return Column(name, "category", values=_category_values(name, seen))
    if type_ == "vector":
        return Column(name, "vector", width=vector_width(name, array))
    return Column(name, type_)


def _warn_of_zeros(name: str, type_: ColumnType, sample: Sequence[pa.RecordBatch]) -> None:
    if type_ in ("int", "float") and (zero := leading_zero(name, sample)):
        log.warning(
            "%s is read as numbers, without the zeros at the beginning of values such as %s; if "
            "these are codes, declare in dataset.columns: {%s: {type: category}}",
            *(name, zero, name),
        )


def _warn_of_missing_words(name: str, array: pa.Array) -> None:
    if words := find_missing_words(array):
        cells = ", ".join(f"{word!r} ({counted(n, 'cell')})" for word, n in words.items())
        log.warning(
            "column %s has a category that looks like a missing value in the first rows: %s; to "
            "read it as null, add it to dataset.null_values",
            *(name, cells),
        )


def _type_of_whole_numbers(name: str, array: pa.Array) -> ColumnType:
    """Return the type of a target of whole numbers; log the choice where it is not obvious."""
    numbers = array.drop_null().unique().to_pylist()
    rows = len(array) - array.null_count
    facts = f"{name} holds {len(numbers):,} different whole numbers in {rows:,} rows"
    if is_measured(numbers, rows):
        log.info(
            "%s, so it is predicted as a number (regression); set dataset.task: classification to "
            "make each number a class",
            facts,
        )
        return "float"
    if len(numbers) > FEW_CLASSES:
        log.warning(
            "%s, so each number is a class of its own (classification); set dataset.task: "
            "regression to predict a number",
            facts,
        )
    return "category"


def is_measured(numbers: Collection[int], rows: int) -> bool:
    """Return whether whole numbers are measurements rather than class numbers.

    Args:
        numbers: the different whole numbers.
        rows: number of rows that have a value.
    """
    distinct = len(numbers)
    if distinct <= FEW_CLASSES or distinct > MAX_CATEGORIES:
        return distinct > FEW_CLASSES
    is_numbered = min(numbers) in (0, 1) and distinct >= NUMBERED_SHARE * max(numbers)
    return distinct > rows / ROWS_OF_A_CLASS or not is_numbered


def _type_in_role(seen: str, role: Role) -> ColumnType:
    """Return the column type for a type that was seen in the data and the column's role."""
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
        "vector": "vector",
    }
    return types.get(seen, "string")


def _require_usable(column: Column, role: Role) -> None:
    if role.target and role.continued and column.type not in TEXTS:
        raise InputError(
            f"the target {column.name!r} holds a {column.type}, which cannot train a language "
            "model",
            valid=", ".join(TEXTS),
            hint="choose another dataset.target, or declare it in dataset.columns as {type: text}",
        )
    if role.target and column.type in ("vector", "string", "bool"):
        raise InputError(
            f"the target {column.name!r} cannot be predicted: it holds a {column.type}",
            valid="text or whole numbers, for classes; numbers, for regression",
            hint="choose another dataset.target, or declare it as a category in dataset.columns",
        )
    if role.feature and column.type in ("string", "messages"):
        raise InputError(
            f"column {column.name!r} is plain text, or of a type that cannot be a feature",
            valid="float, int, bool, category, vector, text",
            hint=f"list the features in dataset.features, without {column.name!r}; or, if it holds "
            "text, declare its type as category or text in dataset.columns",
        )


def _require_fitting_limits(column: Column, declared: ColumnSpec) -> None:
    """Refuse a declaration that no row could fit, or that would be ignored."""
    low, high = declared.min, declared.max
    if (low is not None or high is not None) and not column.numeric:
        problem = f"min and max are for numbers, but the column is a {column.type}"
    elif low is not None and high is not None and low > high:
        problem = f"min {low:g} is above max {high:g}"
    elif column.type in TEXTS and declared.nullable:
        problem = "a text cannot be nullable, because there is nothing to learn from a missing text"
    elif declared.categories is not None and column.type != "category":
        problem = f"categories are for the type category, but the column is a {column.type}"
    else:
        return
    raise InputError(
        f"the declaration dataset.columns.{column.name} is not possible: {problem}",
        seen=declared.model_dump_json(exclude_none=True),
        hint="fix the declaration, or leave it out",
    )


def _value_type(categories: Sequence[Category]) -> ValueType:
    if all(isinstance(value, bool) for value in categories):
        return "bool"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in categories):
        return "int"
    return "string"


def _category_values(name: str, seen: str | None) -> ValueType:
    """Return the type of a category's values from the type that was seen in the data."""
    values: dict[str | None, ValueType] = {"int": "int", "bool": "bool", "string": "string"}
    if seen not in values:
        raise InputError(
            f"column {name!r} cannot be a category, because of the type of its values",
            seen=f"values of the type {seen}",
            valid="text, whole numbers or booleans",
            hint=f"declare {name!r} as float in dataset.columns",
        )
    return values[seen]
