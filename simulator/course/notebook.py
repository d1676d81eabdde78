"""How a notebook begins, and how it shows a picture with its text."""

from __future__ import annotations

import io
from typing import Any


def begin() -> None:
    """Set the style of pictures."""
    from .style import use

    use()


def show(figure: Any, text: str) -> None:
    """Show a picture as PNG whose alternative text is `text`.

    Parameters
    ----------
    figure : matplotlib Figure
    text : str
        What the picture shows, for those who do not see it.
    """
    from IPython.display import display
    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    pyplot.close(figure)
    data = {"image/png": buffer.getvalue(), "text/plain": text}
    display(data, raw=True, metadata={"image/png": {"alt": text}})
