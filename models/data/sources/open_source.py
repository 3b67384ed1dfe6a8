"""Opens the source that a pipeline file names.

`batches()` streams; nothing is read before, but headers and schemas. The kinds are in
`source_csv`, `source_jsonl`, `source_arrow` (Parquet, Delta), `source_text` (plain text, one row to
a file) and `source_python` (scikit-learn, the user's function).
"""

import re
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.arrow_source import ParquetSource, open_delta
from millrace.models.data.sources.csv_source import CsvSource
from millrace.models.data.sources.find_files import (
    ENDINGS,
    File,
    find_files,
    format_of,
    is_text,
    require_content,
    resolve,
    root_of,
)
from millrace.models.data.sources.jsonl_source import JsonlSource
from millrace.models.data.sources.python_source import SKLEARN_PREFIX, FunctionSource, open_sklearn
from millrace.models.data.sources.source import Source
from millrace.models.data.sources.text_source import TextSource, with_defaults

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def open_source(spec: DatasetSpec, folder: Path) -> Source:
    """Open the source of a dataset.

    Args:
        spec: the pipeline file's `dataset` part.
        folder: folder of the pipeline file, which relative paths and user modules start from.

    Raises:
        InputError: nothing is there, it is empty, or its format is not known.
        TransientError: a remote store cannot be reached.
    """
    source = spec.source
    if source.startswith(SKLEARN_PREFIX):
        return open_sklearn(spec)
    if _FUNCTION.fullmatch(source):
        return FunctionSource(spec, folder)
    if spec.format == "delta" or (spec.format == "auto" and _is_delta(source, folder)):
        return open_delta(spec, source if "://" in source else str(resolve(source, folder)[1]))
    files = find_files(source, folder)
    return _file_source(spec, files, root_of(source, folder))


def _kind(path: str) -> str | None:
    return "text" if is_text(path) else format_of(path)


def _is_delta(source: str, folder: Path) -> bool:
    """A remote table has to be declared by `format: delta`."""
    return "://" not in source and Path(resolve(source, folder)[1], "_delta_log").is_dir()


def _file_source(spec: DatasetSpec, files: tuple[File, ...], root: str) -> Source:
    kinds = {_kind(file.path) for file in files} if spec.format == "auto" else {spec.format}
    if kinds == {"text"}:
        return TextSource(with_defaults(spec), files, root)
    require_content(files)
    if kinds == {"csv"}:
        return CsvSource(spec, files)
    if kinds == {"jsonl"}:
        return JsonlSource(spec, files)
    if kinds == {"parquet"}:
        return ParquetSource(spec, files)
    endings = ", ".join(ending for group in ENDINGS.values() for ending in group)
    raise InputError(
        f"the format of {spec.source} cannot be told from its ending",
        seen=", ".join(sorted(Path(file.path).name for file in files)[:5]),
        valid=f"files of one kind: {endings} or plain text, compressed or not",
        hint="set dataset.format to parquet, csv, jsonl or text",
    )
