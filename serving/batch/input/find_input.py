"""Finds the input of a batch job: its files, the pieces to read, and a manifest of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.schema import KEY
from millrace.models.data.sources.csv_source import CsvSource
from millrace.models.data.sources.delta_files import dataset_of, file_paths, manifest_of
from millrace.models.data.sources.find_files import COMPRESSED, ENDINGS, File, format_of
from millrace.models.data.sources.find_files import resolve as locate
from millrace.models.data.sources.jsonl_source import JsonlSource
from millrace.models.data.sources.source import read_error
from millrace.serving.batch.fingerprint import digest_of_json
from millrace.serving.batch.input.input_pieces import PIECE_ROWS, ParquetPiece, Piece, TextPiece
from millrace.serving.batch.job import Job

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Resolved:
    """What there is to open.

    Attributes:
        format: `parquet`, `csv` or `jsonl`; a Delta table is the Parquet files of its version.
        paths: files, folders or URIs.
        table: the Delta table whose files they are, None where there is none.
    """

    format: str
    paths: tuple[str, ...]
    table: deltalake.DeltaTable | None = None


@dataclass(frozen=True)
class Input:
    """The rows of a batch job, as they were found.

    Attributes:
        source: as it was named.
        files: what there is to read, in order.
        pieces: the same in pieces.
        manifest: which table and version, or which files with sizes and digests; ready for JSON.
        has_keys: whether its rows have keys of their own, so that two with one are a fault.
        from_table: whether it is a version of a Delta table, whose files never change.
    """

    source: str
    files: tuple[File, ...]
    pieces: tuple[Piece, ...]
    manifest: dict[str, Any]
    has_keys: bool = False
    from_table: bool = False

    @property
    def rows(self) -> int | None:
        """How many rows there are; None where only reading tells."""
        known = [piece.rows for piece in self.pieces if piece.rows is not None]
        return sum(known) if len(known) == len(self.pieces) else None

    def about_rows(self) -> int | None:
        """Return how many rows there are, of text by its lines, to tell when a job will be done.

        Returns:
            None for text that is remote or compressed: to count it is to read all of it twice.
        """
        if self.rows is not None:
            return self.rows
        if any(not file.local or file.path.endswith(COMPRESSED) for file in self.files):
            return None
        heads = len(self.files) if self.manifest["format"] == "csv" else 0
        return max(sum(_lines(file) for file in self.files) - heads, 0)

    @property
    def words(self) -> str:
        """Which rows they are, in a line."""
        if self.from_table:
            return f"{self.source} version {self.manifest['version']}"
        match self.manifest["files"]:
            case [{"sha256": digest}]:
                return f"{self.source}, sha256 {digest}"
            case listed:
                files = f"{len(listed)} file{'s' if len(listed) > 1 else ''}"
                return f"{self.source}, {files}, digest {digest_of_json(self.manifest)}"

    @property
    def size(self) -> int:
        """About how many bytes are read."""
        return sum(piece.size for piece in self.pieces)

    def require_unchanged(self) -> None:
        """Return if every file is as it was when it was found.

        Raises:
            TransientError: one changed.
        """
        if not self.from_table:
            for file in self.files:
                file.require_unchanged()


def open_input(source: str, job: Job, format_name: str = "auto") -> Input:
    """Find the input of a batch job.

    Args:
        source: a file, a folder, a glob, a URI or a Delta table.
        job: what the rows are read for.
        format_name: `parquet`, `csv`, `jsonl`, `delta`, or `auto` to go by the ending.

    Raises:
        InputError: there is nothing there, its format is not known, it cannot be read, or it
            lacks a column.
        TransientError: a remote store cannot be reached, or a file changed meanwhile.
    """
    found = resolve(source, format_name)
    try:
        listed = _files(source, found)
        files = tuple(file for file, _ in listed)
        if found.format == "parquet":
            pieces, names = _parquet_pieces(source, listed)
        else:
            pieces = tuple(
                TextPiece(file, number, format=found.format) for number, file in enumerate(files)
            )
            names = _column_names(source, found.format, files)
        _require_columns(names, job)
        manifest = _manifest(found, files)
    except OSError as error:
        raise read_error(source, error) from error
    has_keys = bool(job.key) or KEY in names
    return Input(source, files, pieces, manifest, has_keys, found.table is not None)


def resolve(source: str, format_name: str = "auto") -> Resolved:
    """Find out what a source is, and open nothing but a Delta table's log.

    Args:
        source: as for `open_input`.
        format_name: as for `open_input`.

    Raises:
        InputError: there is nothing there, or its format is not known.
    """
    if format_name == "delta" or (format_name == "auto" and _is_delta(source)):
        return _delta(source)
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


READ_BYTES = 2**24
Constants = tuple[tuple[str, str | None], ...]


def _files(source: str, found: Resolved) -> list[tuple[File, Constants]]:
    """Return the files of paths and of the folders among them, with what their folders say.

    Raises:
        InputError: there are none, or one is empty.
    """
    listed = [each for path in found.paths for each in _listed(path, found)]
    if not listed:
        raise _missing(source)
    for file, _ in listed:
        if file.size == 0:
            raise _empty(file.path)
    return listed


def _listed(path: str, found: Resolved) -> Iterator[tuple[File, Constants]]:
    filesystem, place = locate(path, Path.cwd())
    info = filesystem.get_file_info(place)
    root, infos = place, [info]
    if info.type == fs.FileType.Directory:
        within = filesystem.get_file_info(fs.FileSelector(place, recursive=True))
        infos = [i for i in within if format_of(i.path) == found.format and not _hidden(i, place)]
    elif found.table is not None:
        if info.type != fs.FileType.File:
            raise InputError(
                f"a file of the Delta table {found.table.table_uri} is not there",
                seen=place,
                valid="all files that its log names",
                hint="restore the file, or take it out of the table's log with deltalake's repair",
            )
        root = locate(found.table.table_uri, Path.cwd())[1]
    for each in sorted(infos, key=lambda info: info.path):
        if each.type == fs.FileType.File:
            file = File(filesystem, each.path, each.size, each.mtime_ns)
            yield file, _constants(each.path, root) if each.path != root else ()


def _constants(path: str, root: str) -> Constants:
    """Return the columns that the folders between root and file give, as `name=value`."""
    folders = PurePosixPath(path).relative_to(root).parts[:-1]
    pairs = (folder.split("=", 1) for folder in folders if "=" in folder)
    return tuple((n, None if v == NULL_PARTITION else unquote(v)) for n, v in pairs)


def _lines(file: File) -> int:
    count = 0
    with file.open() as stream:
        while part := stream.read(READ_BYTES):
            count += part.count(b"\n")
    return count


def _parquet_pieces(
    source: str, listed: Sequence[tuple[File, Constants]]
) -> tuple[tuple[Piece, ...], list[str]]:
    """Return the pieces, and the columns of the first file."""
    pieces: list[Piece] = []
    names: list[str] = []
    for number, (file, constants) in enumerate(listed):
        try:
            with file.filesystem.open_input_file(file.path) as opened:
                parquet = pq.ParquetFile(opened)
                footer, schema = parquet.metadata, parquet.schema_arrow
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"{source} cannot be read as Parquet",
                seen=f"{file.path}: {str(error).splitlines()[0]}",
                hint="write it again, or give it the ending of what it is",
            ) from error
        names = names or [*schema.names, *(name for name, _ in constants)]
        pieces += _pieces_of(file, number, footer, constants)
    return tuple(pieces), names


def _pieces_of(
    file: File, number: int, footer: pq.FileMetaData, constants: Constants
) -> Iterator[Piece]:
    groups: list[int] = []
    first = rows = size = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        size += footer.row_group(group).total_byte_size
        if rows >= PIECE_ROWS or group == footer.num_row_groups - 1:
            yield ParquetPiece(file, number, first, rows, tuple(groups), size, constants)
            first += rows
            groups, rows, size = [], 0, 0


def _manifest(found: Resolved, files: Sequence[File]) -> dict[str, Any]:
    if found.table is not None:
        return manifest_of(found.table)
    return {"format": found.format, "files": [file.manifest() for file in files]}


def _column_names(source: str, format_name: str, files: tuple[File, ...]) -> list[str]:
    """Return the columns that the input has, by its first rows.

    Raises:
        InputError: it has no rows.
    """
    spec = DatasetSpec(source=source, target=KEY)  # the target is of no importance here
    if format_name == "csv":
        return list(CsvSource(spec, files).schema.names)
    chunks = JsonlSource(spec, files).chunks()
    rows = next((chunk.rows for chunk in chunks if chunk.rows.num_rows), None)
    if rows is None:
        raise InputError(
            f"{source} holds no rows", valid="one JSON object to a line", hint="check --input"
        )
    return list(rows.schema.names)


def _hidden(info: fs.FileInfo, folder: str) -> bool:
    """Whether a file, or a folder on the way to it, is a writer's own, like `_SUCCESS`."""
    parts = PurePosixPath(info.path).relative_to(folder).parts
    return any(part.startswith((".", "_")) for part in parts)


def _require_columns(names: Iterable[str], job: Job) -> None:
    there = tuple(names)
    missing = [name for name in job.needed if name not in there]
    missing += [name for name in job.key if name not in there and KEY not in there]
    if missing:
        raise InputError(
            "the input lacks columns that the model needs",
            seen=f"missing {', '.join(missing)}; there are {', '.join(there) or 'none'}",
            valid=", ".join(job.needed),
            hint=job.advice,
        )


def _is_delta(source: str) -> bool:
    return not Path(source).is_file() and deltalake.DeltaTable.is_deltatable(source)


def _delta(source: str) -> Resolved:
    try:
        table = deltalake.DeltaTable(source)
        dataset_of(table)  # it refuses what only other readers know
    except TableNotFoundError as error:
        raise _missing(source) from error
    except DeltaError as error:
        raise InputError(
            f"the Delta table {source} cannot be read",
            seen=error,
            valid="a table without deletion vectors and column mapping",
            hint="REORG or rewrite the table, or give its Parquet files as the input",
        ) from error
    files = file_paths(table)
    if not files:
        raise InputError(f"the table {source} has no rows", hint="give a table with rows in it")
    return Resolved("parquet", tuple(sorted(files)), table)


def _formats(paths: Iterable[str]) -> set[str]:
    """Return the formats that the endings of files, or of the files in folders, tell."""
    names = [name for path in paths for name in _within(Path(path)) or [path]]
    return {kind for name in names if (kind := format_of(name)) is not None}


def _within(folder: Path) -> list[str]:
    """Return the files of a folder and the folders in it, but for a writer's own."""
    parts = ((file, file.relative_to(folder).parts) for file in folder.rglob("*"))
    return [str(file) for file, names in parts if not any(n.startswith((".", "_")) for n in names)]


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
