"""A folder on any file system: JSON and Parquet files, each of which is complete or absent."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from millrace.models.data.sources.find_files import resolve

DRAFT = ".draft"


@dataclass(frozen=True)
class Folder:
    """A folder, named by its URI or path."""

    uri: str

    @cached_property
    def location(self) -> tuple[pa.fs.FileSystem, str]:
        """The folder's file system, and the folder's path in that file system."""
        return resolve(self.uri, Path())

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's file system."""
        return isinstance(self.location[0], pa.fs.LocalFileSystem)

    def subfolder(self, name: str) -> "Folder":
        """Return a folder inside this one."""
        return Folder(f"{self.uri}/{name}")

    def make(self) -> None:
        """Create the folder unless it exists."""
        filesystem, path = self.location
        filesystem.create_dir(path, recursive=True)

    def exists(self) -> bool:
        """Return whether the folder exists."""
        filesystem, path = self.location
        return bool(filesystem.get_file_info(path).type != pa.fs.FileType.NotFound)

    def files(self, ending: str) -> list[pa.fs.FileInfo]:
        """Return the files with an ending, sorted by path; none if the folder does not exist."""
        files = [f for f in self._list(pa.fs.FileType.File) if f.path.endswith(ending)]
        return sorted(files, key=lambda file: file.path)

    def folders(self) -> list[str]:
        """Return the names of the subfolders, sorted; none if the folder does not exist."""
        return sorted(folder.base_name for folder in self._list(pa.fs.FileType.Directory))

    def write_json(self, name: str, values: Any) -> None:
        """Write a JSON file atomically."""
        self._write(name, lambda stream: stream.write(json.dumps(values).encode()))

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file; None if there is no such file."""
        filesystem, path = self.location
        try:
            with filesystem.open_input_stream(f"{path}/{name}") as stream:
                return json.loads(stream.read())
        except FileNotFoundError:
            return None

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a Parquet file atomically."""
        self._write(name, lambda stream: pq.write_table(table, stream))

    def read_tables(self, schema: pa.Schema) -> pa.Table:
        """Return the rows of all Parquet files of the folder, cast to `schema`."""
        filesystem, _ = self.location
        tables = [pq.read_table(f.path, filesystem=filesystem) for f in self.files(".parquet")]
        return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])

    def remove(self) -> None:
        """Delete the folder and everything in it; do nothing if it does not exist."""
        if self.exists():
            filesystem, path = self.location
            filesystem.delete_dir(path)

    def delete(self, name: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        filesystem, path = self.location
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{path}/{name}")

    def _list(self, kind: pa.fs.FileType) -> list[pa.fs.FileInfo]:
        filesystem, path = self.location
        try:
            found = filesystem.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        except FileNotFoundError:  # the folder was made while Arrow looked why it cannot list it
            return []
        return [each for each in found if each.type == kind]

    def _write(self, name: str, write: Callable[[Any], object]) -> None:
        filesystem, path = self.location
        self.make()
        # Two processes may write the same file at the same time, so each draft has its own name.
        draft = f"{path}/{name}{DRAFT}-{uuid4().hex[:8]}"
        try:
            with filesystem.open_output_stream(draft) as stream:
                write(stream)
            filesystem.move(draft, f"{path}/{name}")
        except BaseException:
            with suppress(OSError):
                filesystem.delete_file(draft)
            raise
