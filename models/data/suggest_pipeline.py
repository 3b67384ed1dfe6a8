"""Suggests a pipeline file for rows that nobody has described yet: a pure choice, in words."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError, nearest
from millrace.models.data.infer_schema import MAX_CATEGORIES
from millrace.models.data.seen_columns import SeenColumn, SeenRows

TARGET_NAMES = (
    *("target", "label", "labels", "class", "y", "outcome", "category", "species", "diagnosis"),
    *("churn", "churned", "survived", "default", "fraud", "is_fraud", "price", "rating", "quality"),
)
"""Names, in small letters, of columns that are usually predicted; the likeliest first."""
KEY_NAME = re.compile(
    r"(?i:(^|[_\W])(id|key|uuid|guid|code|number|no|nr)$|^(id|key|uuid|index)$)|[a-z]I[Dd]$"
)
"""Names of columns that identify a row."""
MOST_CATEGORIES = MAX_CATEGORIES
FEW = 50
"""Up to this many different texts are categories, however few rows each has."""
CATEGORY_ROWS = 2.0
"""More different texts are categories only if each has this many rows on average."""
MOST_NAME, FEWEST_NAMED = 40, 20
"""Most mean characters of the names of rows, and fewest rows that show that they differ."""
LONG_TEXT = 40.0
"""Mean number of characters from which a text is read as text, word by word."""
MOST_CANDIDATES = 6
EPOCHS = ((1_000, 100), (10_000, 50))
"""Passes over small tables: up to so many rows, so many passes; of larger ones the default."""


@dataclass(frozen=True)
class Suggestion:
    """What a pipeline file should say.

    Attributes:
        target: the column to predict.
        candidates: other columns that could be predicted, each in words.
        key: the column that identifies a row; None: none does.
        text: the only column to learn from, if that is a text; None for a table.
        columns: what to declare of columns, in YAML, by name, with the reason.
        features: the columns to learn from, if they must be named; None for all.
        left_out: columns that are not learnt from, with the reason.
        null_values: words that should be read as null beside the usual ones.
        max_quarantine: share of bad rows to accept; None for the default.
        epochs: passes over the data; None for the default.
    """

    target: SeenColumn
    candidates: tuple[str, ...]
    key: SeenColumn | None
    text: SeenColumn | None
    columns: dict[str, tuple[str, str]]
    features: tuple[str, ...] | None
    left_out: dict[str, str]
    null_values: tuple[str, ...]
    max_quarantine: float | None
    epochs: int | None


def suggest(seen: SeenRows, source: str, target: str | None = None) -> Suggestion:
    """Suggest what a pipeline file says of rows.

    Args:
        seen: the rows.
        source: their source, for errors.
        target: the column to predict; None to choose one.

    Raises:
        InputError: there is no such column, or none that can be predicted.
    """
    free = [each for each in seen.columns if each.name != target]
    key = next((each for each in free if _is_key(each)), None)
    if key is None and free[:1] and free[0] is seen.columns[0] and _names_rows(free[0]):
        key = free[0]
    possible = [each for each in seen.columns if each is not key and _can_be_target(each)]
    chosen = _choose_target(seen, possible, source, target)
    others = [each for each in seen.columns if each not in (chosen, key)]
    text = _only_text(others)
    left_out = dict(_left_out(others, text))
    learnt = [each for each in others if each.name not in left_out]
    if not learnt:
        raise InputError(
            f"no column of {source} is left to learn from",
            seen=", ".join(f"{name} ({why})" for name, why in left_out.items()),
            valid="columns with numbers, categories, true and false, or text",
        )
    words = dict.fromkeys(
        word for each in (*learnt, chosen) for word, _ in each.missing_words if each is not text
    )
    unusable = any(each.type in ("other", "empty") for each in others)
    share = (chosen.nulls + sum(n for _, n in chosen.missing_words)) / max(seen.rows, 1)
    return Suggestion(
        target=chosen,
        candidates=tuple(
            describe_target(each) for each in possible if each is not chosen and each is not text
        )[:MOST_CANDIDATES],
        key=key,
        text=text,
        columns=dict(_declared(others, learnt, text)),
        features=tuple(each.name for each in learnt) if unusable or text else None,
        left_out=left_out,
        null_values=tuple(words),
        max_quarantine=math.ceil(20 * share + 1) / 20 if share > 0.04 else None,
        epochs=next(
            (epochs for most, epochs in EPOCHS if seen.is_whole and seen.rows <= most), None
        ),
    )


def is_class(column: SeenColumn) -> bool:
    """Return whether a target is a class, as a run infers it."""
    return column.type in ("text", "bool") or (column.type == "int" and not column.is_measured)


def describe_target(column: SeenColumn) -> str:
    """Return what a column would be as a target, in words."""
    if is_class(column):
        return f"{column.name} ({column.distinct:,} classes)"
    return f"{column.name} (a number)"


def describe_values(column: SeenColumn) -> str:
    """Return the values of a column, in words."""
    if is_class(column):
        shown = ", ".join(f"{value} {count:,}" for value, count in column.frequent)
        more = ", …" if column.distinct > len(column.frequent) else ""
        return f"{column.distinct:,} classes: {shown}{more}"
    return f"a number with {column.distinct:,} different values"


def _choose_target(
    seen: SeenRows, possible: Sequence[SeenColumn], source: str, target: str | None
) -> SeenColumn:
    names = [each.name for each in possible]
    if target is not None:
        found = seen.find(target)
        if found is None or found not in possible:
            why = "cannot be predicted" if found else "is not there"
            raise InputError(
                f"the column {target!r} of {source} {why}",
                seen=_why_not(found) if found else target,
                valid=", ".join(names) or "no column of this source can be predicted",
                hint=nearest(target, names) or "name one of these with --target",
            )
        return found
    if not possible:
        raise InputError(
            f"{source} has no column that can be predicted",
            seen=", ".join(f"{each.name} ({_why_not(each)})" for each in seen.columns),
            valid="a column with classes or numbers",
        )
    by_name = {each.name.casefold(): each for each in reversed(possible)}
    named = next((by_name[name] for name in TARGET_NAMES if name in by_name), None)
    return named or possible[-1]


def _can_be_target(column: SeenColumn) -> bool:
    if column.distinct < 2 or column.nulls > column.rows / 2:
        return False
    if column.type in ("int", "float", "bool"):
        return True
    return column.type == "text" and _is_category(column)


def _why_not(column: SeenColumn) -> str:
    if column.type in ("date", "vector", "other", "empty"):
        return {"date": "dates", "vector": "lists", "other": "nested", "empty": "only nulls"}[
            column.type
        ]
    if column.nulls > column.rows / 2:
        return "mostly nulls"
    return "one value only" if column.distinct < 2 else f"{column.distinct:,} different texts"


def _is_key(column: SeenColumn) -> bool:
    named = KEY_NAME.search(column.name) is not None
    return named and column.is_unique and column.type in ("int", "text")


def _names_rows(column: SeenColumn) -> bool:
    """Return whether the first column names the rows: short texts that differ, or a count."""
    is_short = column.type == "text" and column.length <= MOST_NAME
    names = column.counts_rows or (is_short and column.is_unique)
    return names and column.rows >= FEWEST_NAMED


def _is_category(column: SeenColumn) -> bool:
    if column.distinct > MOST_CATEGORIES:
        return False
    return column.distinct <= FEW or column.rows / column.distinct >= CATEGORY_ROWS


def _only_text(others: Sequence[SeenColumn]) -> SeenColumn | None:
    """Return the column of long texts to learn from, if there is nothing else but a few labels."""
    texts = [each for each in others if each.type == "text" and not _is_category(each)]
    long = [each for each in texts if each.length >= LONG_TEXT and not each.nulls]
    numbers = [each for each in others if each.type in ("int", "float", "bool", "vector")]
    return long[0] if len(long) == 1 and not numbers else None


def _left_out(others: Sequence[SeenColumn], text: SeenColumn | None) -> Iterator[tuple[str, str]]:
    for each in others:
        if text is not None:
            if each is not text:
                yield each.name, "a classifier of texts reads the text alone"
        elif each.type == "date":
            yield each.name, "dates are stored; make numbers of them to learn from them"
        elif each.type in ("other", "empty"):
            yield each.name, _why_not(each)
        elif each.type == "text" and not _is_category(each):
            yield each.name, f"{each.distinct:,} different texts are stored, and not learnt from"


def _declared(
    others: Sequence[SeenColumn], learnt: Sequence[SeenColumn], text: SeenColumn | None
) -> Iterator[tuple[str, tuple[str, str]]]:
    for each in others:
        if each is text:
            yield each.name, ("{type: text}", f"about {each.length:.0f} characters each")
        elif each in learnt and (each.nulls or each.missing_words):
            nulls = each.nulls + sum(count for _, count in each.missing_words)
            yield each.name, ("{nullable: true}", counted(nulls, "null"))
        elif text is None and each.type == "text" and not _is_category(each):
            yield (
                each.name,
                ("{type: string}", f"{each.distinct:,} different texts: not learnt from"),
            )
