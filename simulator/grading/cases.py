"""What answers are graded on: sizes with tails, and scores that rise, fall or are large."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_numba.problem import Problem

from .formulas import Tensors, attention


@dataclass(frozen=True)
class Case:
    """One problem of the tile puzzles, for the heads that share one kv head.

    Attributes
    ----------
    N, M, d : int
        Queries, keys, columns of a head.
    B_r, B_c : int
        Rows of a query tile and of a key tile.
    heads : int
        Query heads that share the kv head.
    causal : bool
    scores : str
        ``normal``, ``rising`` (each key tile brings a higher maximum), ``falling``, ``low`` (their
        exponentials are 0 in fp32) or ``large`` (their exponentials overflow fp32).
    """

    N: int = 37
    M: int = 53
    d: int = 8
    B_r: int = 16
    B_c: int = 8
    heads: int = 1
    causal: bool = False
    scores: str = "normal"

    def __str__(self) -> str:
        masked = ", causal" if self.causal else ""
        shared = f", {self.heads} heads" if self.heads > 1 else ""
        return (
            f"N={self.N}, M={self.M}, d={self.d}, tiles of {self.B_r} and {self.B_c}, "
            f"{self.scores} scores{masked}{shared}"
        )

    @property
    def T_r(self) -> int:
        """Query tiles."""
        return -(-self.N // self.B_r)

    @property
    def T_c(self) -> int:
        """Key tiles."""
        return -(-self.M // self.B_c)

    @property
    def problem(self) -> Problem:
        """The same for the simulator and the closed forms."""
        return Problem(
            self.N, self.M, self.d, num_heads=self.heads, num_kv_heads=1, causal=self.causal
        )

    @property
    def hidden(self) -> np.ndarray | None:
        """True where a query does not see a key; None if all see all."""
        if not self.causal:
            return None
        return np.arange(self.M) > np.arange(self.N)[:, None] + self.M - self.N

    def inputs(self) -> Tensors:
        """Q, K, V and dO, drawn anew for each case but alike in each run."""
        rng = np.random.default_rng([self.N, self.M, self.heads, len(self.scores)])
        heads, N, M, d = self.heads, self.N, self.M, self.d
        Q, dO = rng.standard_normal((2, heads, N, d))
        K, V = rng.standard_normal((2, M, d))
        if self.scores in ("rising", "falling"):
            steps = np.arange(M) if self.scores == "rising" else np.arange(M)[::-1]
            Q[..., 0], K[:, 0] = np.sqrt(d), 0.5 * steps
        if self.scores == "low":
            Q[..., 0], K[:, 0] = np.sqrt(d), -200.0
        if self.scores == "large":
            Q *= 12
            K *= 12
        return {"Q": Q, "K": K, "V": V, "dO": dO}

    def tensors(self, dtype: type) -> Tensors:
        """Every tensor of attention in `dtype`, from inputs that float32 holds exactly."""
        rounded = {name: array.astype(np.float32) for name, array in self.inputs().items()}
        with np.errstate(over="ignore", invalid="ignore"):
            return attention(rounded, self.problem.softmax_scale, dtype, self.hidden)


SHAPES = (
    Case(32, 24),
    Case(),
    Case(5, 3),
    Case(scores="rising"),
    Case(scores="falling"),
    Case(scores="low"),
    Case(scores="large"),
)
"""Whole tiles, tails, less than a tile, and the kinds of scores that break a softmax."""

CAUSAL = (
    Case(32, 32, causal=True),
    Case(37, 53, causal=True),
    Case(53, 31, causal=True),
    Case(37, 37, causal=True, scores="rising"),
    Case(37, 37, causal=True, scores="large"),
    Case(37, 53, causal=True, scores="low"),
)
"""Square, more keys than queries, and more queries than keys: those rows see nothing."""

SHARED = tuple(Case(N, M, heads=heads) for N, M, heads in ((37, 53, 3), (32, 24, 2), (5, 19, 4)))
