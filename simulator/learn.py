"""``flash-numba learn``: Jupyter on the notebooks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from .installation import install_extra

TUTORIALS = Path(__file__).parents[1] / "tutorials"
"""They come with the repository, not with the package."""

FIRST = "01_start_here.ipynb"
SERVERS = ("jupyterlab", "notebook")
"""What can show the notebooks, the preferred one first."""
PICTURES = ("matplotlib", "ipywidgets")


def needs(has: Callable[[str], bool]) -> tuple[str | None, list[str]]:
    """What shows the notebooks, and what they need that is missing.

    Parameters
    ----------
    has : callable
        Of a package's name: whether it is installed.
    """
    server = next(filter(has, SERVERS), None)
    missing = [name for name in PICTURES if not has(name)]
    return server, missing if server else [*missing, "jupyter"]


def command(tutorials: Path = TUTORIALS) -> list[str]:
    """What starts Jupyter on the first notebook.

    Raises
    ------
    ValueError
        If the notebooks or Jupyter are not there, with what to do.
    """
    if not (tutorials / FIRST).is_file():
        raise ValueError(
            f"the notebooks must lie in {tutorials}, they do not: they come with the repository, "
            "and `pip install -e .` in a clone of it finds them"
        )
    server, missing = needs(lambda name: find_spec(name) is not None)
    if server is None or missing:
        how = install_extra("tutorials")
        raise ValueError(f"the notebooks need {', '.join(missing)}, not installed here: {how}")
    return [sys.executable, "-m", server, str(tutorials / FIRST)]


def start(options: Sequence[str] = ()) -> int:
    """Start it with further options of Jupyter, and wait until it ends; its exit status."""
    return subprocess.run([*command(), *options], check=False, cwd=TUTORIALS).returncode
