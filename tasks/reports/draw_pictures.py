"""Draws figures: the program of `millrace.tasks.reports.drawing`.

It reads pickled mappings from path to `Draw` on stdin until it is closed, and draws each as it
comes. Then it writes JSON with the PNG files, in base64, to stdout. It ends when its parent does,
because stdin ends.
"""

import base64
import gc
import json
import os
import pickle
import sys
from collections.abc import Iterator
from typing import BinaryIO

from millrace.models.common.pictures import png_of


def draw(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the PNG of every figure that the stream brings."""
    while True:
        try:
            figures = pickle.load(stream)  # noqa: S301  (of the parent process)
        except EOFError:
            return
        for path, figure in figures.items():
            yield path, png_of(figure())


def main() -> None:
    """Draw the figures that stdin brings, and write them to stdout.

    The run may wait for the last picture. So nothing is done that only a longer life would need:
    looking for unused objects, and freeing all objects in the end, which takes 0.1 s.
    """
    gc.disable()
    drawn = {path: base64.b64encode(png).decode() for path, png in draw(sys.stdin.buffer)}
    json.dump(drawn, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
