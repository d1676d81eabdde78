"""Make the notebooks of ``tutorials`` from their sources, and run them.

A source is a Python file in the percent format: ``# %%`` begins a code cell, ``# %% [markdown]``
one of text. A comment that begins with ``# %pip`` becomes a command of the notebook. The notebooks
are kept with their outputs; tests hold that their cells are those of the sources and their outputs
those of a run.

    python scripts/make_notebooks.py [NAME ...]      all, or those named
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "tutorials"
SOURCES = TUTORIALS / "sources"

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

WIDGET = "application/vnd.jupyter.widget-view+json"
IN_A_LIVE_NOTEBOOK = "(a slider over the events, in a live notebook)"

SECONDS = 300
"""For one cell, on a crowded machine; a whole notebook takes less than 60 on an idle one."""


def cells(source: str) -> list[dict[str, Any]]:
    """The cells of a source, without outputs.

    Raises
    ------
    ValueError
        If the source does not begin with a cell.
    """
    head, *parts = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)
    if head.strip():
        raise ValueError(f"a source begins with a cell, not with {head.strip()[:40]!r}")
    found = []
    for number, (kind, text) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        text = text.strip("\n")
        cell: dict[str, Any] = {"id": f"cell-{number:02}", "metadata": {}}
        if kind.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in text.splitlines()]
            cell |= {"cell_type": "markdown", "source": "\n".join(lines)}
        else:
            text = re.sub(r"^(\s*)# (%pip .*)$", r"\1\2", text, flags=re.MULTILINE)
            cell |= {"cell_type": "code", "source": text, "outputs": [], "execution_count": None}
        found.append(cell)
    return found


def notebook(name: str) -> dict[str, Any]:
    """The notebook of a source, not run."""
    source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    return {"cells": cells(source), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def run(name: str) -> dict[str, Any]:
    """The notebook of a source with the outputs of a fresh kernel."""
    import nbformat
    from nbclient import NotebookClient

    node: Any = nbformat.from_dict(notebook(name))
    resources = {"metadata": {"path": str(TUTORIALS)}}
    limits: Any = {"timeout": SECONDS, "startup_timeout": SECONDS}
    NotebookClient(node, kernel_name="python3", resources=resources, **limits).execute()
    for cell in node["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"] = settled(cell["outputs"])
    node["metadata"] = METADATA
    return json.loads(nbformat.writes(node))


def settled(outputs: list[Any]) -> list[Any]:
    """Outputs without what differs from run to run and says nothing.

    That is where the kernel cut what is printed into pieces, and the number of a widget, which is
    gone with the kernel that made it.
    """
    found: list[Any] = []
    for one in outputs:
        if one["output_type"] == "stream" and found and found[-1].get("name") == one["name"]:
            found[-1]["text"] += one["text"]
            continue
        if WIDGET in one.get("data", {}):
            one["data"] = {"text/plain": IN_A_LIVE_NOTEBOOK}
        found.append(one)
    return found


def names() -> list[str]:
    """All notebooks, in order."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def main(chosen: list[str]) -> None:
    """Write notebooks."""
    for name in chosen or names():
        start = time.perf_counter()
        made = run(name)
        text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        (TUTORIALS / f"{name}.ipynb").write_text(text, encoding="utf-8")
        print(f"{name}: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
