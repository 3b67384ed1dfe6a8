"""Finds the files of a source: a path, a glob or a URI, on this machine or in an object store."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import file_digest
from pathlib import Path
from posixpath import basename, dirname
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import fsspec
import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow import fs

from millrace.models.common.errors import InputError, TransientError, missing_file
from millrace.models.common.home_version import FILE as HOME_VERSION
from millrace.models.config.dataset_spec import FILE_FORMATS
from millrace.models.data.sources.source import Source, SourceFile, open_error, read_error

ENDINGS = {name: known.endings for name, known in FILE_FORMATS.items()}
TEXT_ENDINGS = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp"),
    *(".cs", ".go", ".java", ".js", ".ts", ".jsx", ".tsx", ".kt", ".rs", ".rb", ".php", ".swift"),
    *(".scala", ".sh", ".sql", ".html", ".css", ".toml", ".yaml", ".yml"),
)
"""File name endings of plain text, one row per file."""
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
FILE = "file://"
RECENT_NS = 2_000_000_000
"""A file that was written so recently may be written again without another modification time."""
DELTA_LOG = "_delta_log"
_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True)
class File:
    """A file of a source, with its state when it was found.

    Attributes:
        filesystem: its file system.
        path: its absolute path on that file system.
        size: its size in bytes.
        modified: when it was last written, nanoseconds since 1970; None if unknown.
    """

    filesystem: fs.FileSystem
    path: str
    size: int
    modified: int | None

    @property
    def local(self) -> bool:
        """Whether the file is on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """Open the file as a stream; decompress it according to its ending."""
        return self.filesystem.open_input_stream(self.path, compression="detect")

    def require_unchanged(self) -> None:
        """Check that size and modification time are the same as when the file was found.

        Raises:
            TransientError: the file has changed.
        """
        now = self.filesystem.get_file_info(self.path)
        if (now.size, now.mtime_ns) != (self.size, self.modified):
            raise TransientError(
                f"{self.path} changed while it was read",
                hint="run again when the file is fully written",
            )

    def described(self) -> SourceFile:
        """Return the file with its SHA-256.

        A remote file has its modification time instead of a digest, because a digest would need a
        second download.

        Raises:
            TransientError: the file has changed since it was found.
        """
        self.require_unchanged()
        if not self.local:
            return SourceFile(self.path, self.size, self.modified)
        is_old = self.modified is not None and time.time_ns() - self.modified > RECENT_NS
        digest = self.sha256()
        self.require_unchanged()  # or the digest would be of other content than the rows
        return SourceFile(self.path, self.size, self.modified if is_old else None, digest)

    def sha256(self) -> str:
        """Return the digest of a local file's content."""
        with Path(self.path).open("rb") as stream:
            return file_digest(stream, "sha256").hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Return path, size and SHA-256, or for a remote file path, size and modification time.

        Raises:
            TransientError: the file has changed since it was found.
        """
        return manifest_of(self.described())


def manifest_of(file: SourceFile) -> dict[str, Any]:
    """Return a file as a manifest has it."""
    if file.sha256 is None:
        return {"path": file.path, "size": file.size, "modified_ns": file.modified}
    return {"path": file.path, "size": file.size, "sha256": file.sha256}


@dataclass(frozen=True)
class FileSource(Source):
    """A source whose rows are in files of one format.

    Attributes:
        format: name of the format, as in `dataset.format`.
        files: the files, sorted by path.
        header: the file that says which columns there are; None: the first of the files.
    """

    format: ClassVar[str]
    files: tuple[File, ...]
    header: File | None = field(default=None, kw_only=True)

    @property
    def first(self) -> File:
        """The file that says which columns there are."""
        return self.header or self.files[0]

    def describe(self) -> dict[str, Any]:
        """Return the files with sizes and digests."""
        return {"format": self.format, "files": [file.manifest() for file in self.files]}

    def found(self) -> tuple[SourceFile, ...]:
        """Return the files, without digests."""
        return tuple(SourceFile(file.path, file.size, file.modified) for file in self.files)

    def only(self, files: Sequence[SourceFile]) -> Self:
        """Return the source of some of the files; their columns are those of all files."""
        paths = {file.path for file in files}
        chosen = tuple(file for file in self.files if file.path in paths)
        return replace(self, files=chosen, header=self.first)

    def local_files(self) -> tuple[Path, ...]:
        """Return the files that are on this machine."""
        return tuple(Path(file.path) for file in self.files if file.local)

    def read_files(self) -> tuple[SourceFile, ...]:
        """Return the files after they were read, with digests.

        Raises:
            TransientError: a file has changed since it was found.
        """
        return tuple(file.described() for file in self.files)

    def is_same(self, old: SourceFile, new: SourceFile) -> bool:
        """Return whether a file has the content that it had when it was read.

        The same size and time are enough; with another time, the digest decides.
        """
        if old.size != new.size:
            return False
        if old.modified is not None and old.modified == new.modified:
            return True
        file = next(each for each in self.files if each.path == new.path)
        return file.local and file.sha256() == old.sha256


@contextmanager
def naming(file: File) -> Iterator[None]:
    """Name the file if it cannot be read; what a store fails at is the source's to say.

    Raises:
        InputError: the file, which is on this machine, cannot be read.
    """
    try:
        yield
    except OSError as error:
        if not file.local:
            raise
        raise read_error(file.path, error) from error


def find_files(source: str, folder: Path) -> tuple[File, ...]:
    """Return the files that `source` names, sorted by path.

    Args:
        source: a path relative to `folder`, a glob or a URI.
        folder: folder of the pipeline file.

    Raises:
        InputError: there is no such file.
        TransientError: the store cannot be reached.
    """
    filesystem, path = resolve(source, folder)
    try:
        paths = _matches(filesystem, path) if _is_glob(path) else [path]
        infos = filesystem.get_file_info(paths) if paths else []
    except OSError as error:
        raise open_error(source, error) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"beside the files of {source} there is one whose name is not UTF-8",
            seen=ascii(error.object),
            hint="rename that file",
        ) from error
    files = [
        File(filesystem, info.path, info.size, info.mtime_ns)
        for info in infos
        if info.type == fs.FileType.File
    ]
    if not files:
        raise _missing_source(source, path, infos)
    return tuple(files)


def _matches(filesystem: fs.FileSystem, glob: str) -> list[str]:
    found = sorted(ArrowFSWrapper(filesystem).glob(glob))
    return own_files(found, glob, local=isinstance(filesystem, fs.LocalFileSystem))


def own_files(paths: Sequence[str], glob: str, *, local: bool) -> list[str]:
    """Return those of the files that a glob matches which may be data of the user's.

    Others are in a hidden folder, in a Delta table or in a Millrace home below the glob's fixed
    folders: `**/*.parquet` beside a home would read what the last run wrote.

    Args:
        paths: absolute paths that the glob matches.
        glob: the glob, an absolute path.
        local: whether the files are on this machine; elsewhere only hidden folders are known.
    """
    root = dirname(_WILDCARD.split(glob, maxsplit=1)[0])
    names_hidden = "/." in glob.removeprefix(root)
    known = {root: True}

    def is_own(path: str) -> bool:
        if path not in known:
            hidden = basename(path).startswith(".") and not names_hidden
            marks = (DELTA_LOG, HOME_VERSION) if local else ()
            foreign = hidden or any(Path(path, mark).exists() for mark in marks)
            known[path] = not foreign and (len(path) <= len(root) or is_own(dirname(path)))
        return known[path]

    return [path for path in paths if is_own(path)]


def resolve(source: str, folder: Path) -> tuple[fs.FileSystem, str]:
    """Return the file system of a source and the path on it.

    Raises:
        InputError: no library knows the URI's scheme.
        TransientError: the store cannot be reached; S3 is asked for the region of the bucket.
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
                hint="install the fsspec package for this scheme, or fix the URI",
            ) from error
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(other))
    except OSError as error:
        raise open_error(source, error) from error
    return filesystem, path


def strip_file_scheme(source: str) -> str:
    """Return a `file://` URI as a path, and any other source as it is."""
    return unquote(source.removeprefix(FILE)) if source.startswith(f"{FILE}/") else source


def root_of(source: str, folder: Path) -> str:
    """Return the folder of a file, or the last folder of a glob before its first wildcard.

    The folder depends on the glob alone, so a file's path relative to it does not depend on which
    other files match.
    """
    fixed = _WILDCARD.split(resolve(source, folder)[1], maxsplit=1)[0]
    return dirname(fixed)


def format_of(path: str) -> str | None:
    """Return the name in `FILE_FORMATS` for the file's ending; None for any other ending."""
    name = _strip_compression(path)
    return next((kind for kind, endings in ENDINGS.items() if name.endswith(endings)), None)


def is_text(path: str) -> bool:
    """Return whether a file is plain text by its ending."""
    return _strip_compression(path).endswith(TEXT_ENDINGS)


def _strip_compression(path: str) -> str:
    """Return a file's name in lower case, without the endings of compressed files."""
    name = path.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return name


def _is_glob(path: str) -> bool:
    return _WILDCARD.search(path) is not None


def _missing_source(source: str, path: str, infos: Sequence[fs.FileInfo]) -> InputError:
    """Return the error for a source without files; `infos` describe what the path is instead."""
    if _is_glob(path):
        return InputError(
            f"the glob {source} matches no file",
            seen=path,
            hint="paths are relative to the pipeline file's folder; ** goes into subfolders, but "
            "not into hidden ones, Delta tables and Millrace homes",
        )
    if infos[0].type == fs.FileType.Directory:
        return InputError(
            "the source is a folder and not a Delta table",
            seen=path,
            valid="a file, a glob, or a folder with a _delta_log",
            hint=f"for the Parquet files in the folder, write {source.rstrip('/')}/*.parquet",
        )
    if "://" not in source:
        return missing_file(Path(path), "the source file", "the pipeline file's folder")
    return InputError("the source file does not exist", seen=source, hint="check the URI")
