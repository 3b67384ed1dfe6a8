"""Before the commit: every row of the input is scored once or refused once, and none is missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError, WorkError
from millrace.models.data.row_checks import as_json
from millrace.models.data.schema import KEY
from millrace.serving.batch.input.input_pieces import Piece
from millrace.serving.batch.job import DEAD, ROW, RowNumbers

TWICE = "the key is that of an earlier row"
SHOWN = 3

NONE: RowNumbers = np.empty(0, np.int64)
_NO_KEYS = pa.schema([(ROW, pa.int64()), (KEY, pa.string())]).empty_table()


@dataclass(frozen=True)
class Settled:
    """What becomes of the rows of an input.

    Attributes:
        rows: rows of the input.
        scored: those that are in the output.
        dead: the others, of `DEAD`, in the order of the input.
        without: by data file, the `ROW`s in it that are left out of the output.
    """

    rows: int
    scored: int
    dead: pa.Table
    without: Mapping[str, RowNumbers]


def settle(
    pieces: Sequence[Piece],
    counted: Mapping[str, int],
    written: Mapping[str, pa.Table],
    refused: pa.Table,
    *,
    unique_keys: bool,
) -> Settled:
    """Decide what is committed, and check that nothing is lost or there twice.

    Of rows with one key the first in the input is kept.

    Args:
        pieces: of the input.
        counted: the rows of each, by its name, as they were read.
        written: `ROW` and `KEY` of each data file, by its path; a later one gives way where two
            have the same row.
        refused: of `DEAD`, each row once.
        unique_keys: whether two rows with the same key are a fault of the input.

    Raises:
        InputError: the input has no rows.
        WorkError: rows are missing, or there are more than the input has.
    """
    total = _total(pieces, counted)
    places = {path: table[ROW].to_numpy() for path, table in written.items()}
    taken, again = _taken(places)
    keys = pa.concat_tables([_NO_KEYS, *(table.select([ROW, KEY]) for table in written.values())])
    twins = _twins(keys) if unique_keys else DEAD.empty_table()
    twin_rows = twins[ROW].to_numpy()
    without = {
        path: np.union1d(again.get(path, NONE), np.intersect1d(rows, twin_rows))
        for path, rows in (places.items() if again or len(twin_rows) else ())
    }
    left = refused.filter(pa.array(~np.isin(refused[ROW].to_numpy(), taken)))
    dead = pa.concat_tables([left, twins]).sort_by(ROW)
    _check(pieces, counted, _sorted([taken, left[ROW].to_numpy()]), total)
    return Settled(
        total, total - len(dead), dead, {p: rows for p, rows in without.items() if len(rows)}
    )


def require_few(settled: Settled, most: float) -> None:
    """Return if few enough rows are dead.

    Args:
        settled: what becomes of the rows.
        most: share of the input's rows that may be.

    Raises:
        InputError: there are more.
    """
    dead = len(settled.dead)
    if dead > most * settled.rows:
        found = pc.value_counts(settled.dead["reason"]).to_pylist()
        ranked = sorted(found, key=lambda each: -each["counts"])
        told = "; ".join(f"{each['values']} ({each['counts']:,})" for each in ranked[:SHOWN])
        others = sum(each["counts"] for each in ranked[SHOWN:])
        told += f"; of other reasons ({others:,})" if others else ""
        raise InputError(
            f"{dead:,} of {settled.rows:,} rows cannot be scored; nothing was committed",
            seen=told,
            valid=f"at most {most:.2%} of the rows, batch.max_dead_letters",
            hint="mend the rows, or raise batch.max_dead_letters",
        )


def _total(pieces: Sequence[Piece], counted: Mapping[str, int]) -> int:
    unread = [piece.name for piece in pieces if piece.name not in counted]
    short = [p.name for p in pieces if p.rows is not None and counted.get(p.name) != p.rows]
    if unread or short:
        raise WorkError(
            "the input was not read to its end; nothing was committed",
            seen=f"{len(unread)} of {len(pieces)} pieces unread, {len(short)} of another length",
            hint="run it again",
        )
    total = sum(counted[piece.name] for piece in pieces)
    if not total:
        raise InputError("the input of the batch job has no rows", hint="check --input")
    return total


def _taken(places: Mapping[str, RowNumbers]) -> tuple[RowNumbers, dict[str, RowNumbers]]:
    """Return the rows of all files, sorted, and by file those that an earlier file has as well."""
    rows = _sorted(places.values())
    if (np.diff(rows) != 0).all():  # as it should be
        return rows, {}
    seen = NONE
    found: dict[str, RowNumbers] = {}
    for path, each in places.items():
        found[path] = np.intersect1d(each, seen)
        seen = np.union1d(seen, each)
    return seen, found


def _sorted(parts: Iterable[RowNumbers]) -> RowNumbers:
    """Return rows in order; what is sorted in runs, as rows of files are, is quickly merged."""
    return np.sort(np.concatenate([NONE, *parts]), kind="stable")


def _twins(keys: pa.Table) -> pa.Table:
    """Return of rows with one key all but the first, of `DEAD`."""
    if len(pc.unique(keys[KEY])) == len(keys):  # as it should be
        return DEAD.empty_table()
    groups = keys.group_by(KEY).aggregate([(ROW, "min"), (ROW, "count")])
    shared = groups.filter(pc.greater(groups[f"{ROW}_count"], 1))
    if not len(shared):
        return DEAD.empty_table()
    firsts = shared[f"{ROW}_min"]
    same = keys.filter(pc.is_in(keys[KEY], shared[KEY].combine_chunks()))
    rest = same.filter(pc.invert(pc.is_in(same[ROW], firsts.combine_chunks())))
    count = len(rest)
    row = pa.array([as_json({KEY: key}) for key in rest[KEY].to_pylist()], pa.string())
    return pa.table([rest[ROW], rest[KEY], pa.repeat(TWICE, count), row], schema=DEAD)


def _check(
    pieces: Sequence[Piece], counted: Mapping[str, int], found: RowNumbers, total: int
) -> None:
    """Raise unless the sorted rows are exactly those of the pieces."""
    wrong = len(found) != total
    for piece in pieces:
        low, high = np.searchsorted(found, [piece.row, piece.row + counted[piece.name]])
        part = found[low:high]
        wrong |= len(part) != counted[piece.name] or bool((np.diff(part) != 1).any())
    if wrong:
        raise WorkError(
            "rows in and rows out do not agree; nothing was committed",
            seen=f"{total:,} in the input, {len(found):,} scored or refused",
            hint="run it again; if it stays so, it is a fault of Millrace",
        )


def without_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    """Return a table without rows.

    Args:
        table: with a column `ROW`.
        rows: int64, sorted.
    """
    return table.filter(pa.array(~np.isin(table[ROW].to_numpy(), rows)))
