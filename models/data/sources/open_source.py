"""Opens the source that a pipeline file names.

Only headers and schemas are read here. Formats of files with rows are in `FILE_FORMATS`; the other
sources are Delta tables, plain text (one row per file), scikit-learn and the user's function.
"""

import re
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import FILE_FORMATS, DatasetSpec
from millrace.models.config.model_kind import load_object
from millrace.models.data.sources.arrow_source import open_delta
from millrace.models.data.sources.find_files import (
    DELTA_LOG,
    ENDINGS,
    File,
    FileSource,
    find_files,
    format_of,
    is_text,
    resolve,
    root_of,
)
from millrace.models.data.sources.python_source import SKLEARN_PREFIX, FunctionSource, open_sklearn
from millrace.models.data.sources.source import Source
from millrace.models.data.sources.text_source import TextSource, with_defaults

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def open_source(spec: DatasetSpec, folder: Path) -> Source:
    """Open the source of a dataset.

    Args:
        spec: the pipeline file's `dataset` part.
        folder: folder of the pipeline file, from which relative paths and user modules start.

    Raises:
        InputError: the source does not exist, is empty, or has an unknown format.
        TransientError: a remote store cannot be reached.
    """
    source = spec.source
    if source.startswith(SKLEARN_PREFIX):
        return open_sklearn(spec)
    if FUNCTION.fullmatch(source):
        return FunctionSource(spec, folder)
    if spec.format == "delta" or (spec.format == "auto" and _is_delta(source, folder)):
        return open_delta(spec, source if "://" in source else str(resolve(source, folder)[1]))
    return _open_files(spec, find_files(source, folder), root_of(source, folder))


def _is_delta(source: str, folder: Path) -> bool:
    """Return whether a local folder is a Delta table; a remote one needs `format: delta`."""
    return "://" not in source and Path(resolve(source, folder)[1], DELTA_LOG).is_dir()


def _open_files(spec: DatasetSpec, files: tuple[File, ...], root: str) -> Source:
    formats = {spec.format}
    if spec.format == "auto":
        formats = {"text" if is_text(file.path) else format_of(file.path) or "" for file in files}
    if formats == {"text"}:
        return TextSource(with_defaults(spec), files, root)
    for file in files:
        if file.size == 0:
            raise InputError(
                "a file of the source is empty",
                seen=file.path,
                valid="files with rows",
                hint="wait until it is written, or remove it",
            )
    if len(formats) == 1 and (found := formats.pop()) in FILE_FORMATS:
        return source_of_files(found, spec, files)
    endings = ", ".join(ending for group in ENDINGS.values() for ending in group)
    raise InputError(
        f"the format of {spec.source} cannot be inferred from its ending",
        seen=", ".join(sorted(Path(file.path).name for file in files)[:5]),
        valid=f"files of one kind: {endings} or plain text, compressed or not",
        hint=f"set dataset.format to {', '.join(FILE_FORMATS)} or text",
    )


def source_of_files(name: str, spec: DatasetSpec, files: tuple[File, ...]) -> FileSource:
    """Return the source of files with rows.

    Args:
        name: name of the files' format in `FILE_FORMATS`.
        spec: the dataset, which says what to read from the files.
        files: the files.
    """
    source: FileSource = load_object(FILE_FORMATS[name].source)(spec, files)
    return source
