"""Draws the pictures of a run in a process of its own, while the run goes on.

matplotlib takes half a second to import and a tenth of a second for a picture, and a thread would
take this time from the run. The program is `millrace.tasks.reports.draw_pictures`.
"""

import base64
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import describe_exit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[], "Figure"]
"""Draws a figure: a `partial` of a function at the top level of a module, with plain values."""
PROGRAM = "millrace.tasks.reports.draw_pictures"
SECONDS = 300.0
"""Time limit of the process, after its pictures are known."""


class Drawing:
    """The process that draws the pictures of one run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "drawing")
        self._sent: Future[None] | None = None
        self._pictures: Future[dict[str, bytes]] | None = None

    def begin(self, figures: Mapping[str, Draw]) -> None:
        """Start the process, and draw figures, by path."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", PROGRAM]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._sent = self._thread.submit(self._send, self._process, figures)

    def add(self, figures: Mapping[str, Draw]) -> None:
        """Draw the last figures, by path."""
        assert self._process is not None
        self._pictures = self._thread.submit(self._finish, self._process, figures)

    def pictures(self) -> dict[str, bytes]:
        """Wait until all figures are drawn, and return them as PNG, by path.

        Raises:
            WorkError: they cannot be drawn.
        """
        if self._sent is not None:
            self._sent.result()
        return {} if self._pictures is None else self._pictures.result()

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._thread.shutdown()

    @staticmethod
    def _send(process: subprocess.Popen[bytes], figures: Mapping[str, Draw]) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the end of the process says why
            process.stdin.write(pickle.dumps(dict(figures)))
            process.stdin.flush()

    @staticmethod
    def _finish(process: subprocess.Popen[bytes], figures: Mapping[str, Draw]) -> dict[str, bytes]:
        what = "drawing the pictures"
        try:
            out, errors = process.communicate(pickle.dumps(dict(figures)), SECONDS)
        except subprocess.TimeoutExpired as error:
            raise WorkError(f"{what} did not end within {SECONDS:g} s") from error
        if status := process.returncode:
            raise WorkError(describe_exit(status, errors.decode(errors="replace"), what))
        return {path: base64.b64decode(png) for path, png in json.loads(out).items()}


@contextmanager
def drawing_process() -> Iterator[Drawing]:
    """Yield a process that draws pictures, and end it after the block."""
    drawing = Drawing()
    try:
        yield drawing
    finally:
        drawing.close()
