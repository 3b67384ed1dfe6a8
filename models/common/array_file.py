"""Arrays in npy files that are written and read in parts, so that they never fill the memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.lib import format as npy

from millrace.models.common.arrays import Array


class ArrayWriter:
    """Writes an array to an npy file in parts, in order; a context manager.

    Args:
        path: the file; `numpy.load` reads it, also memory-mapped.
        rows: number of rows of all parts together.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self._file: BinaryIO = path.open("wb")
        self._rows = rows
        self._written = 0

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Close the file.

        Raises:
            ValueError: rows are missing.
        """
        self._file.close()
        if kind is None and self._written != self._rows:
            raise ValueError(f"{self._written} of {self._rows} rows were written")

    def append(self, part: Array) -> None:
        """Write the next rows, `[rows, …]`; dtype and width are those of the first part.

        Raises:
            ValueError: there are more rows than were announced.
        """
        if self._written + len(part) > self._rows:
            raise ValueError(f"more than {self._rows} rows")
        if not self._file.tell():
            shape = (self._rows, *part.shape[1:])
            descr = npy.dtype_to_descr(part.dtype)  # type: ignore[no-untyped-call]
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            npy.write_array_header_1_0(self._file, header)  # type: ignore[no-untyped-call]
        self._written += len(part)
        np.ascontiguousarray(part).tofile(self._file)


def read_parts(path: Path, rows: int) -> Iterator[Array]:
    """Yield an npy file's array in parts of at most `rows` rows, each memory-mapped by itself."""
    shape, dtype, begin = _read_header(path)
    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    for start in range(0, shape[0], rows):
        part = (min(rows, shape[0] - start), *shape[1:])
        yield np.memmap(path, dtype, "r", begin + start * row_bytes, part)


def rows_of(path: Path) -> int:
    """Return the number of rows of an npy file's array."""
    shape, _, _ = _read_header(path)
    return shape[0]


def _read_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, dtype and the position of the first value."""
    with path.open("rb") as file:
        npy.read_magic(file)  # type: ignore[no-untyped-call]
        shape, _, dtype = npy.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
        return shape, dtype, file.tell()
