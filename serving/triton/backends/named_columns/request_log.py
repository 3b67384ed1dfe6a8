"""Keeps a sample of the requests and their answers, as lines of JSON in a folder of the home.

A thread writes what `execute` hands over, once a second, so a request waits for nothing. Millrace
collects the files into a table (`serving/request_table.py`). A process that is killed loses its
last second. If the folder is full, or cannot be written, requests are counted and not kept, and
the thread tries again after half a minute; they are answered all the same.
"""

import fcntl
import json
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

OPEN, CLOSED = ".open", ".jsonl"
"""Ends of the names of a file that is written, and of one that may be collected."""
WRITE_SECONDS = 1.0
FILE_SECONDS = 30.0
FILE_BYTES = 8 * 2**20
MOST_WAITING = 5_000
"""Requests that wait to be written; more are counted and not kept."""
PAUSE_SECONDS = 30.0
GIB = 2**30


class RequestLog:
    """The log of one front step.

    Args:
        folder: the folder of the model's files.
        spec: `sample`, `max_gib` and `masked` of `serving.request_log`.
        describe: returns the rows of a request and their answers, without the masked columns.
        warn: reports why requests are not kept.
    """

    def __init__(
        self,
        folder: Path,
        spec: Mapping[str, Any],
        describe: Callable[[Any], Sequence[Mapping[str, Any]]],
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._sample = folder, float(spec["sample"])
        self._most_bytes = float(spec["max_gib"]) * GIB
        self._describe, self._warn = describe, warn
        self._waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._file: Path | None = None
        self._opened = 0.0
        self._closed = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def wants(self) -> bool:
        """Return whether a request belongs to the sample."""
        return random.random() < self._sample

    def add(self, request: Any) -> None:
        """Hand a request over; it is dropped if too many wait."""
        try:
            self._waiting.put_nowait((time.time(), request))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._closed.set()
        self._thread.join(5 * WRITE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(WRITE_SECONDS):
            self._write()
        self._write()
        with suppress(OSError):
            self._rename()

    def _write(self) -> None:
        """Write what waits; where that fails, it is lost, and the next try comes later."""
        lines = list[str]()
        try:
            self._take(lines)
            if lines:
                self._append("".join(f"{line}\n" for line in lines).encode())
            if self._file and time.monotonic() - self._opened > FILE_SECONDS:
                self._rename()
        except Exception as error:  # whatever it is, the next requests are to be kept
            self.dropped += max(len(lines), 1)
            self._warn(f"{self.dropped:,} requests are not kept: {error}")
            self._closed.wait(PAUSE_SECONDS)

    def _take(self, lines: list[str]) -> None:
        """Add a line for each row that waits."""
        with suppress(queue.Empty):
            while True:
                at, request = self._waiting.get_nowait()
                lines.extend(json.dumps({"time": at, **row}) for row in self._describe(request))

    def _append(self, data: bytes) -> None:
        with self._locked() as opened:
            before = os.fstat(opened).st_size
            if os.write(opened, data) < len(data):  # half a line would be no JSON
                os.ftruncate(opened, before)
                raise OSError("the disk is full")
        if before + len(data) >= FILE_BYTES:
            self._rename()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file, and lock it: who collects it may take it away between two writes."""
        while True:
            if self._file is None or not self._file.exists():
                self._file, self._opened = self._new_file(), time.monotonic()
            opened = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX)
                if os.fstat(opened).st_nlink and self._file.exists():
                    yield opened
                    return
            finally:
                os.close(opened)

    def _new_file(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken = sum(map(_size, self._folder.iterdir()))
        if taken > self._most_bytes:
            raise OSError(f"{self._folder} has {taken:,} bytes that nobody collected")
        return self._folder / f"{time.time_ns()}-{os.getpid()}{OPEN}"

    def _rename(self) -> None:
        """Close the file, so that it may be collected."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                self._file.rename(self._file.with_suffix(CLOSED))
            self._file = None


def _size(file: Path) -> int:
    """Return the bytes of a file; 0 if it was collected meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
