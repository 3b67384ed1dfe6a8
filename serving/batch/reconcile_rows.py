"""Check before the commit that every row of the input was scored once or refused once.

The scored rows are read from the data files that the job has written. Files that a killed run left
incomplete are deleted first. Files with excluded rows are replaced by copies without these rows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from millrace.models.common.errors import InputError, WorkError
from millrace.models.data.row_checks import as_json
from millrace.models.data.schema import KEY
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.input_pieces import Piece
from millrace.serving.batch.job import DEAD, FILE_ROWS, ROW, TOKENS_IN, TOKENS_OUT, RowNumbers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.drift import Bins

DUPLICATE_KEY = "an earlier row has the same key"
SHOWN = 3
"""Number of reasons that an error names, unless one more is all that is left."""
EXAMPLES = 3
"""Number of rows that it names for each reason."""
CHECKED = (ROW, KEY, TOKENS_IN, TOKENS_OUT)
"""Columns that are read before the commit."""

NO_ROWS: RowNumbers = np.empty(0, np.int64)
_NO_KEYS = pa.schema([(ROW, pa.int64()), (KEY, pa.string())]).empty_table()


@dataclass(frozen=True)
class ReconciledRows:
    """Which rows of an input are committed, and which are not.

    Attributes:
        rows: number of rows of the input.
        scored: number of rows in the output.
        dead: the rows that are not in the output, with the columns of `DEAD`, in input order.
        excluded: the `ROW`s that are left out of the output, for each data file by its path.
    """

    rows: int
    scored: int
    dead: pa.Table
    excluded: Mapping[str, RowNumbers]


def remove_partial_files(partition: Partition, state: JobState) -> RowNumbers:
    """Delete the files that a killed run left incomplete.

    Returns:
        The `ROW`s of the complete files, sorted, each once.
    """
    filesystem, _ = partition.location
    complete = _complete_files(partition, state)
    for file in partition.files():
        if file.path not in complete:
            filesystem.delete_file(file.path)
    rows = [pq.read_table(f, columns=[ROW], filesystem=filesystem)[ROW] for f in complete]
    found: RowNumbers = np.concatenate([NO_ROWS, *(each.to_numpy() for each in rows)])
    return np.unique(found)


def read_data_files(
    partition: Partition, resumable: JobState | None, output: pa.Schema
) -> dict[str, pa.Table]:
    """Return row numbers, keys and tokens of each complete data file, by its path.

    Args:
        partition: where the job writes.
        resumable: the job state with the checkpoint; None: the job has no checkpoint, so all its
            files are complete.
        output: the schema of the job's output.
    """
    filesystem, _ = partition.location
    if resumable is None:
        files = [file.path for file in partition.files()]
    else:
        files = _complete_files(partition, resumable)
    names = [name for name in CHECKED if name in output.names]
    return {file: pq.read_table(file, columns=names, filesystem=filesystem) for file in files}


def reconcile_rows(
    pieces: Sequence[Piece],
    counted: Mapping[str, int],
    files: Mapping[str, pa.Table],
    refused: pa.Table,
    *,
    unique_keys: bool,
) -> ReconciledRows:
    """Decide which rows are committed, and check that no row is missing or counted twice.

    Args:
        pieces: the pieces of the input.
        counted: the number of rows read from each piece, by its name.
        files: `ROW` and `KEY` of each data file, by its path. If two files have the same row, the
            row of the first file is committed.
        refused: the refused rows, each once, with the columns of `DEAD`.
        unique_keys: whether keys must be unique. If so, only the first of several rows with one
            key is committed.

    Raises:
        InputError: the input has no rows.
        WorkError: rows are missing, or there are more rows than the input has.
    """
    total = _count_input(pieces, counted)
    rows_by_file = {path: table[ROW].to_numpy() for path, table in files.items()}
    scored, repeated = _find_repeated(rows_by_file)
    keys = pa.concat_tables([_NO_KEYS, *(table.select([ROW, KEY]) for table in files.values())])
    duplicates = _find_duplicates(keys) if unique_keys else DEAD.empty_table()
    duplicate_rows = duplicates[ROW].to_numpy()
    excluded = {
        path: np.union1d(repeated.get(path, NO_ROWS), np.intersect1d(rows, duplicate_rows))
        for path, rows in (rows_by_file.items() if repeated or len(duplicate_rows) else ())
    }
    left = refused.filter(pa.array(~np.isin(refused[ROW].to_numpy(), scored)))
    dead = pa.concat_tables([left, duplicates]).sort_by(ROW)
    _require_all(pieces, counted, _sort_rows([scored, left[ROW].to_numpy()]), total)
    excluded = {path: rows for path, rows in excluded.items() if len(rows)}
    return ReconciledRows(total, total - len(dead), dead, excluded)


def require_few_dead(reconciled: ReconciledRows, most: float) -> None:
    """Raise if too many rows are dead letters.

    Args:
        reconciled: the rows of the job.
        most: the largest share of the input's rows that may be dead.

    Raises:
        InputError: a larger share of the rows is dead.
    """
    dead = len(reconciled.dead)
    if dead > most * reconciled.rows:
        found = pc.value_counts(reconciled.dead["reason"]).to_pylist()
        counts = {each["values"]: each["counts"] for each in found}
        raise InputError(
            f"{dead:,} of {reconciled.rows:,} rows cannot be scored; nothing was committed",
            seen="; ".join(_describe_reasons(reconciled.dead, counts)),
            valid=f"at most {most:.2%} of the rows (batch.max_dead_letters)",
            hint="; ".join(_hints(counts)),
        )


def _describe_reasons(dead: pa.Table, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the commonest reasons, each with its number of rows and the first of them."""
    ranked = sorted(counts, key=lambda reason: -counts[reason])
    shown = ranked if len(ranked) <= SHOWN + 1 else ranked[:SHOWN]
    of_several = pc.max(dead[ROW]).as_py() >= FILE_ROWS
    for reason in shown:
        places = dead.filter(pc.equal(dead["reason"], reason))[ROW].slice(0, EXAMPLES).to_pylist()
        eg = "" if counts[reason] == len(places) else "e.g. "
        yield f"{reason} ({counts[reason]:,}, {eg}{_name_rows(places, of_several=of_several)})"
    if others := sum(counts[reason] for reason in ranked[len(shown) :]):
        yield f"other reasons ({others:,})"


def _name_rows(places: Sequence[int], *, of_several: bool) -> str:
    """Return where rows are in the input, both counted from 1.

    Keys are not told: a message is stored where `millrace forget` does not erase them.
    """
    found = (divmod(place, FILE_ROWS) for place in places)
    rows = [f"{row + 1:,}" + f" of file {file + 1:,}" * of_several for file, row in found]
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(rows)}"


def _hints(reasons: Collection[str]) -> Iterator[str]:
    """Yield what to do about dead letters."""
    yield "fix the rows, or raise batch.max_dead_letters"
    if DUPLICATE_KEY in reasons:
        yield (
            "of rows with one key only the first is scored: remove those that came twice, or train "
            "with columns in dataset.key that identify a row"
        )
    if set(reasons) - {DUPLICATE_KEY}:
        yield (
            "so that the model accepts missing values and unknown categories, declare the column "
            "as {nullable: true} in the pipeline file and train again"
        )


def drop_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    """Return a table without some of its rows.

    Args:
        table: a table with the column `ROW`.
        rows: the `ROW`s to drop, int64, sorted.
    """
    return table.filter(pa.array(~np.isin(table[ROW].to_numpy(), rows)))


def select_files_to_commit(
    partition: Partition, files: Mapping[str, pa.Table], excluded: Mapping[str, RowNumbers]
) -> list[pa.fs.FileInfo]:
    """Return the files to commit; a file with excluded rows is replaced by a copy without them.

    Args:
        partition: where the files are.
        files: the written files, by path.
        excluded: the `ROW`s to leave out, by the file's path.
    """
    filesystem, path = partition.location
    names = []
    for file in files:
        if file not in excluded:
            names.append(file)
            continue
        left = drop_rows(pq.read_table(file, filesystem=filesystem), excluded[file])
        if left.num_rows:
            name = f"{PurePosixPath(file).stem}-once.parquet"
            partition.folder.write_table(name, left)
            names.append(f"{path}/{name}")
    found: list[pa.fs.FileInfo] = filesystem.get_file_info(names)
    return found


def count_answers(
    partition: Partition, files: Collection[str], bins: Sequence[Bins]
) -> dict[str, list[int]]:
    """Return the number of answers in each drift bin, by column.

    Args:
        partition: where the files are.
        files: paths of the written files.
        bins: the drift bins of output columns.
    """
    if not bins:
        return {}
    filesystem, _ = partition.location
    names = [each.column for each in bins]
    counts = [np.zeros(len(each.counts), np.int64) for each in bins]
    for file in files:
        rows = pq.read_table(file, columns=names, filesystem=filesystem)
        for each, seen in zip(bins, counts, strict=True):
            seen += each.count(rows[each.column].combine_chunks())
    return {name: seen.tolist() for name, seen in zip(names, counts, strict=True)}


def _complete_files(partition: Partition, state: JobState) -> list[str]:
    """Return the files that have a checkpoint.

    Ray writes the checkpoint of a data file after the file itself. The name of the data file begins
    with the name of the checkpoint.
    """
    complete = state.read_checkpointed()
    files = (file.path for file in partition.files())
    return [file for file in files if PurePosixPath(file).name.rpartition("-")[0] in complete]


def _count_input(pieces: Sequence[Piece], counted: Mapping[str, int]) -> int:
    """Return the number of rows of the input.

    Raises:
        InputError: the input has no rows.
        WorkError: a piece was not read completely.
    """
    unread = [piece.name for piece in pieces if piece.name not in counted]
    short = [p.name for p in pieces if p.rows is not None and counted.get(p.name) != p.rows]
    if unread or short:
        raise WorkError(
            "the input was not read to its end; nothing was committed",
            seen=f"of {len(pieces)} pieces of the input (files, or parts of Parquet files), "
            f"{len(unread)} were not read, and {len(short)} do not have the expected number of "
            "rows",
            hint="run the job again",
        )
    total = sum(counted[piece.name] for piece in pieces)
    if not total:
        raise InputError(
            "the input of the batch job has no rows",
            hint="check --input, or batch.input in the pipeline file",
        )
    return total


def _find_repeated(
    rows_by_file: Mapping[str, RowNumbers],
) -> tuple[RowNumbers, dict[str, RowNumbers]]:
    """Return the rows of all files, and the rows that are in more than one file.

    Returns:
        All `ROW`s, sorted, each once. For each file, by its path, the `ROW`s that an earlier file
        has too; empty if no row is repeated.
    """
    rows = _sort_rows(rows_by_file.values())
    if (np.diff(rows) != 0).all():  # the usual case
        return rows, {}
    seen = NO_ROWS
    repeated: dict[str, RowNumbers] = {}
    for path, each in rows_by_file.items():
        repeated[path] = np.intersect1d(each, seen)
        seen = np.union1d(seen, each)
    return seen, repeated


def _sort_rows(parts: Iterable[RowNumbers]) -> RowNumbers:
    """Return all rows in order; a stable sort merges the sorted runs of the files quickly."""
    return np.sort(np.concatenate([NO_ROWS, *parts]), kind="stable")


def _find_duplicates(keys: pa.Table) -> pa.Table:
    """Return the rows whose key an earlier row has, with the columns of `DEAD`."""
    if len(pc.unique(keys[KEY])) == len(keys):  # the usual case
        return DEAD.empty_table()
    groups = keys.group_by(KEY).aggregate([(ROW, "min"), (ROW, "count")])
    shared = groups.filter(pc.greater(groups[f"{ROW}_count"], 1))
    if not len(shared):
        return DEAD.empty_table()
    firsts = shared[f"{ROW}_min"]
    same = keys.filter(pc.is_in(keys[KEY], shared[KEY].combine_chunks()))
    rest = same.filter(pc.invert(pc.is_in(same[ROW], firsts.combine_chunks())))
    row = pa.array([as_json({KEY: key}) for key in rest[KEY].to_pylist()], pa.string())
    reason = pa.repeat(DUPLICATE_KEY, len(rest))
    return pa.table([rest[ROW], rest[KEY], reason, row], schema=DEAD)


def _require_all(
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
            "the output does not have every input row once; nothing was committed",
            seen=f"{total:,} rows in the input, {len(found):,} rows scored or refused",
            hint="run the job again; if it happens again, report it",
        )
