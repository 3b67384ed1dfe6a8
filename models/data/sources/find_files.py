"""Finds the files of a source: a path, a glob or a URI, on this machine or an object store."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from posixpath import dirname
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow import fs

from millrace.models.common.errors import InputError, TransientError, missing_file
from millrace.models.data.sources.source import broken_off

ENDINGS = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
}
TEXT_ENDINGS = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp"),
    *(".cs", ".go", ".java", ".js", ".ts", ".jsx", ".tsx", ".kt", ".rs", ".rb", ".php", ".swift"),
    *(".scala", ".sh", ".sql", ".html", ".css", ".toml", ".yaml", ".yml"),
)
"""Files that are one row each."""
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
FILE = "file://"
_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True)
class File:
    """One file of a source, as it was when it was found.

    Attributes:
        filesystem: where it is.
        path: its path there, absolute.
        size: bytes.
        modified: when it was last written, nanoseconds since 1970; None where unknown.
    """

    filesystem: fs.FileSystem
    path: str
    size: int
    modified: int | None

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """Open it as a stream, decompressed by its ending."""
        return self.filesystem.open_input_stream(self.path, compression="detect")

    def require_unchanged(self) -> None:
        """Return if it has the size and the time of writing that it was found with.

        Raises:
            TransientError: it has not.
        """
        now = self.filesystem.get_file_info(self.path)
        if (now.size, now.mtime_ns) != (self.size, self.modified):
            raise TransientError(
                f"{self.path} changed while it was read",
                hint="run again once its writer is done",
            )

    def manifest(self) -> dict[str, Any]:
        """Return path, size and SHA-256.

        A remote file's time of writing stands for the digest, which would mean a second download.

        Raises:
            TransientError: the file has changed since it was found.
        """
        self.require_unchanged()
        if not self.local:
            return {"path": self.path, "size": self.size, "modified_ns": self.modified}
        with Path(self.path).open("rb") as stream:
            return {
                "path": self.path,
                "size": self.size,
                "sha256": file_digest(stream, "sha256").hexdigest(),
            }


def find_files(source: str, folder: Path) -> tuple[File, ...]:
    """Return the files that `source` names, sorted by path.

    Args:
        source: a path relative to `folder`, a glob or a URI.
        folder: folder of the pipeline file.

    Raises:
        InputError: nothing is there.
        TransientError: the store cannot be reached.
    """
    filesystem, path = resolve(source, folder)
    try:
        paths = sorted(ArrowFSWrapper(filesystem).glob(path)) if _is_glob(path) else [path]
        infos = filesystem.get_file_info(paths) if paths else []
    except OSError as error:
        raise broken_off(source, error) from error
    files = [_file(filesystem, info) for info in infos if info.type == fs.FileType.File]
    if not files:
        raise _nothing(source, path, infos)
    return tuple(files)


def require_content(files: Sequence[File]) -> None:
    """Refuse files without a byte, where rows are expected.

    Raises:
        InputError: a file is empty.
    """
    for file in files:
        if file.size == 0:
            raise InputError("the source file is empty", seen=file.path, valid="a file with rows")


def resolve(source: str, folder: Path) -> tuple[fs.FileSystem, str]:
    """Return the file system of a source and the path on it.

    Raises:
        InputError: nothing knows the URI's scheme.
    """
    if "://" not in source:
        return fs.LocalFileSystem(), str(folder.resolve() / Path(source).expanduser())
    try:
        filesystem, path = fs.FileSystem.from_uri(source)
    except pa.ArrowInvalid:
        try:
            other, path = fsspec.core.url_to_fs(source)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"the source {source} cannot be opened",
                seen=error,
                hint="install the fsspec package for this scheme, or mend the URI",
            ) from error
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(other))
    return filesystem, path


def plain(source: str) -> str:
    """Return a URI of this machine's file system as a path, and any other source as it is."""
    return unquote(source.removeprefix(FILE)) if source.startswith(f"{FILE}/") else source


def root_of(source: str, folder: Path) -> str:
    """Return the folder that a glob starts in, or that a file is in, as a path on its file system.

    It depends on the glob alone: a file's path from there stays when others come and go.
    """
    fixed = _WILDCARD.split(resolve(source, folder)[1], maxsplit=1)[0]
    return dirname(fixed)


def format_of(path: str) -> str | None:
    """Return parquet, csv or jsonl by the file's ending, None where it tells nothing."""
    name = _decompressed(path)
    for kind, endings in ENDINGS.items():
        if name.endswith(endings):
            return kind
    return None


def is_text(path: str) -> bool:
    """Return whether a file is plain text by its ending."""
    return _decompressed(path).endswith(TEXT_ENDINGS)


def _decompressed(path: str) -> str:
    """Return the name, in small letters, that a compressed file's contents have."""
    name = path.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return name


def _file(filesystem: fs.FileSystem, info: fs.FileInfo) -> File:
    return File(filesystem, info.path, info.size, info.mtime_ns)


def _is_glob(path: str) -> bool:
    return _WILDCARD.search(path) is not None


def _nothing(source: str, path: str, infos: Sequence[fs.FileInfo]) -> InputError:
    """Return the error for a source without a file, `infos` being what was there instead."""
    if _is_glob(path):
        return InputError(
            f"the glob {source} matches no file",
            seen=path,
            hint="paths are relative to the pipeline file's folder; ** goes into subfolders",
        )
    if infos[0].type == fs.FileType.Directory:
        return InputError(
            "the source is a folder and not a Delta table",
            seen=path,
            valid="a file, a glob, or a folder with a _delta_log",
            hint=f"write {source.rstrip('/')}/*.parquet for the files in it",
        )
    if "://" not in source:
        return missing_file(Path(path), "the source file")
    return InputError("the source file does not exist", seen=source, hint="check the URI")
