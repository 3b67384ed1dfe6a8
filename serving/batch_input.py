"""The rows that a batch job scores, as a Ray dataset."""

from dataclasses import dataclass
from pathlib import Path

import deltalake
import ray.data
from deltalake.exceptions import TableNotFoundError

from models.delta_files import file_paths
from models.errors import InputError

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


@dataclass(frozen=True)
class Resolved:
    """What there is to open.

    Attributes:
        format: `parquet`, `csv` or `jsonl`; a Delta table is the Parquet files of its version.
        paths: files, folders or URIs.
    """

    format: str
    paths: tuple[str, ...]


def read_rows(source: str, format_name: str = "auto") -> ray.data.Dataset:
    """Open the input of a batch job.

    Args:
        source: a file, a folder, a glob, a URI or a Delta table.
        format_name: `parquet`, `csv`, `jsonl`, `delta`, or `auto` to go by the ending.

    Raises:
        InputError: there is nothing there, or its format is not known.
    """
    found = resolve(source, format_name)
    paths = list(found.paths)
    if found.format == "parquet":
        return ray.data.read_parquet(paths)
    if found.format == "csv":
        return ray.data.read_csv(paths)
    return ray.data.read_json(paths, lines=True)


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
            raise InputError(f"the input {path} is empty", hint="give a file with rows in it")
    return Resolved(format_name, tuple(paths))


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


def _formats(paths: list[str]) -> set[str]:
    """Return the formats that the endings of files, or of the files in folders, tell."""
    found = set()
    for path in paths:
        files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [path]
        stems = [str(file).removesuffix(".gz") for file in files]
        found |= {_FORMATS[e] for stem in stems for e in _FORMATS if stem.endswith(e)}
    return found


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


def _unknown(source: str, formats: set[str]) -> InputError:
    return InputError(
        f"the format of {source} is not known",
        seen=", ".join(sorted(formats)) or Path(source).suffix or "no ending",
        valid=f"a Delta table, or files of one kind: {', '.join(_FORMATS)}",
        hint="give the files one of these endings",
    )
