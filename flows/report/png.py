"""The colours of text and the PNG encoder that all pictures share."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED = "#1f2937", "#6b7280"


def to_png(figure: "Figure") -> bytes:
    """Returns a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
