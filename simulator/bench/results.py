"""Results as JSON: ``machine``, ``method``, ``options`` and ``rows``, and what gave no row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .cells import PEERS

MACHINE = {"gpu": str, "driver": str, "versions": dict, "date": str}
ROW = {
    "rung": str,
    "deterministic": bool,
    "direction": str,
    "dtype": str,
    "head_dim": int,
    "seqlen": int,
    "causal": bool,
    "batch": int,
    "heads": int,
    "ms": float,
    "tflops": float,
    "gb_per_s": (float, type(None)),
    "rounds": int,
    "peers": dict,
    "ratios": dict,
}
"""What a row holds: `peers` has milliseconds, `ratios` the peer's time over ours, by name.

`deterministic` is false of a backward pass that may give other bits each time.
"""


def save(path: str | Path, results: dict[str, Any]) -> None:
    """Write results as `load` reads them."""
    Path(path).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> dict[str, Any]:
    """Read results.

    Raises
    ------
    ValueError
        Naming what is wrong, if the file does not hold results or is none.
    """
    if not Path(path).is_file():
        what = "is no file" if Path(path).exists() else "does not exist"
        raise ValueError(f"results must be JSON that `bench --output` wrote, {path} {what}")
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON that bench wrote, got {error}") from None
    parts = {"machine": dict, "rows": list}
    _check(f"{path}", results, parts)
    _check(f"machine of {path}", results["machine"], MACHINE)
    for number, row in enumerate(results["rows"]):
        where = f"row {number} of {path}"
        if isinstance(row, dict):  # written before there were two forms
            row.setdefault("deterministic", True)
        _check(where, row, ROW)
        for name in ("peers", "ratios"):
            _check(f"{name} of {where}", row[name], dict.fromkeys(row[name], float))
            if odd := sorted(set(row[name]) - set(PEERS)):
                raise ValueError(f"{name} of {where} must name {', '.join(PEERS)}; got {odd[0]!r}")
    return results


def _check(where: str, found, parts: dict) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must hold {', '.join(parts)}; got {type(found).__name__}")
    for name, kind in parts.items():
        if not isinstance(found.get(name), kind):
            got = type(found[name]).__name__ if name in found else "nothing"
            raise ValueError(f"{where} must hold {name} as bench writes it, got {got}")
