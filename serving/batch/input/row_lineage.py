"""Where a row of an output came from: the file of the input, and the job that scored it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import deltalake
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millrace.models.common.errors import InputError
from millrace.models.data.schema import KEY
from millrace.models.data.sources.delta_files import dataset_of
from millrace.serving.batch.commit import JOB
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.input.find_input import Input
from millrace.serving.batch.job import FILE_ROWS, ROW
from millrace.serving.batch.monitoring.batch_report import PREFIX, WHOLE

KEPT = "_lineage"
"""Folder in an output table, which readers of Delta tables pass over: a file for each job."""
FILE = "__filename"
MOST = 100
"""Rows of one key that are told of: without keys of their own, rows that are alike share one."""


@dataclass(frozen=True)
class Origin:
    """Where one row came from.

    Attributes:
        row: as it is in the output.
        file: the file of the input that it was in.
        place: its place there, from 0; lines that could not be read count too.
        manifest: what is known of that file: its size and digest; empty for a Delta table's.
        source: the input: which files, or which version of a table.
        job: id of the job.
        committed: what was kept with the commit: model, version, digest, fingerprint, counts.
        table_version: the version of the table that the job's commit made.
    """

    row: Mapping[str, Any]
    file: str
    place: int
    manifest: Mapping[str, Any]
    source: Mapping[str, Any]
    job: str
    committed: Mapping[str, str]
    table_version: int


def keep(table: str, job: str, found: Input, seen: Mapping[str, Sequence[int]]) -> None:
    """Keep what the input of a job was, before its commit.

    Args:
        table: URI of the output.
        job: its id.
        found: the input.
        seen: by column, how many rows are in each bin of the drift.
    """
    files = [file.path for file in found.files]
    values = {"files": files, "input": found.manifest, "seen": dict(seen)}
    Folder(f"{table}/{KEPT}").write_json(f"{job}.json", values)


def seen_by(table: str, job: str) -> dict[str, list[int]]:
    """Return by column how many rows of a job are in each bin of the drift."""
    kept = Folder(f"{table}/{KEPT}").read_json(f"{job}.json")
    return dict((kept or {}).get("seen", {}))


def origins(table: str, key: str, date: str | None = None) -> Sequence[Origin]:
    """Return where the rows with a key came from, the newest date first.

    Args:
        table: URI of the output.
        key: the rows' `_key`.
        date: of one partition; None for all.

    Raises:
        InputError: there is no such table, or no such row in it.
    """
    if not deltalake.DeltaTable.is_deltatable(table):
        raise InputError(
            "there is no table of predictions", seen=table, hint="name a model, or a Delta table"
        )
    opened = deltalake.DeltaTable(table)
    found = _rows(opened, key, date)
    if not found:
        where = f"{table}, date={date}" if date else table
        raise InputError(f"no row of {where} has the key {key!r}", hint="check --row and --date")
    commits = {commit[JOB]: commit for commit in opened.history() if JOB in commit}
    jobs = {PurePosixPath(row[FILE]).parent.name for row in found}
    kept = {job: Folder(f"{table}/{KEPT}").read_json(f"{job}.json") for job in jobs}
    return [_origin(row, commits, kept) for row in found]


def _rows(table: deltalake.DeltaTable, key: str, date: str | None) -> list[dict[str, Any]]:
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
    listed: list[dict[str, Any]] = found.take(
        pc.sort_indices(found, [("date", "descending"), (ROW, "ascending")])
    ).to_pylist()
    return listed


def _origin(
    row: dict[str, Any], commits: Mapping[str, Mapping[str, Any]], kept: Mapping[str, Any]
) -> Origin:
    job = PurePosixPath(row.pop(FILE)).parent.name
    known = kept.get(job) or {"files": [], "input": {}}
    number, place = divmod(row[ROW], FILE_ROWS)
    manifests = known["input"].get("files", [])
    commit = commits.get(job, {})
    told = {k.removeprefix(PREFIX): str(v) for k, v in commit.items() if k.startswith(PREFIX)}
    told.pop(WHOLE.removeprefix(PREFIX), None)
    return Origin(
        row=row,
        file=known["files"][number] if number < len(known["files"]) else "",
        place=place,
        manifest=manifests[number] if number < len(manifests) else {},
        source={name: value for name, value in known["input"].items() if name != "files"},
        job=job,
        committed=told,
        table_version=int(commit.get("version", -1)),
    )
