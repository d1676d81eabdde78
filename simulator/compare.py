"""Programs side by side on one problem: counted, by closed form, and as time on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from flash_numba.checks import whole
from flash_numba.problem import Problem
from flash_numba.tiling import SKIPPED, Schedule, ceil_div

from . import hardware, theory
from .agreement import differences
from .compare_result import BASELINES, REFERENCE, Comparison, Entry
from .counts import Counts
from .hardware import Gpu
from .memory import SramOverflow
from .programs import PROGRAMS
from .run import simulate

DEFAULT_PROGRAMS = ("algorithm0", "tiled", "flash1", "flash2")

DIRECTIONS = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}


def comparison(
    problem: Problem,
    tile_m: int,
    tile_n: int,
    *,
    direction: str = "forward",
    programs: Sequence[str] = DEFAULT_PROGRAMS,
    gpu: str | Gpu = "H100",
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    all_heads: bool = False,
    batch: int = 0,
    head: int = 0,
    track: Callable[[list], Iterable] = iter,
) -> Comparison:
    """Run programs on a problem and hold their counts against the closed forms.

    Parameters
    ----------
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    direction : str
        "forward", "backward" or "both".
    programs : sequence of str
        Keys of `programs.PROGRAMS`; `algorithm0` is always among what is compared.
    gpu : str or Gpu
        A name that `hardware.get` knows.
    arrays : q, k and v, optional
        With them the programs also compute, and are held against the float64 reference.
    all_heads : bool
        Count all sequences and heads, with K and V shared as the schedule shares them.
    batch, head : int
        The query head that is counted otherwise, as if it had its K and V to itself.
    track : callable
        Wraps the list of passes to run, to show progress.

    Raises
    ------
    SramOverflow
        If none of the programs that have tiles fits into the GPU's SRAM.
    ValueError, TypeError
        Naming the argument, what is allowed and what was received.
    """
    gpu = hardware.get(gpu) if isinstance(gpu, str) else gpu
    tile_m, tile_n = whole("tile_m", tile_m, 1), whole("tile_n", tile_n, 1)
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}; got {direction!r}")
    for program in programs:
        if program not in PROGRAMS:
            raise ValueError(f"program must be one of {', '.join(PROGRAMS)}; got {program!r}")
    gpu.matmul_flops_per_s(problem.dtype)
    chosen = _in_order({REFERENCE, *programs})
    where = {"batch": batch, "head": None if all_heads else head}
    counted = {name: Counts({}, {}, sram_peak_bytes=_no_peak(name)) for name in chosen}
    overflows: dict[str, SramOverflow] = {}
    for name, way in track([(name, way) for name in chosen for way in DIRECTIONS[direction]]):
        if name in overflows:
            continue
        sram_bytes = gpu.shared_bytes_per_block
        options = {"tile_m": tile_m, "tile_n": tile_n, "direction": way, "sram_bytes": sram_bytes}
        try:
            counted[name] += simulate(name, problem, **options, **where).counts
        except SramOverflow as overflow:
            overflows[name] = overflow
    _check_any_fits(chosen, overflows)
    numbers = {}
    if arrays is not None:
        fitting = [name for name in chosen if name not in overflows]
        backward = direction != "forward"
        numbers = differences(
            fitting, problem, arrays, tile_m, tile_n, backward=backward, track=track, **where
        )
    entries = [
        Entry(
            name,
            _closed_form(name, problem, tile_m, tile_n, direction, all_heads, batch, head),
            None if name in overflows else counted[name],
            str(overflows[name].__cause__) if name in overflows else None,
            numbers.get(name),
        )
        for name in chosen
    ]
    return Comparison(problem, tile_m, tile_n, direction, gpu, all_heads, tuple(entries))


def choose(programs: Sequence[str] | None, baselines: Sequence[str] | None) -> list[str]:
    """Programs to compare, from the names that options gave.

    Parameters
    ----------
    programs : sequence of str, optional
        Flash programs, or "all"; default flash1 and flash2.
    baselines : sequence of str, optional
        Baselines, or "all"; default tiled.
    """
    flash = [name for name in PROGRAMS if name not in BASELINES]
    pairs = (
        ("program", programs or ["flash1", "flash2"], flash),
        ("baseline", baselines or ["tiled"], BASELINES),
    )
    chosen = []
    for option, names, allowed in pairs:
        for name in names:
            if name not in (*allowed, "all"):
                raise ValueError(
                    f"{option} must be all or one of {', '.join(allowed)}; got {name!r}"
                )
            chosen += allowed if name == "all" else [name]
    return chosen


def _in_order(names: set[str]) -> list[str]:
    """Baselines as `BASELINES` has them, then the flash programs as `PROGRAMS` has them."""
    order = [*BASELINES, *(name for name in PROGRAMS if name not in BASELINES)]
    return [name for name in order if name in names]


def _no_peak(program: str) -> int | None:
    """A peak to start from: None for the baselines without a capacity."""
    return None if PROGRAMS[program].idealised else 0


def _check_any_fits(chosen: Sequence[str], overflows: dict[str, SramOverflow]) -> None:
    tiled = [name for name in chosen if not PROGRAMS[name].idealised]
    if tiled and all(name in overflows for name in tiled):
        first = tiled[0]
        raise SramOverflow(f"{overflows[first]} (program {first})") from overflows[first]


def _closed_form(name, problem, tile_m, tile_n, direction, all_heads, batch, head) -> Counts:
    visited = None
    if problem.mask is not None or problem.block_mask is not None:
        visited = _visited(problem, tile_m, tile_n)
    total = Counts({}, {}, sram_peak_bytes=_no_peak(name))
    for way in DIRECTIONS[direction]:
        total += theory.counts(
            name,
            problem,
            tile_m,
            tile_n,
            direction=way,
            batch=batch,
            head=head,
            all_heads=all_heads,
            visited=visited,
        )
    return total


def _visited(problem: Problem, tile_m: int, tile_n: int) -> np.ndarray:
    """Visited tiles of every head: bool of (batch, heads, query tiles, key tiles)."""
    tiles = ceil_div(problem.seqlen_q, tile_m), ceil_div(problem.seqlen_k, tile_n)
    visited = np.zeros((problem.batch, problem.num_heads, *tiles), bool)
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        kinds = Schedule(problem, tile_m, tile_n, batch, head).kinds()
        visited[batch, head, :, : kinds.shape[1]] = kinds != SKIPPED
    return visited
