"""The requests that were asked by column, and their answers, as a Delta table.

The front step of a model writes files (`serving/triton/backends/named_columns/request_log.py`).
Here they become a table with a partition for each date, once each: a row has the name of its file,
and files whose name the table has are only deleted.
"""

import fcntl
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from millrace.models.common.file_locks import open_private, try_lock
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import RequestLogSpec
from millrace.models.data.erase_rows import erase_in_newest
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.schema import KEY, Column
from millrace.models.data.scrub_files import Erased, scrub_files
from millrace.serving.batch.input.input_pieces import declared_keys

log = logging.getLogger("millrace")

REQUESTS, REQUEST_LOG = "requests", "request_log"
"""Folder of the tables, and of the files that are not in them yet."""
OPEN, CLOSED = ".open", ".jsonl"
GIB = 2**30
MOST_ANSWERS = 100
"""Answers for a key that are looked up, the newest ones."""
LOCK = "collecting.lock"


@dataclass(frozen=True)
class Collected:
    """What was collected of a model.

    Attributes:
        rows: rows that came into the table.
        unreadable: lines that were no rows; they are deleted with their file.
    """

    rows: int = 0
    unreadable: int = 0


def logged_models(installation: Installation) -> list[str]:
    """Return the models that have files of requests."""
    folder = installation.home / REQUEST_LOG
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def collect_requests(
    installation: Installation,
    model: str,
    spec: RequestLogSpec | None = None,
    columns: Sequence[Column] = (),
) -> Collected:
    """Bring the files of a model into its table, and remove what is too old or too much.

    Files that a front step writes are taken away from it, and it begins another.

    Args:
        installation: has the files and the table.
        model: the model.
        spec: how much is kept; None: all of it.
        columns: the columns of the dataset, by which the cells of a key are written.

    Raises:
        OSError: the files or the table cannot be read or written; the files stay.
    """
    folder, uri = installation.home / REQUEST_LOG / model, installation.table(REQUESTS, model)
    if not folder.is_dir():
        return Collected()
    with _alone(folder) as is_alone:
        if not is_alone:
            return Collected()
        rows = unreadable = 0
        for file in [*_finished(folder)]:
            if not _is_known(uri, file.name):
                found, bad = _read(file, columns)
                if len(found):
                    _keep_texts(uri)
                    deltalake.write_deltalake(uri, found, mode="append", partition_by=["date"])
                rows, unreadable = rows + len(found), unreadable + bad
            file.unlink(missing_ok=True)
        if spec is not None and deltalake.DeltaTable.is_deltatable(uri):
            _limit(uri, spec)
    return Collected(rows, unreadable)


def find_answers(uri: str, key: str, date: str | None = None) -> list[dict[str, Any]]:
    """Return the answers for a key, with the rows that were asked, the newest first.

    Args:
        uri: the table; there may be none.
        key: the rows' `_key`.
        date: the only date, in UTC; None: all dates.
    """
    if not deltalake.DeltaTable.is_deltatable(uri):
        return []
    wanted = pa.compute.field(KEY) == key
    if date is not None:
        wanted &= pa.compute.field("date") == date
    rows = deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table(filter=wanted)
    newest = rows.drop_columns("file").sort_by([("time", "descending")]).slice(0, MOST_ANSWERS)
    return [{**each, "time": each["time"].isoformat()} for each in newest.to_pylist()]


def forget_in_table(uri: str, erasure: Erasure) -> Erased:
    """Erase rows from a table, in all its versions; its files must be collected."""
    if not Folder(uri).exists():
        return Erased()
    is_table = deltalake.DeltaTable.is_deltatable(uri)
    erased = erase_in_newest(uri, erasure) if is_table else Erased()
    return erased + scrub_files(uri, erasure)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    with open_private(folder / LOCK) as file:
        yield try_lock(file)


def _finished(folder: Path) -> Iterator[Path]:
    """Take the files away from who writes them, and yield them, the oldest first."""
    for file in sorted(folder.iterdir()):
        if file.suffix == CLOSED:
            yield file
        elif file.suffix == OPEN and (taken := _take(file)) is not None:
            yield taken


def _take(file: Path) -> Path | None:
    """Rename a file between two writes; None if it was closed meanwhile."""
    # a new name each time: the table knows files by their names
    taken = file.with_name(f"{file.stem}-{time.time_ns()}{CLOSED}")
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            file.rename(taken)
    except FileNotFoundError:
        return None
    return taken


def _is_known(uri: str, name: str) -> bool:
    """Return whether the table has the rows of a file: the command ended before it was deleted."""
    if not deltalake.DeltaTable.is_deltatable(uri):
        return False
    table = deltalake.DeltaTable(uri).to_pyarrow_dataset()
    return bool(table.count_rows(filter=pa.compute.field("file") == name))


def _keep_texts(uri: str) -> None:
    """Make texts of the predictions of a table from before they were texts."""
    if not deltalake.DeltaTable.is_deltatable(uri):
        return
    dataset = deltalake.DeltaTable(uri).to_pyarrow_dataset()
    place = dataset.schema.get_field_index("prediction")
    if dataset.schema.field(place).type == pa.string():
        return
    rows = dataset.to_table()
    texts = pa.array([_text(each) for each in rows["prediction"].to_pylist()], pa.string())
    whole = rows.set_column(place, "prediction", texts)
    deltalake.write_deltalake(
        uri, whole, mode="overwrite", schema_mode="overwrite", partition_by=["date"]
    )


def _read(file: Path, columns: Sequence[Column]) -> tuple[pa.Table, int]:
    """Return the rows of a file, and the number of lines that are none."""
    rows, keys, bad = list[dict[str, Any]](), list[dict[str, Any]](), 0
    for line in file.read_bytes().splitlines():
        try:
            row = json.loads(line)
            at = datetime.fromtimestamp(row["time"], UTC)
            found = {
                "date": at.date().isoformat(),
                "time": at,
                "model_version": row["version"],
                "request": row["request"],
                "row_number": row["number"],
                "row": json.dumps(dict(row["row"]), ensure_ascii=False),
                "prediction": _text(row["prediction"]),
                "score": row["score"],
                "file": file.name,
            }
            keys.append(row["key"])
        except (ValueError, TypeError, KeyError, OverflowError):
            bad += 1  # the last line of a process that was killed may be half a line
            continue
        rows.append(found)
    if not rows:
        return pa.table({}), bad
    table = pa.Table.from_pylist(rows, pa.schema(FIELDS))
    return table.append_column(KEY, _keys(keys, columns)), bad


def _keys(keys: Sequence[dict[str, Any]], columns: Sequence[Column]) -> pa.Array:
    """Return `_key` as batch jobs write it; null where the request did not name all of the key."""
    names = [*keys[0]]
    whole = [bool(key) and all(cell is not None for cell in key.values()) for key in keys]
    if not any(whole):
        return pa.nulls(len(keys), pa.string())
    cells = {name: pa.array([_text(key.get(name)) for key in keys]) for name in names}
    found = declared_keys(pa.table(cells), names, columns)
    return pa.compute.if_else(pa.array(whole), found, None)


def _text(cell: Any) -> Any:
    """Return a cell, a number as the text that JSON has for it."""
    return cell if cell is None or isinstance(cell, str) else json.dumps(cell)


def _limit(uri: str, spec: RequestLogSpec) -> None:
    """Remove the days that are too old, and the oldest while there is too much."""
    table = deltalake.DeltaTable(uri)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    sizes: dict[str, int] = {}
    for each in actions:
        date = str(each["partition.date"])
        sizes[date] = sizes.get(date, 0) + int(each["size_bytes"])
    oldest = (datetime.now(UTC) - timedelta(days=spec.keep_days)).date().isoformat()
    gone = {date for date in sizes if date < oldest}
    for date in sorted(sizes):
        if sum(size for day, size in sizes.items() if day not in gone) <= spec.max_gib * GIB:
            break
        gone.add(date)
    if gone:
        _remove(table, gone)
        log.info("removed the requests of %s from %s", ", ".join(sorted(gone)), uri)


def _remove(table: deltalake.DeltaTable, dates: Iterable[str]) -> None:
    """Remove days, also from the versions of the table before."""
    listed = ", ".join(f"'{date}'" for date in sorted(dates))
    table.delete(f"date IN ({listed})")
    with suppress(OSError):
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("date", pa.string()),
    ("time", pa.timestamp("us", "UTC")),
    ("model_version", pa.int64()),
    ("request", pa.string()),
    ("row_number", pa.int64()),
    ("row", pa.string()),
    ("prediction", pa.string()),
    ("score", pa.float64()),
    ("file", pa.string()),
)
"""The table's columns, beside `_key`; a prediction is a text, as a target may change its type."""
