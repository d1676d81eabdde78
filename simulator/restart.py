"""What a notebook's first cell asks: what to install, and whether to restart the kernel.

A hosted notebook imports its own NumPy before anything is installed; `pip install` may then replace
the files, and the kernel must be restarted to take them. Imports nothing that may be missing.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
"""Comes with the repository, not with the package."""

LARGE = {"torch": "PyTorch, some GB on Linux"}
"""Packages that take minutes to download, and what to say of them."""

WATCHED = ("numpy", "numba", "ml_dtypes")
"""Packages that a hosted notebook often has in another version."""


def missing(*extras: str) -> list[str]:
    """What this repository and its `extras` require and is not installed here, or not as required.

    Needs `packaging`, which every notebook kernel brings.
    """
    from packaging.requirements import Requirement

    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    wanted = [Requirement(line) for line in lines]
    return [
        str(one).partition(";")[0].strip()
        for one in wanted
        if one.name != "jupyter"  # it is running
        if one.marker is None or one.marker.evaluate()
        if (here := _installed(one.name)) is None or not one.specifier.contains(here, True)
    ]


def announce(names: Sequence[str]) -> None:
    """Print what is about to be installed, and which of it is large.

    Parameters
    ----------
    names : sequence of str
        As `missing` gives them, such as ``torch>=2.6``.
    """
    from packaging.requirements import Requirement

    notes = [LARGE.get(Requirement(name).name) for name in names]
    told = [f"{name} ({note})" if note else name for name, note in zip(names, notes, strict=True)]
    print(f"installs {', '.join(told)}", flush=True)


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


def stop_if_stale() -> None:
    """Stop a notebook that would run on with packages which are no longer installed.

    Raises
    ------
    RuntimeError
        With `restart_advice`.
    """
    if advice := restart_advice():
        raise RuntimeError(advice)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
