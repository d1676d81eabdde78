"""Programs side by side on one problem: counted, by closed form, and as time on a GPU."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flash_numba.problem import Problem
from flash_numba.tiling import SKIPPED, Schedule, check_tile

from . import hardware, theory
from .counts import Counts
from .hardware import Gpu, Roofline
from .memory import SramOverflow
from .programs import PROGRAMS
from .run import simulate

BASELINES = ("algorithm0", "tiled", "fused_softmax", "with_mask_and_dropout")
"""The programs that are standard attention, `docs/counting.md` says how each is counted."""

REFERENCE = "algorithm0"
"""What ratios are taken of."""

DEFAULT_PROGRAMS = ("algorithm0", "tiled", "flash1", "flash2")

KEYS = (
    "hbm_read_elements",
    "hbm_write_elements",
    "hbm_bytes",
    "sram_load_elements",
    "sram_store_elements",
    "sram_peak_bytes",
    "matmul_flops",
    "exp_count",
)
"""The counts that `Comparison.to_json` and `Comparison.to_csv` hold."""

DIRECTIONS = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}


@dataclass(frozen=True)
class Entry:
    """One program of a comparison.

    Attributes
    ----------
    program : str
        A key of `programs.PROGRAMS`.
    theory : Counts
        From the closed form.
    counted : Counts or None
        From the simulator; None if the program does not fit.
    does_not_fit : str or None
        The tile that did not fit into SRAM, its bytes, and what was resident.
    """

    program: str
    theory: Counts
    counted: Counts | None
    does_not_fit: str | None = None

    @property
    def baseline(self) -> str | None:
        """Which standard attention it is; None for a flash program."""
        return self.program if self.program in BASELINES else None

    @property
    def name(self) -> str:
        """``standard`` for every baseline, else the program."""
        return "standard" if self.baseline else self.program

    @property
    def equal(self) -> bool:
        """True if simulator and closed form agree in every count of every tensor."""
        return self.counted == self.theory


@dataclass(frozen=True)
class Comparison:
    """Programs on one problem.

    Attributes
    ----------
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    direction : str
        "forward", "backward", or "both": every count is the sum of the two passes, the SRAM peak
        the higher one.
    gpu : Gpu
        Whose SRAM the tiles must fit and whose peaks give times.
    all_heads : bool
        Whether counts are of all sequences and heads, or of one query head.
    entries : tuple of Entry
    """

    problem: Problem
    tile_m: int
    tile_n: int
    direction: str
    gpu: Gpu
    all_heads: bool
    entries: tuple[Entry, ...]

    def entry(self, program: str) -> Entry:
        """The entry of a program."""
        return next(entry for entry in self.entries if entry.program == program)

    def ratio(self, entry: Entry) -> float | None:
        """HBM bytes of a program over those of `algorithm0`; None where there is no such ratio."""
        reference = self.entry(REFERENCE).counted
        if entry.counted is None or reference is None or not reference.hbm_bytes:
            return None
        return entry.counted.hbm_bytes / reference.hbm_bytes

    def roofline(self, entry: Entry) -> Roofline | None:
        """The least time that the counted work takes on the GPU; None if it does not fit."""
        if entry.counted is None:
            return None
        return hardware.roofline(
            self.gpu,
            hbm_bytes=entry.counted.hbm_bytes,
            matmul_flops=entry.counted.matmul_flops,
            exp_count=entry.counted.exp_count,
            dtype=self.problem.dtype,
        )

    def table(self):
        """Tables and sentences for a terminal or a notebook, a rich renderable."""
        from .compare_table import render

        return render(self)

    def to_json(self) -> dict:
        """What `compare --json` prints.

        Returns
        -------
        dict
            ``problem``, and ``programs``: for each its ``name`` ("standard" for every baseline),
            ``baseline`` (which standard attention it is; None for flash programs), the counts of
            `KEYS`, and ``theory``, the same from the closed form. With direction "both" a count is
            the sum of forward and backward and ``sram_peak_bytes`` the higher of the two. A program
            that does not fit into SRAM has None for its counts and a further ``does_not_fit``.
        """
        problem = self.problem
        return {
            "problem": {
                "seqlen_q": problem.seqlen_q,
                "seqlen_k": problem.seqlen_k,
                "head_dim": problem.head_dim,
                "tile_m": self.tile_m,
                "tile_n": self.tile_n,
                "causal": problem.causal,
                "dtype": problem.dtype,
                "direction": self.direction,
                "heads": problem.num_heads,
            },
            "programs": [_entry_json(entry) for entry in self.entries],
        }

    def to_csv(self) -> str:
        """One line a program under a line of names; closed forms under ``theory_`` names."""
        out = io.StringIO()
        names = ["name", "baseline", *KEYS, *(f"theory_{key}" for key in KEYS), "does_not_fit"]
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        for entry in self.entries:
            row = _entry_json(entry)
            row |= {f"theory_{key}": value for key, value in row.pop("theory").items()}
            writer.writerow(row)
        return out.getvalue()


def comparison(
    problem: Problem,
    tile_m: int,
    tile_n: int,
    *,
    direction: str = "forward",
    programs: Sequence[str] = DEFAULT_PROGRAMS,
    gpu: str | Gpu = "H100",
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
    tile_m, tile_n = check_tile("tile_m", tile_m), check_tile("tile_n", tile_n)
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
    entries = [
        Entry(
            name,
            _closed_form(name, problem, tile_m, tile_n, direction, all_heads, batch, head),
            None if name in overflows else counted[name],
            str(overflows[name]) if name in overflows else None,
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
    return None if program in theory.BASELINES else 0


def _check_any_fits(chosen: Sequence[str], overflows: dict[str, SramOverflow]) -> None:
    tiled = [name for name in chosen if name not in theory.BASELINES]
    if tiled and all(name in overflows for name in tiled):
        first = tiled[0]
        raise SramOverflow(
            f"tile_m and tile_n must give tiles that fit; {first}: {overflows[first]}"
        )


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
    tiles = -(-problem.seqlen_q // tile_m), -(-problem.seqlen_k // tile_n)
    visited = np.zeros((problem.batch, problem.num_heads, *tiles), bool)
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        kinds = Schedule(problem, tile_m, tile_n, batch, head).kinds()
        visited[batch, head, :, : kinds.shape[1]] = kinds != SKIPPED
    return visited


def _entry_json(entry: Entry) -> dict:
    counted = {key: getattr(entry.counted, key, None) for key in KEYS}
    found = {"name": entry.name, "baseline": entry.baseline, **counted}
    found["theory"] = {key: getattr(entry.theory, key) for key in KEYS}
    if entry.does_not_fit:
        found["does_not_fit"] = entry.does_not_fit
    return found
