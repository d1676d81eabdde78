"""Where a run comes from: sizes, a file of arrays, the demo's real layer, or a saved log."""

from __future__ import annotations

import zipfile
from pathlib import Path

from flash_numba.problem import Problem

from .. import hardware, inputs
from ..events import EventLog
from ..options import given_options, problem_of_sizes, window_of
from .session import Saved, Session

DEMO = {"tile_m": 64, "tile_n": 32, "causal": True, "head": 9}
"""The demo's defaults: every state of the grid, a tail both ways, and a head with a habit (it looks
at the token before) that a causal mask leaves."""

SEQLEN, TILE_M, TILE_N = 512, 128, 64
"""Defaults of the rest."""


def check_exclusive(sources: dict, sizes: dict, options: dict) -> None:
    """The input comes from one place, and what it states cannot be stated again.

    A file of arrays states the `sizes`, a saved log the `options` too.
    """
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"{', '.join(sources)} exclude each other, got {' and '.join(named)}")
    stated = dict(sizes) if named else {}
    if "--replay" in named:
        stated |= options
    if given := given_options(stated):
        raise ValueError(f"{named[0]} brings its own sizes, got {', '.join(given)} too")


def session(path, demo: bool, sizes: dict, options: dict, window, gpu: str | None) -> Session:
    """Runs of the problem that the options pose, with numbers.

    Parameters
    ----------
    path : str or None
        A file with q, k and v.
    demo : bool
        Take the demo's input instead.
    sizes, options : dict
        Values of the options by name, None where not given.
    window : pair of str or None
    gpu : str or None
        Whose SRAM.
    """
    tokens = None
    dtype = options["dtype"]
    common = {"causal": bool(options["causal"]), "window": window_of(window)}
    if demo:
        q, k, v, tokens = inputs.demo_input()
        problem = Problem.of(q, k, v, dtype=dtype or "fp16", **common)
    elif path is not None:
        q, k, v = inputs.load_input(path, dtype=dtype)
        problem = Problem.of(q, k, v, **common)
    else:
        problem = problem_of_sizes(sizes, SEQLEN, dtype=dtype or "fp16", **common)
        q, k, v = inputs.random_input(problem)
    return Session(
        problem,
        q,
        k,
        v,
        tile_m=TILE_M if options["tile_m"] is None else options["tile_m"],
        tile_n=TILE_N if options["tile_n"] is None else options["tile_n"],
        gpu=hardware.get(gpu or "H100"),
        tokens=tokens,
    )


def replayed(path: str, compare_with: str | None) -> tuple[Saved, tuple[str, str, int]]:
    """A saved run, and its program, direction and head.

    Raises
    ------
    ValueError
        If the file is no event log, or a second program is wanted, which would have to run.
    """
    if what := _no_log(path):
        raise ValueError(
            f"--replay must name a file that `step --save` wrote, got {path}, which {what}"
        )
    source = Saved(EventLog.load(path))
    meta = source.loaded.replay.meta
    if compare_with not in (None, meta["program"]):
        raise ValueError(
            f"--compare-with needs a run to record, and --replay {path} holds {meta['program']} "
            f"alone; got {compare_with}"
        )
    return source, (meta["program"], meta["direction"], meta["head"])


def _no_log(path: str) -> str | None:
    """Why a file is not one that `EventLog.save` wrote; None if it may be."""
    if not Path(path).exists():
        return "does not exist"
    if not Path(path).is_file():
        return "is no .npz file"
    try:
        with zipfile.ZipFile(path) as archive:
            return None if "meta.npy" in archive.namelist() else "holds no event log"
    except zipfile.BadZipFile:
        return "is no .npz file"
