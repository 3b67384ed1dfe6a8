"""Read recorded arrivals: the guard's lines, and the compact files that are made of them."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.serving.guard.arrivals_files import rotated_at
from millrace.serving.guard.arrivals_log import COLUMNS, END, FOLDER

log = logging.getLogger("millrace")

BLOCK_BYTES = 8 * 2**20
"""Bytes that are read at a time; a longer line is damaged."""
DAMAGED = b"?"
"""How what is left of a line that is too long begins, so that it is no line."""
REPLACEMENT = "\ufffd"
"""What bytes become that are no UTF-8."""
NUMBERS = ("start_us", "rows", "bytes", "microseconds", "status")
MOST = 5_000_000
"""Requests that are read at a time; they take about a gigabyte."""
UNKNOWN = -1
"""A duration or a status that Envoy did not know: the client did not wait for the answer."""
REFUSED_HTTP, REFUSED_GRPC = tuple(range(400, 500)), (3, 5, 8, 12, 16)
"""Statuses of requests that no model answered, as they were wrong."""
SCHEMA = pa.schema(
    [
        ("start_us", pa.int64()),
        ("model", pa.dictionary(pa.int32(), pa.string())),
        ("protocol", pa.dictionary(pa.int32(), pa.string())),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("microseconds", pa.int64()),
        ("status", pa.int64()),
    ]
)
PATTERNS = {
    "start_us": r"^[0-9]{16}$",
    "rows": r"^[0-9]{1,15}$",
    "bytes": r"^[0-9]{1,15}$",
    "microseconds": r"^([0-9]{1,15}|-)$",
    "status": r"^([0-9]{1,3}|-)$",
    "end": rf"^\{END}$",
}
TRIES = 5
"""How often reading begins again, because a file was compacted meanwhile."""


@dataclass(frozen=True)
class RecordedArrivals:
    """Requests of a model in the order of their starts; all arrays are `[n]`.

    Attributes:
        times: float64, seconds since 1970.
        rows: int64, rows of each request; 0 if they are not known.
        sizes: int64, bytes of each request.
        seconds: float64, from the first byte of the request to the last one of the answer; NaN if
            it had none.
        statuses: int64, of HTTP or of gRPC; `UNKNOWN` if the client did not wait.
        is_grpc: bool.
    """

    times: NDArray[np.float64]
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seconds: NDArray[np.float64]
    statuses: NDArray[np.int64]
    is_grpc: NDArray[np.bool_]

    @property
    def is_refused(self) -> NDArray[np.bool_]:
        """Which requests no model answered, as they were wrong, bool `[n]`."""
        by_grpc, by_http = (np.isin(self.statuses, each) for each in (REFUSED_GRPC, REFUSED_HTTP))
        return np.asarray(np.where(self.is_grpc, by_grpc, by_http), np.bool_)

    def chosen(self, places: NDArray[Any]) -> "RecordedArrivals":
        """Return some of the requests, by a mask or by their places."""
        return RecordedArrivals(*(each[places] for each in vars(self).values()))


def parse_lines(lines: Path | bytes) -> Iterator[Any]:
    """Yield the whole lines of a log, a file or its bytes, as tables of `SCHEMA`, in blocks.

    Damaged lines are left out.
    """
    with BytesIO(lines) if isinstance(lines, bytes) else lines.open("rb") as file:
        for block in _blocks(file):
            readable = block if _is_utf8(block) else _whole_lines(block)
            if readable.strip():
                yield _typed(_read_csv(readable))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, many at a time; of one that is too long, only its end."""
    rest = b""
    while read := file.read(BLOCK_BYTES):
        lines, newline, end = read.rpartition(b"\n")
        if newline:
            yield rest + lines + newline
            rest = end
        else:
            rest = rest + read if len(rest + read) < BLOCK_BYTES else DAMAGED
    if rest:
        yield rest + b"\n"


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole_lines(block: bytes) -> bytes:
    """Return the lines of a block that are UTF-8 and have all fields; this is slow."""
    lines = block.decode(errors="replace").split("\n")
    spaces = len(COLUMNS) - 1
    whole = (each for each in lines if each.count(" ") == spaces and REPLACEMENT not in each)
    return "".join(f"{each}\n" for each in whole).encode()


def _read_csv(lines: bytes) -> Any:
    return csv.read_csv(
        pa.BufferReader(lines),
        read_options=csv.ReadOptions(column_names=COLUMNS, block_size=2 * BLOCK_BYTES),
        parse_options=csv.ParseOptions(
            delimiter=" ", quote_char=False, invalid_row_handler=lambda _: "skip"
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(COLUMNS, pa.string()), strings_can_be_null=False
        ),
    )


def _typed(lines: Any) -> Any:
    for name, pattern in PATTERNS.items():
        lines = lines.filter(pc.match_substring_regex(lines[name], pattern))
    values = []
    for field in SCHEMA:
        column = lines[field.name]
        if field.name in NUMBERS:
            column = pc.replace_substring_regex(column, "^-$", str(UNKNOWN)).cast(pa.int64())
        values.append(column.cast(field.type) if field.name in NUMBERS else _encoded(column))
    return pa.Table.from_arrays(values, schema=SCHEMA)


def _encoded(column: Any) -> Any:
    return column.combine_chunks().dictionary_encode()


def compact(log: Path, target: Path) -> None:
    """Write the lines of a log as a compact file; the log stays.

    Requests that were refused as wrong are left out: nobody reads them, and one who sends many, for
    models that do not exist, would take the room of the others.
    """
    staged = target.with_suffix(".staged")
    staged.unlink(missing_ok=True)
    staged.touch(0o600)
    encoding = {"start_us": "DELTA_BINARY_PACKED", "microseconds": "DELTA_BINARY_PACKED"}
    options = {
        "compression": "zstd",
        "use_dictionary": ["model", "protocol", "rows", "bytes", "status"],
        "column_encoding": encoding,
    }
    with pq.ParquetWriter(staged, SCHEMA, **options) as writer:
        for table in parse_lines(log):
            ordered = table.sort_by("start_us")
            writer.write_table(_only_used_names(ordered.filter(~_arranged(ordered).is_refused)))
    staged.replace(target)


def _only_used_names(table: Any) -> Any:
    """Return a table without the names of models that it has no more rows of."""
    for number, field in enumerate(SCHEMA):
        if pa.types.is_dictionary(field.type):
            names = table[field.name].cast(pa.string())
            table = table.set_column(number, field, _encoded(names))
    return table


def read_arrivals(
    installation: Installation,
    models: Collection[str],
    start: float,
    end: float,
    most: int = MOST,
) -> RecordedArrivals:
    """Return the requests of models that started within start to end, seconds since 1970.

    Of more than `most` requests the oldest files are left out.

    Raises:
        OSError: a file cannot be read; one that is damaged is left out, and named in a warning.
        WorkError: files change all the time.
    """
    folder = installation.home / FOLDER
    for _ in range(TRIES):
        files = sorted(folder.glob("*"))
        with suppress(FileNotFoundError):  # it was compacted or removed meanwhile
            found = _newest(_read_files(files[::-1], models, start, end), most)
            if files == sorted(folder.glob("*")):  # else lines may be in a file that is not listed
                return _arranged(pa.concat_tables([SCHEMA.empty_table(), *found]))
    raise WorkError(
        "the record of arrivals changes faster than it can be read",
        seen=folder,
        hint="run the command again",
    )


def _read_files(
    files: Sequence[Path], models: Collection[str], start: float, end: float
) -> Iterator[Any]:
    wanted, seen = pa.array(sorted(models)), set[int]()
    for file in files:
        at, inode = rotated_at(file), file.stat().st_ino
        is_compacted = file.suffix == ".log" and file.with_suffix(".parquet") in files
        # during a rotation one file has two names
        if (at is not None and at < start) or is_compacted or inode in seen:
            continue
        seen.add(inode)
        yield pa.concat_tables(
            [SCHEMA.empty_table(), *(_chosen(each, wanted, start, end) for each in _tables(file))]
        )


def _chosen(table: Any, models: Any, start: float, end: float) -> Any:
    begun = table["start_us"]
    is_within = pc.and_(pc.greater_equal(begun, int(start * 1e6)), pc.less(begun, int(end * 1e6)))
    return table.filter(
        pc.and_(is_within, pc.is_in(table["model"].cast(pa.string()), value_set=models))
    )


def _newest(tables: Iterator[Any], most: int) -> list[Any]:
    """Return tables until they have so many rows; each is of one file, the newest first."""
    found, count = list[Any](), 0
    for each in tables:
        found.append(each)
        count += len(each)
        if count >= most:
            break
    return found


def _tables(file: Path) -> Iterator[Any]:
    if file.suffix == ".log":
        yield from parse_lines(file)
    elif file.suffix == ".parquet":
        try:
            yield pq.read_table(file, schema=SCHEMA)
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError) as error:  # Arrow's errors are one or the other
            log.warning("%s is damaged and is left out: %s", file, error)


def _arranged(table: Any) -> RecordedArrivals:
    table = table.sort_by("start_us")
    values = {name: table[name].to_numpy() for name in NUMBERS}
    duration = values["microseconds"] / 1e6
    return RecordedArrivals(
        times=values["start_us"] / 1e6,
        rows=values["rows"],
        sizes=values["bytes"],
        seconds=np.where(values["microseconds"] == UNKNOWN, np.nan, duration),
        statuses=values["status"],
        is_grpc=np.asarray(pc.equal(table["protocol"].cast(pa.string()), "grpc")),
    )
