"""The rows that a batch job scores, as a Ray dataset."""

from pathlib import Path

import deltalake
import ray.data

from models.errors import InputError

_READERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def read_rows(source: str, format_name: str = "auto") -> ray.data.Dataset:
    """Open the input of a batch job.

    Args:
        source: a file, a folder, a glob, a URI or a Delta table.
        format_name: `parquet`, `csv`, `jsonl`, `delta`, or `auto` to go by the ending.

    Raises:
        InputError: there is nothing there, or its format is not known.
    """
    if format_name == "auto":
        format_name = _format_of(source)
    if format_name == "delta":
        return ray.data.read_parquet(deltalake.DeltaTable(source).file_uris())
    paths = _paths(source)
    if format_name == "parquet":
        return ray.data.read_parquet(paths)
    if format_name == "csv":
        return ray.data.read_csv(paths)
    return ray.data.read_json(paths, lines=True)


def _format_of(source: str) -> str:
    if not Path(source).is_file() and deltalake.DeltaTable.is_deltatable(source):
        return "delta"
    stem = source.removesuffix(".gz")
    for ending, name in _READERS.items():
        if stem.endswith(ending):
            return name
    folder = Path(source)
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.suffix in _READERS:
                return _READERS[file.suffix]
    if "://" not in source and not folder.exists() and not _globbed(source):
        raise _missing(source)
    raise InputError(
        f"the format of {source} is not known",
        seen=Path(source).suffix or "no ending",
        valid=f"a Delta table, or {', '.join(_READERS)}",
        hint="give the file one of these endings",
    )


def _paths(source: str) -> str | list[str]:
    if "://" in source:
        return source
    path = Path(source)
    found = [str(path)] if path.exists() else _globbed(source)
    if not found:
        raise _missing(source)
    for file in found:
        if Path(file).is_file() and Path(file).stat().st_size == 0:
            raise InputError(f"the input {file} is empty", hint="give a file with rows in it")
    return found


def _globbed(source: str) -> list[str]:
    path = Path(source).absolute()
    return [
        str(file) for file in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    ]


def _missing(source: str) -> InputError:
    return InputError(
        "the input of the batch job is not there",
        seen=str(Path(source).absolute()),
        valid="a file, a folder, a glob, a URI or a Delta table",
        hint="check --input; a relative path starts from the current folder",
    )
