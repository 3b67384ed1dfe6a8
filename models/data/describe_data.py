"""Says in a few lines what rows hold: their columns by type, the key and the target."""

from collections.abc import Iterator, Mapping, Sequence

from millrace.models.common.counted import counted
from millrace.models.common.errors import list_names
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.schema import Category, Column, TableSchema

MOST_COLUMNS, MOST_VALUES = 8, 5
"""Columns of a type, and values of a column, that are named."""
MOST_CLASSES = 12
LONGEST = 30
"""Characters of a value that are shown."""
FAR = 10.0
"""Standard deviations from the mean beyond which a value is called an outlier."""
FEW_ROWS = 10
"""Rows below which a class is too small to be learnt and judged."""
CONSTANT = 0.9
"""Share of the largest class from which a constant answer looks good."""
ROLES: Mapping[str, tuple[str, ...]] = {
    "numbers": ("float", "int"),
    "categories": ("category", "bool", "string"),
    "vectors": ("vector",),
    "texts": ("text", "messages"),
}
"""The types of columns, as a line of each is called."""


def describe_data(schema: TableSchema, statistics: Mapping[str, ColumnStatistics]) -> Iterator[str]:
    """Yield lines such as `numbers: age 18 to 90, 2 nulls`.

    Args:
        schema: the columns and their roles.
        statistics: statistics of the good rows, by column; columns without any have their type.
    """
    features = [schema.column(name) for name in schema.features if name != schema.target]
    for role, types in ROLES.items():
        columns = [each for each in features if each.type in types]
        if columns:
            shown = [describe_column(each, statistics.get(each.name)) for each in columns]
            yield f"{role}: {list_names(shown, MOST_COLUMNS)}"
    used = {*schema.features, schema.target, *schema.key}
    if others := [f"{each.name} {each.type}" for each in schema.columns if each.name not in used]:
        yield f"stored, not learnt from: {list_names(others, MOST_COLUMNS)}"
    if schema.key:
        yield f"key: {', '.join(schema.key)}"
    else:
        yield "key: none, so a row is known by a hash of its values; see dataset.key"
    target = schema.column(schema.target)
    yield f"target: {_describe_target(target, statistics.get(target.name))}"


def describe_column(column: Column, found: ColumnStatistics | None) -> str:
    """Return a column's name with its type and range or values, and its nulls."""
    if found is None:
        return f"{column.name} {column.type}"
    parts = [_values_of(column, found)]
    if found.nulls:
        parts.append(counted(found.nulls, "null"))
    return f"{column.name} {'; '.join(part for part in parts if part)}".strip()


def _values_of(column: Column, found: ColumnStatistics) -> str:
    if column.type == "vector":
        return f"of {column.width}" + (f", {_range(found)}" if found.numbers else "")
    if found.numbers:
        return f"{column.type} {_range(found)}{_outliers(found)}"
    if found.counts is not None:
        return f"({_counted_values(found.counts, MOST_VALUES)})"
    return "" if column.type in ("text", "messages") else column.type


def _range(found: ColumnStatistics) -> str:
    assert found.numbers
    return f"{_number(found.numbers.min)} to {_number(found.numbers.max)}"


def _outliers(found: ColumnStatistics) -> str:
    """Return a warning if the largest or the smallest number is far from all others."""
    assert found.numbers
    numbers, spread = found.numbers, FAR * found.numbers.std
    if not spread:
        return ", constant" if numbers.count > 1 else ""
    far = max(numbers.max - numbers.mean, numbers.mean - numbers.min)
    return f", outliers: the mean is {_number(numbers.mean)}" if far > spread else ""


def _counted_values(counts: Sequence[tuple[Category, int]], most: int) -> str:
    """Return the most frequent values with their numbers, and how many others there are."""
    ordered = sorted(counts, key=lambda each: -each[1])
    shown = [f"{_short(value)} {count:,}" for value, count in ordered]
    return list_names(shown, most)


def _describe_target(column: Column, found: ColumnStatistics | None) -> str:
    if column.type in ("text", "messages"):
        return f"{column.name}, {column.type} to continue"
    if found is None:
        return f"{column.name} {column.type}"
    nulls = f"; {counted(found.nulls, 'null')}" if found.nulls else ""
    if found.numbers and column.type != "category":
        numbers = found.numbers
        spread = f"mean {_number(numbers.mean)}, standard deviation {_number(numbers.std)}"
        return f"{column.name}, a number: {_range(found)}, {spread}{_outliers(found)}{nulls}"
    counts = sorted(found.counts or (), key=lambda each: -each[1])
    total = sum(count for _, count in counts) or 1
    shown = [f"{_short(value)} {100 * count / total:.3g}%" for value, count in counts]
    words = f"{column.name}, {len(counts):,} classes: {list_names(shown, MOST_CLASSES)}{nulls}"
    if counts and counts[0][1] >= CONSTANT * total:
        words += f"; unbalanced: always {_short(counts[0][0])} is right as often"
    if few := [_short(value) for value, count in counts if count < FEW_ROWS]:
        words += f"; fewer than {FEW_ROWS} rows: {list_names(few, MOST_VALUES)}"
    return words


def _short(value: Category) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _number(value: float) -> str:
    """Return a number with four digits, and whole ones with all of them."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"
