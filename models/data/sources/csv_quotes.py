"""Finds rows of a CSV file that a stray quote has swallowed into a cell.

Arrow reads `"a"b` as `ab`, so text after a closing quote is no error. Where the quoted text has
line breaks, it is most likely other rows, between a stray quote and the next one. Such a cell is
not valid CSV (RFC 4180), and its row is refused. The file is looked at itself only if a cell has a
line break and a delimiter in it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.arrays import Indices
from millrace.models.data.coerce import Mask, mask
from millrace.models.data.sources.find_files import File

REASON = "a quoted cell has line breaks, and text after its closing quote"
READ_BYTES = 8 * 1024 * 1024
"""Bytes that are read at a time."""
MOST_BYTES = 16 * 1024 * 1024
"""Largest quoted cell that is looked at: Arrow refuses a row of that size."""
_BREAK = re.compile(rb"\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class QuoteCheck:
    """Looks at the cells of one CSV file.

    Attributes:
        file: the file.
        delimiter: what separates cells.
    """

    file: File
    delimiter: str = field(default=",")

    def look_at(self, batch: pa.RecordBatch) -> tuple[int, Indices]:
        """Return how many cells have line breaks, and the rows that are to be refused, ascending.

        Args:
            batch: rows of the file, every column as text.

        Returns:
            The number of cells with line breaks in the other rows, and the indices of the rows.
        """
        cells = np.zeros(batch.num_rows, dtype=np.int64)
        refused = np.zeros(batch.num_rows, dtype=np.bool_)
        for column in batch.columns:
            if not _has_break(column):
                continue
            broken = mask(pc.match_substring(column, "\n"))
            cells += broken
            refused |= self._refused(column, broken)
        return int(cells[~refused].sum()), np.flatnonzero(refused)

    def _refused(self, column: pa.Array, broken: Mask) -> Mask:
        suspect = broken & mask(pc.match_substring(column, self.delimiter))
        for row in np.flatnonzero(suspect):
            suspect[row] = _digest(column[row].as_py().encode()) in self._swallowing
        return suspect

    @cached_property
    def _swallowing(self) -> frozenset[bytes]:
        """Digests of the cells that are not valid, as Arrow reads them."""
        with self.file.open() as stream:
            return frozenset(map(_digest, find_swallowing(stream, self.delimiter)))


def find_swallowing(stream: BinaryIO, delimiter: str) -> Iterator[bytes]:
    """Yield each cell with line breaks in quotes and text after them, as Arrow reads it.

    Args:
        stream: a CSV file.
        delimiter: what separates cells.
    """
    ends = rf"{re.escape(delimiter)}\r\n"
    starts = re.compile(rf'(?<=[{ends}])"'.encode())
    # Possessive, so that an escaped quote is never taken for the closing one.
    quoted = re.compile(rf'(?<=[{ends}])"([^"]*+(?:""[^"]*+)*+)(?:"([^{ends}]*+)|\Z)'.encode())
    rest, is_last = b"\n", False  # a cell starts after a delimiter, and so does the first one
    while not is_last and len(rest) <= MOST_BYTES:
        block = stream.read(READ_BYTES)
        is_last = not block
        text, done = rest + block.removeprefix(_BOM), 0
        for cell in quoted.finditer(text):
            if cell.end() == len(text) and not is_last:
                break
            done = cell.end()
            if cell[2] and b"\n" in cell[1]:
                yield cell[1].replace(b'""', b'"') + cell[2]
        opened = starts.search(text, done)
        rest = text[opened.start() - 1 if opened else -1 :]


def describe_line_breaks(cells: int) -> str:
    """Return what to look for where cells of CSV files have line breaks."""
    return (
        f"cells of the CSV files that contain line breaks: {cells:,}; where they are not meant, a "
        "stray quote has joined a row with the next ones"
    )


def _has_break(column: pa.Array) -> bool:
    data = column.buffers()[2]
    return data is not None and _BREAK.search(data) is not None


def _digest(cell: bytes) -> bytes:
    return blake2b(cell, digest_size=16).digest()
