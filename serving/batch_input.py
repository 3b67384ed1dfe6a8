"""The rows that a batch job scores, as a Ray dataset of encoded rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import deltalake
import pyarrow as pa
import ray.data
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from models.columns import KEY
from models.delta_files import file_paths
from models.errors import InputError, MillraceError, WorkError
from models.source import broken_off
from models.source_files import ENDINGS, File, format_of
from models.source_files import resolve as locate
from serving.scorer import ScoreJob, encoded
from serving.text_rows import TextRows, column_names


@dataclass(frozen=True)
class Resolved:
    """What there is to open.

    Attributes:
        format: `parquet`, `csv` or `jsonl`; a Delta table is the Parquet files of its version.
        paths: files, folders or URIs.
    """

    format: str
    paths: tuple[str, ...]


def read_rows(source: str, job: ScoreJob, format_name: str = "auto") -> ray.data.Dataset:
    """Open the input of a batch job, and encode its rows where they are read.

    Args:
        source: a file, a folder, a glob, a URI or a Delta table.
        job: what the rows are read for.
        format_name: `parquet`, `csv`, `jsonl`, `delta`, or `auto` to go by the ending.

    Raises:
        InputError: there is nothing there, its format is not known, it cannot be read, or it
            lacks a column.
        TransientError: a remote store cannot be reached.
    """
    # Without it Ray keeps of an error of ours, raised in an actor, only the text of its traceback.
    ray.data.DataContext.get_current().raise_original_map_exception = True
    found = resolve(source, format_name)
    if found.format == "parquet":
        return _parquet(source, found.paths, job)
    try:
        files = _files(source, found)
        _require_columns(column_names(source, found.format, files), job)
    except OSError as error:
        raise broken_off(source, error) from error
    rows: ray.data.Dataset = ray.data.read_datasource(TextRows(source, found.format, files, job))
    return rows


def fault_of(error: Exception) -> MillraceError:
    """Return what ended a job of Ray Data as an error of ours."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, MillraceError):
        return cause
    if cause is not None:  # after the first line Ray adds advice about its own settings
        seen = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
    else:
        seen = [line for line in str(error).splitlines() if line[:1].strip()][-1]
    return WorkError(
        "batch inference failed; nothing was committed",
        seen=seen,
        hint="mend the cause and run it again",
    )


def resolve(source: str, format_name: str = "auto") -> Resolved:
    """Find out what a source is, and open nothing but a Delta table's log.

    Args:
        source: as for `read_rows`.
        format_name: as for `read_rows`.

    Raises:
        InputError: there is nothing there, or its format is not known.
    """
    if format_name == "delta" or (format_name == "auto" and _is_delta(source)):
        return Resolved("parquet", _delta_files(source))
    there = "://" in source or Path(source).exists()
    paths = [source] if there else _globbed(source)
    if not paths:
        raise _missing(source)
    if format_name == "auto":
        formats = _formats(paths)
        if len(formats) != 1:
            raise _unknown(source, formats)
        (format_name,) = formats
        # A glob may match other files besides.
        paths = [path for path in paths if _formats([path])]
    for path in paths:
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            raise _empty(path)
    return Resolved(format_name, tuple(paths))


def _parquet(source: str, paths: Sequence[str], job: ScoreJob) -> ray.data.Dataset:
    endings = [ending.removeprefix(".") for ending in ENDINGS["parquet"]]
    try:
        rows = ray.data.read_parquet(list(paths), file_extensions=endings)
        schema = rows.schema()
    except FileNotFoundError as error:
        raise _missing(source) from error
    except OSError as error:
        raise broken_off(source, error) from error
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{source} cannot be read as Parquet",
            seen=str(error).splitlines()[0],
            hint="write it again, or give it the ending of what it is",
        ) from error
    except Exception as error:  # whatever Ray raises of its own or hands over from a task
        raise fault_of(error) from error
    _require_columns(schema.names if schema is not None else (), job)
    return rows.map_batches(partial(encoded, job=job), batch_format="pyarrow", batch_size=None)


def _files(source: str, found: Resolved) -> tuple[File, ...]:
    """Return the files of paths and of the folders among them.

    Raises:
        InputError: there are none, or one is empty.
    """
    files = tuple(file for path in found.paths for file in _listed(path, found.format))
    if not files:
        raise _missing(source)
    for file in files:
        if file.size == 0:
            raise _empty(file.path)
    return files


def _listed(path: str, format_name: str) -> Iterator[File]:
    filesystem, place = locate(path, Path.cwd())
    info = filesystem.get_file_info(place)
    infos = [info]
    if info.type == fs.FileType.Directory:
        within = filesystem.get_file_info(fs.FileSelector(place, recursive=True))
        infos = [i for i in within if format_of(i.path) == format_name and not _hidden(i, place)]
    for each in sorted(infos, key=lambda info: info.path):
        if each.type == fs.FileType.File:
            yield File(filesystem, each.path, each.size, each.mtime_ns)


def _hidden(info: fs.FileInfo, folder: str) -> bool:
    """Whether a file, or a folder on the way to it, is a writer's own, like `_SUCCESS`."""
    parts = PurePosixPath(info.path).relative_to(folder).parts
    return any(part.startswith((".", "_")) for part in parts)


def _require_columns(names: Iterable[str], job: ScoreJob) -> None:
    there = tuple(names)
    missing = [f.name for f in job.encoding.features if f.name not in there]
    missing += [name for name in job.key if name not in there and KEY not in there]
    if missing:
        raise InputError(
            "the input lacks columns that the model needs",
            seen=f"missing {', '.join(missing)}; there are {', '.join(there) or 'none'}",
            valid=", ".join(feature.name for feature in job.encoding.features),
            hint="score rows with the columns that the model was trained on",
        )


def _is_delta(source: str) -> bool:
    return not Path(source).is_file() and deltalake.DeltaTable.is_deltatable(source)


def _delta_files(source: str) -> tuple[str, ...]:
    try:
        files = file_paths(deltalake.DeltaTable(source))
    except TableNotFoundError as error:
        raise _missing(source) from error
    if not files:
        raise InputError(f"the table {source} has no rows", hint="give a table with rows in it")
    return tuple(files)


def _formats(paths: Iterable[str]) -> set[str]:
    """Return the formats that the endings of files, or of the files in folders, tell."""
    folders = {
        path: sorted(map(str, Path(path).iterdir())) for path in paths if Path(path).is_dir()
    }
    names = [name for path in paths for name in folders.get(path, [path])]
    return {kind for name in names if (kind := format_of(name)) is not None}


def _globbed(source: str) -> list[str]:
    path = Path(source).absolute()
    return [
        str(file) for file in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    ]


def _missing(source: str) -> InputError:
    return InputError(
        "the input of the batch job is not there",
        seen=source if "://" in source else str(Path(source).absolute()),
        valid="a file, a folder, a glob, a URI or a Delta table",
        hint="check --input; a relative path starts from the current folder",
    )


def _empty(path: str) -> InputError:
    return InputError(f"the input {path} is empty", hint="give a file with rows in it")


def _unknown(source: str, formats: set[str]) -> InputError:
    endings = ", ".join(ending for group in ENDINGS.values() for ending in group)
    return InputError(
        f"the format of {source} is not known",
        seen=", ".join(sorted(formats)) or Path(source).suffix or "no ending",
        valid=f"a Delta table, or files of one kind: {endings}, compressed or not",
        hint="give the files one of these endings",
    )
