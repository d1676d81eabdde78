"""What several checks need: counts that two ways agree on, gradients, results measured on GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flash_numba.problem import Problem

from ..counts import Counts
from ..hardware import Gpu, Roofline, roofline
from ..run import simulate
from ..theory import counts

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
"""Measurements on GPUs, which come with the repository, not with the package."""

KIB, GB, TB = 1024, 1e9, 1e12


@cache
def form(
    program: str,
    N: int,
    d: int = 64,
    B_r: int = 128,
    B_c: int = 64,
    direction: str = "forward",
    M: int | None = None,
    **options: Any,
) -> Counts:
    """Counts of one head by closed form, which the simulator must agree with."""
    problem = Problem(N, N if M is None else M, d, **{"dtype": "fp16", **options})
    found = counts(program, problem, B_r, B_c, direction=direction)
    counted = simulate(
        program, problem, direction=direction, tile_m=B_r, tile_n=B_c, sram_bytes=None
    ).counts
    if counted != found:
        raise AssertionError(f"{program}: the simulator counts {counted}, the form says {found}")
    return found


def least_time(gpu: Gpu, found: Counts, dtype: str = "fp16") -> Roofline:
    """The roofline of one head's counts.

    Every tile is taken to come from HBM: a cache can only lower the time for memory.
    """
    return roofline(
        gpu,
        hbm_bytes=found.hbm_bytes,
        matmul_flops=found.matmul_flops,
        exp_count=found.exp_count,
        dtype=dtype,
    )


class Attention:
    """One small head in float64, whose gradients are also known by finite differences.

    N = M = d, so that even formulas whose shapes do not fit in general can be evaluated.
    """

    def __init__(self, size: int = 8, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.Q, self.K, self.V, self.dO = rng.standard_normal((4, size, size))
        self.scale = size**-0.5
        self.P = softmax(self.Q @ self.K.T * self.scale)
        self.dP = self.dO @ self.V.T
        self.delta = (self.P * self.dP).sum(axis=1, keepdims=True)

    @property
    def dQ(self) -> np.ndarray:
        """By central differences."""
        return self._slope("Q")

    @property
    def dV(self) -> np.ndarray:
        """By central differences."""
        return self._slope("V")

    def _slope(self, name: str, step: float = 1e-5) -> np.ndarray:
        given = {"Q": self.Q, "K": self.K, "V": self.V}
        slope = np.empty_like(given[name])
        for where in np.ndindex(slope.shape):
            losses = []
            for sign in (1, -1):
                moved = given[name].copy()
                moved[where] += sign * step
                now = {**given, name: moved}
                P = softmax(now["Q"] @ now["K"].T * self.scale)
                losses.append((P @ now["V"] * self.dO).sum())
            slope[where] = (losses[0] - losses[1]) / (2 * step)
        return slope


def softmax(S: np.ndarray) -> np.ndarray:
    """Row by row, with the maximum subtracted."""
    weights = np.exp(S - S.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def off_by(found: np.ndarray, right: np.ndarray) -> float:
    """Largest error over the largest value."""
    return float(np.abs(found - right).max() / np.abs(right).max())


def growth(measure: Callable[[int], float], N: int) -> float:
    """How often as much at 2N as at N: 2 for what grows with N, 4 with N²."""
    return measure(2 * N) / measure(N)


def results(name: str) -> dict[str, Any] | None:
    """A committed measurement by file name without ``.json``; None where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def measured_on(found: dict[str, Any]) -> str:
    """GPU and date of a measurement."""
    return f"{found['machine']['gpu']}, {found['machine']['date']}"


def best_rates(rows: list[dict], d: int, N: int) -> dict[int, float]:
    """TFLOP/s of `h200_tiles` by rows of the query tile, each in its faster shape."""
    rates: dict[int, float] = {}
    for row in rows:
        if (row["head_dim"], row["seqlen"]) == (d, N):
            rates[row["tile_m"]] = max(rates.get(row["tile_m"], 0), row["tflops"])
    return rates


def si(value: float, unit: str = "B") -> str:
    """A number with a decimal prefix: ``68.7 GB``."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
