"""Draws figures: the program of `millrace.tasks.reports.drawing`.

It reads a pickled mapping from path to `Draw` on stdin, and writes JSON with the PNG files, in
base64, to stdout. It ends when its parent does, because stdin ends.
"""

import base64
import json
import pickle
import sys

from matplotlib.figure import Figure

from millrace.models.common.pictures import png_of


def warm_up() -> None:
    """Draw a figure, so that fonts are loaded before the pictures are known."""
    figure = Figure(layout="constrained")
    figure.subplots()
    png_of(figure)


def main() -> None:
    """Prepare, wait for the figures on stdin, and draw them."""
    warm_up()
    figures = pickle.load(sys.stdin.buffer)  # noqa: S301  (of the parent process)
    drawn = {path: base64.b64encode(png_of(draw())).decode() for path, draw in figures.items()}
    json.dump(drawn, sys.stdout)


if __name__ == "__main__":
    main()
