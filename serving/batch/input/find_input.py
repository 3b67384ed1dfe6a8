"""Finds the input of a batch job: its files, the pieces to read, and a manifest of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import deltalake
from deltalake.exceptions import DeltaError
from pyarrow import fs

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.schema import KEY
from millrace.models.data.sources.delta_files import dataset_of, file_paths, manifest_of
from millrace.models.data.sources.find_files import (
    COMPRESSED,
    ENDINGS,
    File,
    format_of,
    own_files,
    resolve,
)
from millrace.models.data.sources.open_source import source_of_files
from millrace.models.data.sources.source import read_error
from millrace.serving.batch.fingerprint import digest_of_json
from millrace.serving.batch.input.input_pieces import Constants, Piece, TextPiece, split_parquet
from millrace.serving.batch.job import Job

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
READ_BYTES = 2**24


@dataclass(frozen=True)
class InputPaths:
    """The files that a source refers to.

    Attributes:
        format: `parquet`, `csv` or `jsonl`; for a Delta table, `parquet`.
        paths: files, folders or URIs.
        table: the Delta table that the files belong to; None if they belong to none.
    """

    format: str
    paths: tuple[str, ...]
    table: deltalake.DeltaTable | None = None


@dataclass(frozen=True)
class Input:
    """The rows of a batch job, as they were found.

    Attributes:
        source: name of the input, as the user gave it.
        files: the files to read, in order.
        pieces: the same files, split into pieces.
        manifest: the table and its version, or files with sizes and digests; ready for JSON.
        has_keys: whether the rows have their own keys, so that a row with the key of an earlier row
            is not scored.
        from_table: whether the input is a version of a Delta table, whose files never change.
    """

    source: str
    files: tuple[File, ...]
    pieces: tuple[Piece, ...]
    manifest: dict[str, Any]
    has_keys: bool = False
    from_table: bool = False

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only after reading."""
        known = [piece.rows for piece in self.pieces if piece.rows is not None]
        return sum(known) if len(known) == len(self.pieces) else None

    def about_rows(self) -> int | None:
        """Return the approximate number of rows, for the forecast of the job's end.

        For text files it is the number of lines, without the header lines of CSV files.

        Returns:
            None for remote or compressed text files, because counting their lines would mean
            reading them a second time.
        """
        if self.rows is not None:
            return self.rows
        if any(not file.local or file.path.endswith(COMPRESSED) for file in self.files):
            return None
        heads = len(self.files) if self.manifest["format"] == "csv" else 0
        return max(sum(_count_lines(file) for file in self.files) - heads, 0)

    @property
    def words(self) -> str:
        """A description of the input, in one line."""
        if self.from_table:
            return f"{self.source} version {self.manifest['version']}"
        match self.manifest["files"]:
            case [{"sha256": digest}]:
                return f"{self.source}, sha256 {digest}"
            case listed:
                files = f"{len(listed)} file{'s' if len(listed) > 1 else ''}"
                return f"{self.source}, {files}, digest {digest_of_json(self.manifest)}"

    def require_unchanged(self) -> None:
        """Raise if a file has changed since it was found.

        Raises:
            TransientError: a file has changed.
        """
        if not self.from_table:
            for file in self.files:
                file.require_unchanged()


def open_input(source: str, job: Job) -> Input:
    """Find the input of a batch job.

    Args:
        source: a file, a folder, a glob, a URI or a Delta table.
        job: the job that scores the rows.

    Raises:
        InputError: the input does not exist, has an unknown format, cannot be read, or lacks a
            column.
        TransientError: a remote store cannot be reached, or a file has changed in the meantime.
    """
    found = find_paths(source)
    try:
        listed = list_files(source, found)
        files = tuple(file for file, _ in listed)
        if found.format == "parquet":
            pieces, names = split_parquet(source, listed)
        else:
            pieces = tuple(TextPiece(file, n, format=found.format) for n, file in enumerate(files))
            names = _read_column_names(source, found.format, files)
        _require_columns(names, job)
        if found.table is not None:
            manifest = manifest_of(found.table)
        else:
            manifest = {"format": found.format, "files": [file.manifest() for file in files]}
    except OSError as error:
        raise read_error(source, error) from error
    has_keys = bool(job.key) or KEY in names
    return Input(source, files, pieces, manifest, has_keys, found.table is not None)


def find_paths(source: str) -> InputPaths:
    """Find the files of a source, and their format by the endings of their names.

    No file is opened, except the log of a Delta table.

    Args:
        source: as for `open_input`.

    Raises:
        InputError: the source does not exist, or has an unknown format.
    """
    if not Path(source).is_file() and deltalake.DeltaTable.is_deltatable(source):
        return _find_table(source)
    exists = "://" in source or Path(source).exists()
    paths = [source] if exists else _expand_glob(source)
    if not paths:
        raise _missing(source)
    formats = _formats(paths)
    if len(formats) != 1:
        raise _unknown(source, formats)
    # A glob may also match files without rows.
    paths = [path for path in paths if _formats([path])]
    for path in paths:
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            raise _empty(path)
    return InputPaths(formats.pop(), tuple(paths))


def list_files(source: str, found: InputPaths) -> list[tuple[File, Constants]]:
    """Return the files of a source, each with the columns that its folders' names give.

    Args:
        source: as for `open_input`.
        found: what `find_paths` returned for the source.

    Raises:
        InputError: there are no files, or one is empty.
    """
    listed = [each for path in found.paths for each in _list_path(path, found)]
    if not listed:
        raise _missing(source)
    for file, _ in listed:
        if file.size == 0:
            raise _empty(file.path)
    return listed


def _list_path(path: str, found: InputPaths) -> Iterator[tuple[File, Constants]]:
    filesystem, root = resolve(path, Path.cwd())
    info = filesystem.get_file_info(root)
    infos = [info]
    if info.type == fs.FileType.Directory:
        inside = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        infos = [i for i in inside if format_of(i.path) == found.format and not _is_hidden(i, root)]
    elif found.table is not None:
        if info.type != fs.FileType.File:
            raise InputError(
                f"a file of the Delta table {found.table.table_uri} is missing",
                seen=root,
                valid="all files that the table's log names",
                hint="restore the file, or remove it from the table's log with "
                "`DeltaTable.repair` of the Python package deltalake",
            )
        root = resolve(found.table.table_uri, Path.cwd())[1]
    for each in sorted(infos, key=lambda info: info.path):
        if each.type == fs.FileType.File:
            file = File(filesystem, each.path, each.size, each.mtime_ns)
            yield file, _folder_columns(each.path, root) if each.path != root else ()


def _folder_columns(path: str, root: str) -> Constants:
    """Return the columns from the names, `name=value`, of the folders between root and file."""
    folders = PurePosixPath(path).relative_to(root).parts[:-1]
    pairs = (folder.split("=", 1) for folder in folders if "=" in folder)
    return tuple((n, None if v == NULL_PARTITION else unquote(v)) for n, v in pairs)


def _count_lines(file: File) -> int:
    count = 0
    with file.open() as stream:
        while part := stream.read(READ_BYTES):
            count += part.count(b"\n")
    return count


def _read_column_names(source: str, format_name: str, files: tuple[File, ...]) -> list[str]:
    """Return the columns of files, by their header or their first rows.

    Raises:
        InputError: there are no rows.
    """
    spec = DatasetSpec(source=source, target=KEY)  # the target does not matter here
    opened = source_of_files(format_name, spec, files)
    if opened.schema is not None:
        return list(opened.schema.names)
    rows = next((chunk.rows for chunk in opened.chunks() if chunk.rows.num_rows), None)
    if rows is None:
        raise InputError(
            f"the input {source} has no rows",
            valid="one JSON object to a line",
            hint="check --input, or batch.input in the pipeline file",
        )
    return list(rows.schema.names)


def _is_hidden(info: fs.FileInfo, folder: str) -> bool:
    """Return whether a file, or a folder above it, is hidden or a marker, like `_SUCCESS`."""
    parts = PurePosixPath(info.path).relative_to(folder).parts
    return any(part.startswith((".", "_")) for part in parts)


def _require_columns(names: Sequence[str], job: Job) -> None:
    missing = [name for name in job.needed if name not in names]
    missing += [name for name in job.key if name not in names and KEY not in names]
    if missing:
        raise InputError(
            "the input of the batch job lacks columns",
            seen=f"missing {', '.join(missing)}; there are {', '.join(names) or 'no columns'}",
            valid=", ".join(job.needed),
            hint=job.advice,
        )


def _find_table(source: str) -> InputPaths:
    try:
        table = deltalake.DeltaTable(source)
        dataset_of(table)  # raises for table features that only other readers support
    except DeltaError as error:
        raise InputError(
            f"the Delta table {source} cannot be read",
            seen=error,
            valid="a table without deletion vectors and without column mapping",
            hint="REORG or rewrite the table, or give its Parquet files as the input",
        ) from error
    files = file_paths(table)
    if not files:
        raise InputError(f"the table {source} has no rows", hint="give a table with rows in it")
    return InputPaths("parquet", tuple(sorted(files)), table)


def _formats(paths: Iterable[str]) -> set[str]:
    """Return the formats of files, and of the files in folders, by their endings."""
    names = [name for path in paths for name in _list_folder(Path(path)) or [path]]
    return {kind for name in names if (kind := format_of(name)) is not None}


def _list_folder(folder: Path) -> list[str]:
    """Return the files of a folder and of its subfolders, without hidden ones."""
    parts = ((file, file.relative_to(folder).parts) for file in folder.rglob("*"))
    return [str(file) for file, names in parts if not any(n.startswith((".", "_")) for n in names)]


def _expand_glob(source: str) -> list[str]:
    path = Path(source).absolute()
    found = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return own_files([str(file) for file in found], str(path), local=True)


def _missing(source: str) -> InputError:
    return InputError(
        "the input of the batch job does not exist",
        seen=source if "://" in source else str(Path(source).absolute()),
        valid="a file, a folder, a glob, a URI or a Delta table",
        hint="check --input, or batch.input in the pipeline file; a relative path starts from the "
        "current folder",
    )


def _empty(path: str) -> InputError:
    return InputError(f"the input {path} is empty", hint="give a file with rows in it")


def _unknown(source: str, formats: set[str]) -> InputError:
    endings = ", ".join(ending for group in ENDINGS.values() for ending in group)
    return InputError(
        f"the format of {source} is not known, or its files have several formats",
        seen=", ".join(sorted(formats)) or Path(source).suffix or "no ending",
        valid=f"a Delta table, or files of one kind: {endings}, compressed or not",
        hint="give the files one of these endings",
    )
