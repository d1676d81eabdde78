"""Whether a running Python holds older packages than are installed now.

A hosted notebook imports its own NumPy before anything is installed; `pip install` then replaces
the files, and the kernel must be restarted to take them.
"""

from __future__ import annotations

import importlib.metadata
import sys

WATCHED = ("numpy", "numba", "ml_dtypes")
"""Packages that a hosted notebook often has in another version."""


def restart_advice() -> str | None:
    """What to do, in one sentence, or None if nothing needs to be done."""
    stale = []
    for name in WATCHED:
        loaded = getattr(sys.modules.get(name), "__version__", None)
        installed = _installed(name)
        if loaded and installed and loaded != installed:
            stale.append(f"{name} {loaded} is loaded and {installed} installed")
    if not stale:
        return None
    return f"restart the kernel, then run on from here: {', '.join(stale)}"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
