"""A folder on any file system: small JSON files and Parquet files, each there whole or not."""

import json
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
    """A folder by its URI or path."""

    uri: str

    @cached_property
    def place(self) -> tuple[pa.fs.FileSystem, str]:
        """Its file system, and its path there."""
        return resolve(self.uri, Path())

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's file system."""
        return isinstance(self.place[0], pa.fs.LocalFileSystem)

    def within(self, name: str) -> "Folder":
        """Return a folder in it."""
        return Folder(f"{self.uri}/{name}")

    def make(self) -> None:
        """Make it, unless it is there."""
        filesystem, path = self.place
        filesystem.create_dir(path, recursive=True)

    def exists(self) -> bool:
        """Return whether it is there."""
        filesystem, path = self.place
        return bool(filesystem.get_file_info(path).type != pa.fs.FileType.NotFound)

    def files(self, ending: str) -> list[pa.fs.FileInfo]:
        """Return its files with an ending, sorted by path; none where it is not there."""
        filesystem, path = self.place
        found = filesystem.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        files = [f for f in found if f.type == pa.fs.FileType.File and f.path.endswith(ending)]
        return sorted(files, key=lambda file: file.path)

    def folders(self) -> list[str]:
        """Return the names of the folders in it, sorted."""
        filesystem, path = self.place
        found = filesystem.get_file_info(pa.fs.FileSelector(path, allow_not_found=True))
        return sorted(f.base_name for f in found if f.type == pa.fs.FileType.Directory)

    def write_json(self, name: str, values: Any) -> None:
        """Write a file, whole or not at all."""
        self._write(name, lambda stream: stream.write(json.dumps(values).encode()))

    def read_json(self, name: str) -> Any:
        """Return what a file holds; None where it is not there."""
        filesystem, path = self.place
        try:
            with filesystem.open_input_stream(f"{path}/{name}") as stream:
                return json.loads(stream.read())
        except FileNotFoundError:
            return None

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a Parquet file, whole or not at all."""
        self._write(name, lambda stream: pq.write_table(table, stream))

    def read_tables(self, schema: pa.Schema) -> pa.Table:
        """Return the rows of all Parquet files in it."""
        filesystem, _ = self.place
        tables = [pq.read_table(f.path, filesystem=filesystem) for f in self.files(".parquet")]
        return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])

    def remove(self) -> None:
        """Remove it and all that is in it, if it is there."""
        if self.exists():
            filesystem, path = self.place
            filesystem.delete_dir(path)

    def _write(self, name: str, write: Any) -> None:
        filesystem, path = self.place
        self.make()
        # A draft's name is nobody else's: the same file may be written twice at the same time.
        draft = f"{path}/{name}{DRAFT}-{uuid4().hex[:8]}"
        with filesystem.open_output_stream(draft) as stream:
            write(stream)
        filesystem.move(draft, f"{path}/{name}")
