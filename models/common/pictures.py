"""Pictures of figures."""

import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110
COMPRESSION = 1
"""Level of zlib. A higher level takes longer, for files of tens of KiB that are 10 % smaller."""


def png_of(figure: "Figure") -> bytes:
    """Return a figure as a PNG.

    `Figure.savefig` draws a figure with a layout engine twice: for its layout and for its picture.
    One drawing does both.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(DPI)
    canvas: Any = FigureCanvasAgg(figure)  # has no types
    with warnings.catch_warnings():  # the fonts of matplotlib lack most scripts, and show boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        canvas.draw()
    stream = BytesIO()
    size, pixels = canvas.get_width_height(), canvas.buffer_rgba()
    picture = Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1)
    # The background of a figure is opaque.
    picture.convert("RGB").save(stream, "png", dpi=(DPI, DPI), compress_level=COMPRESSION)
    return stream.getvalue()
