"""Which files of a source have other columns than the table, such as one that was renamed.

A row of a file that lacks a column has null there. If the column is nullable, nothing else shows
it. A column that only later files have is not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import commonpath, dirname, relpath
from typing import Any

from millrace.models.common.errors import list_names
from millrace.models.data.sources.source import FileColumns

MAX_NAMED = 5
"""Most files, and most columns of a file, that are named."""


@dataclass(frozen=True)
class LackedColumns:
    """How the columns of a file of the source differ from those of the table.

    Attributes:
        file: path of the file.
        columns: the columns that it lacks.
        others: columns that it has, and the table and the source's first file do not.
    """

    file: str
    columns: tuple[str, ...]
    others: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LackedColumns":
        """Build from the dictionary of its fields, after a trip through JSON."""
        return cls(values["file"], tuple(values["columns"]), tuple(values["others"]))


def find_lacked(
    files: Mapping[str, FileColumns], table: Sequence[str], *, reads_all: bool = False
) -> tuple[LackedColumns, ...]:
    """Return the files that lack columns, or have others.

    Args:
        files: the columns of each file, by its path.
        table: the columns of the table.
        reads_all: whether the table has all columns of the first file, and not only chosen ones;
            then files that only have others are returned too.
    """
    found, known = [], set(table)
    for path, has in files.items():
        names = set(has.names)
        lacks = tuple(name for name in table if name not in names)
        others = tuple(name for name in has.others if name not in known)
        if lacks or (others and reads_all):
            found.append(LackedColumns(path, lacks, others))
    return tuple(found)


def combine_lacked(parts: Iterable[Sequence[LackedColumns]]) -> tuple[LackedColumns, ...]:
    """Return the files of several parts, in order; a large file is in several parts."""
    files = {lacked.file: lacked for part in parts for lacked in part}
    return tuple(files[path] for path in sorted(files))


def explain_nulls(
    lacked: Sequence[LackedColumns], reasons: Iterable[str]
) -> tuple[LackedColumns, ...]:
    """Return the files that lack a column whose nulls made rows bad.

    Args:
        lacked: the files that lack columns.
        reasons: the reasons of bad rows.
    """
    bad = set(reasons)
    return tuple(each for each in lacked if not bad.isdisjoint(reasons_of([each])))


def reasons_of(lacked: Iterable[LackedColumns]) -> frozenset[str]:
    """Return the reasons that rows of such files are bad for, as `row_checks` gives them."""
    return frozenset(f"{name}: null" for each in lacked for name in each.columns)


def describe_lacked(lacked: Sequence[LackedColumns]) -> list[str]:
    """Return a line for each file, such as `b.csv has no column income; its rows have null there`.

    Or `b.csv has the column age, which the source's first file does not have; it is not read`.
    At most `MAX_NAMED` files have a line of their own.
    """
    lines = [_describe(each, name, "; its rows have null there") for each, name in _named(lacked)]
    more = len(lacked) - len(lines)
    return [*lines, *([f"{more:,} more files have other columns"] if more else [])]


def describe_cause(lacked: Sequence[LackedColumns]) -> str:
    """Return which files lack which columns, in one line."""
    lines = [_describe(each, name) for each, name in _named(lacked)]
    more = len(lacked) - len(lines)
    return "; ".join([*lines, *([f"{more:,} more files lack columns"] if more else [])])


def describe_remedy(lacked: Sequence[LackedColumns]) -> str:
    """Return what to do about files that lack columns."""
    columns = list(dict.fromkeys(name for each in lacked for name in each.columns))
    files = list_names([name for _, name in _named(lacked)], MAX_NAMED)
    word = "column" if len(columns) == 1 else "columns"
    more = f" and {len(lacked) - MAX_NAMED:,} more files" if len(lacked) > MAX_NAMED else ""
    return (
        f"name the {word} {list_names(columns, MAX_NAMED)} in {files}{more} as in the other files"
    )


def _named(lacked: Sequence[LackedColumns]) -> list[tuple[LackedColumns, str]]:
    """Return the first files with their names, without the folder that all share."""
    if not lacked:
        return []
    root = commonpath([dirname(each.file) for each in lacked])
    return [(each, relpath(each.file, root or ".")) for each in lacked[:MAX_NAMED]]


def _describe(lacked: LackedColumns, name: str, means: str = "") -> str:
    if not lacked.columns:
        one = len(lacked.others) == 1
        return (
            f"{name} has the {'column' if one else 'columns'} "
            f"{list_names(lacked.others, MAX_NAMED)}, which the source's first file does not have; "
            f"{'it is' if one else 'they are'} not read"
        )
    word = "column" if len(lacked.columns) == 1 else "columns"
    has = list_names(lacked.others, MAX_NAMED)
    instead = f" (it has {has}, which the table does not have)" if lacked.others else ""
    return f"{name} has no {word} {list_names(lacked.columns, MAX_NAMED)}{means}{instead}"
