"""Follow the file to which the guard writes arrivals: the lines that came since the last look."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from millrace.serving.guard.arrivals_table import SCHEMA, parse_lines

MOST_BYTES = 32 * 2**20
"""Bytes of a file that are read at a look; the rest is read at the next one."""
QUIET_LOOKS = 30
"""After how many looks without a line a rotated file is closed: Envoy goes on writing to it until
it opens the new one.
"""


@dataclass
class _OpenFile:
    file: BinaryIO
    inode: int
    position: int
    quiet: int = 0

    def new_lines(self) -> bytes:
        """Return the whole lines since the last look."""
        if os.fstat(self.file.fileno()).st_size < self.position:  # it was emptied
            self.position = 0
        self.file.seek(self.position)
        new = self.file.read(MOST_BYTES)
        whole = new[: new.rfind(b"\n") + 1]
        if not whole and len(new) == MOST_BYTES:  # no line is so long
            whole = new
        self.position += len(whole)
        self.quiet = 0 if whole else self.quiet + 1
        return whole


@dataclass
class ArrivalsTail:
    """Reads on from where it stopped. Lines from before the first look are not read.

    Attributes:
        path: the file that the guard writes to; it is replaced at each rotation.
    """

    path: Path
    _files: list[_OpenFile] = field(default_factory=list, init=False)
    _is_first: bool = field(default=True, init=False)

    def read(self) -> Any:
        """Return the new whole lines as a table of `SCHEMA`; none where there is no record.

        Raises:
            OSError: the file cannot be read.
        """
        self._open()
        tables = [table for each in self._files for table in parse_lines(each.new_lines())]
        for each in self._files[:-1]:
            if each.quiet >= QUIET_LOOKS:
                each.file.close()
                self._files.remove(each)
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    def _open(self) -> None:
        """Open the file if it is not the one that was opened last."""
        is_first, self._is_first = self._is_first, False
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        found = os.fstat(file.fileno())
        if self._files and self._files[-1].inode == found.st_ino:
            file.close()
            return
        self._files.append(_OpenFile(file, found.st_ino, found.st_size if is_first else 0))
