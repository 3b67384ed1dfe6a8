"""Pictures of figures, each drawn once: the same picture is in MLflow and in the report's page."""

from io import BytesIO
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110
_drawn: "WeakKeyDictionary[Figure, bytes]" = WeakKeyDictionary()


def png_of(figure: "Figure") -> bytes:
    """Return a figure, which does not change any more, as a PNG."""
    if figure not in _drawn:
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=DPI)
        _drawn[figure] = stream.getvalue()
    return _drawn[figure]
