"""Where a row of an output came from: the file of the input, and the job that scored it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import deltalake
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.data.folder import Folder
from millrace.models.data.schema import KEY
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.data.sources.find_files import resolve
from millrace.serving.batch.commit import JOB
from millrace.serving.batch.input.find_input import Input
from millrace.serving.batch.job import FILE_ROWS, ROW
from millrace.serving.batch.monitoring.batch_report import PREFIX, WHOLE

LINEAGE = "_lineage"
"""Folder in an output table, which readers of Delta tables ignore; it has a file for each job."""
FILE = "__filename"
MOST = 100
"""Largest number of rows returned for a key. If an input has no keys, equal rows share a key."""


@dataclass(frozen=True)
class Origin:
    """Where one row came from.

    Attributes:
        row: the row in the output.
        file: the input file that the row was in; empty if not known.
        place: number of the row in that file, from 0; unreadable lines count too.
        manifest: size and digest of that file; empty for the file of a Delta table.
        source: the rest of the input's manifest, such as the version of a table.
        job: id of the job.
        committed: the metadata of the commit: model, version, digest, fingerprint, counts.
        table_version: the version of the table that the job's commit made; -1 if not known.
    """

    row: Mapping[str, Any]
    file: str
    place: int
    manifest: Mapping[str, Any]
    source: Mapping[str, Any]
    job: str
    committed: Mapping[str, str]
    table_version: int


def write_lineage(
    table: str, job: str, batch_input: Input, seen: Mapping[str, Sequence[int]]
) -> None:
    """Record the input of a job, before its commit.

    Args:
        table: URI of the output.
        job: the job's id.
        batch_input: the input.
        seen: number of rows in each drift bin, by column.
    """
    files = [file.path for file in batch_input.files]
    values = {"files": files, "input": batch_input.manifest, "seen": dict(seen)}
    Folder(f"{table}/{LINEAGE}").write_json(f"{job}.json", values)


def _read_lineage(table: str, job: str) -> dict[str, Any]:
    record = Folder(f"{table}/{LINEAGE}").read_json(f"{job}.json")
    return record or {"files": [], "input": {}}


def read_seen(table: str, job: str) -> dict[str, list[int]]:
    """Return the number of a job's rows in each drift bin, by column."""
    return dict(_read_lineage(table, job).get("seen", {}))


def find_origins(table: str, key: str, date: str | None = None) -> Sequence[Origin]:
    """Return where the rows with a key came from, the newest date first.

    Args:
        table: URI of the output.
        key: the rows' `_key`.
        date: the date of one partition; None: all partitions.

    Raises:
        InputError: there is no such table, or no such row in it.
    """
    if not deltalake.DeltaTable.is_deltatable(table):
        raise InputError(
            "there is no table of predictions",
            seen=table,
            hint="score rows with `millrace score FILE`, or name another model or a Delta table",
        )
    opened = deltalake.DeltaTable(table)
    found = _find_rows(opened, key, date)
    if not found:
        where = f"{table}, date={date}" if date else table
        raise InputError(f"no row of {where} has the key {key!r}", hint="check --row and --date")
    commits = {commit[JOB]: commit for commit in opened.history() if JOB in commit}
    jobs = {PurePosixPath(row[FILE]).parent.name for row in found}
    lineages = {job: _read_lineage(table, job) for job in jobs}
    return [_origin_of(row, commits, lineages) for row in found]


def find_refusals(table: str, key: str, date: str | None = None) -> Sequence[str]:
    """Return why rows with a key were not scored, with their dates, the newest first.

    Args:
        table: URI of the dead letters.
        key: the rows' `_key`.
        date: the date of one partition; None: all partitions.
    """
    if not deltalake.DeltaTable.is_deltatable(table):
        return ()
    wanted = ds.field(KEY) == key
    if date is not None:
        wanted &= ds.field("date") == date
    columns = ["date", "reason"]
    rows = dataset_of(deltalake.DeltaTable(table)).scanner(columns=columns, filter=wanted)
    found = sorted(rows.head(MOST).to_pylist(), key=lambda row: str(row["date"]), reverse=True)
    return [f"{row['date']}: {row['reason']}" for row in found]


def _find_rows(table: deltalake.DeltaTable, key: str, date: str | None) -> list[dict[str, Any]]:
    rows = dataset_of(table)
    if ROW not in rows.schema.names:
        raise InputError(
            f"the table {table.table_uri} does not say where its rows come from",
            seen=f"columns {', '.join(rows.schema.names)}",
            valid=f"a table of predictions, with {KEY} and {ROW}",
        )
    wanted = ds.field(KEY) == key
    if date is not None:
        wanted &= ds.field("date") == date
    found = rows.scanner(columns=[*rows.schema.names, FILE], filter=wanted).head(MOST)
    order = pc.sort_indices(found, [("date", "descending"), (ROW, "ascending")])
    listed: list[dict[str, Any]] = found.take(order).to_pylist()
    return listed


def _origin_of(
    row: dict[str, Any],
    commits: Mapping[str, Mapping[str, Any]],
    lineages: Mapping[str, Mapping[str, Any]],
) -> Origin:
    job = PurePosixPath(row.pop(FILE)).parent.name
    files, source = lineages[job]["files"], lineages[job]["input"]
    number, place = divmod(row[ROW], FILE_ROWS)
    file = files[number] if number < len(files) else ""
    manifests = source.get("files", [])
    commit = commits.get(job, {})
    own = {name: str(value) for name, value in commit.items() if name.startswith(PREFIX)}
    return Origin(
        row=row,
        file=file,
        place=_find_place(file, row[KEY], place),
        manifest=manifests[number] if number < len(manifests) else {},
        source={name: value for name, value in source.items() if name != "files"},
        job=job,
        committed={n.removeprefix(PREFIX): value for n, value in own.items() if n != WHOLE},
        table_version=int(commit.get("version", -1)),
    )


def _find_place(file: str, key: str, place: int) -> int:
    """Return the number of a row in a file of a table, from which rows before it may be erased.

    Args:
        file: the file; one without the column `_key`, or that is gone, is not looked at.
        key: the row's key.
        place: the row's number when it was scored, from 0.
    """
    try:
        filesystem, path = resolve(file, Path())
        with filesystem.open_input_file(path) as stream:
            keys = pq.read_table(stream, columns=[KEY])[KEY]
    except (OSError, KeyError, ValueError, MillraceError):
        return place
    if place < len(keys) and keys[place].as_py() == key:
        return place
    found = pc.index(keys, key).as_py()
    return place if found < 0 else found
