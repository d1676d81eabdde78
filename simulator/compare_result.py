"""What a comparison found: programs on one problem, with ratios and times; JSON and CSV of it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from flash_numba.problem import Problem

from . import hardware
from .counts import Counts
from .hardware import Gpu, Roofline

BASELINES = ("algorithm0", "tiled", "fused_softmax", "with_mask_and_dropout")
"""The programs that are standard attention, `docs/counting.md` says how each is counted."""

REFERENCE = "algorithm0"
"""What ratios are taken of."""

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
    differences : dict of str to float, or None
        By output, the largest distance from the float64 reference; None without arrays.
    """

    program: str
    theory: Counts
    counted: Counts | None
    does_not_fit: str | None = None
    differences: dict[str, float] | None = None

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


def _entry_json(entry: Entry) -> dict:
    counted = {key: getattr(entry.counted, key, None) for key in KEYS}
    found = {"name": entry.name, "baseline": entry.baseline, **counted}
    found["theory"] = {key: getattr(entry.theory, key) for key in KEYS}
    if entry.does_not_fit:
        found["does_not_fit"] = entry.does_not_fit
    return found
