"""What is timed: a cell is one problem in one direction, and options say which cells there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from flash_numba import ladder
from flash_numba.checks import finite, one_of, whole
from flash_numba.problem import Problem

DIRECTIONS = ("forward", "backward")
DTYPES = ("fp32", "fp16", "bf16")
MASKS = {"full": False, "causal": True}
PEERS = {
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
    "torch_efficient": "EFFICIENT_ATTENTION",
    "torch_math": "MATH",
}
"""torch's ways to compute attention (members of ``torch.nn.attention.SDPBackend``)."""


@dataclass(frozen=True)
class Cell:
    """One problem in one direction; queries and keys are as many.

    Attributes
    ----------
    direction, dtype : str
        Of `DIRECTIONS` and `DTYPES`.
    head_dim, seqlen, batch, heads : int
    causal : bool
    """

    direction: str
    dtype: str
    head_dim: int
    seqlen: int
    causal: bool
    batch: int
    heads: int

    @property
    def problem(self) -> Problem:
        """The attention problem."""
        return Problem(
            self.seqlen,
            self.seqlen,
            self.head_dim,
            batch=self.batch,
            num_heads=self.heads,
            dtype=self.dtype,
            causal=self.causal,
        )

    @property
    def flops(self) -> float:
        """Nominal work: 4·B·H·N²·D, half of it if causal; 2.5 times that backward."""
        forward = 4 * self.batch * self.heads * self.seqlen**2 * self.head_dim
        return forward * (0.5 if self.causal else 1) * (2.5 if self.direction == "backward" else 1)

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.direction} {self.dtype} D={self.head_dim} N={self.seqlen} {mask}"


@dataclass(frozen=True)
class Options:
    """Which cells to time and how long; a wrong one is a ValueError.

    Attributes
    ----------
    rungs : tuple of str
        Names of rungs with kernels.
    directions, dtypes, masks : tuple of str
    peers : tuple of str
        Keys of `PEERS`.
    head_dims, seqlens : tuple of int
    tokens, hidden : int
        The batch is tokens / seqlen, the heads are hidden / head_dim, rounded down, at least 1.
    budget_s : float
        Seconds of timing for a cell.
    """

    rungs: tuple[str, ...]
    directions: tuple[str, ...] = DIRECTIONS
    dtypes: tuple[str, ...] = DTYPES
    masks: tuple[str, ...] = tuple(MASKS)
    peers: tuple[str, ...] = tuple(PEERS)
    head_dims: tuple[int, ...] = (64, 128)
    seqlens: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    tokens: int = 16384
    hidden: int = 2048
    budget_s: float = 1.0

    def __post_init__(self):
        named = {
            "rung": (self.rungs, with_kernels()),
            "direction": (self.directions, DIRECTIONS),
            "dtype": (self.dtypes, DTYPES),
            "mask": (self.masks, MASKS),
            "peer": (self.peers, PEERS),
        }
        for option, (values, allowed) in named.items():
            for value in values:
                one_of(option, value, allowed)
        for head_dim in self.head_dims:
            whole("head_dim", head_dim, 1, 256)
        for seqlen in self.seqlens:
            whole("seqlen", seqlen, 1, 1 << 20)
        whole("tokens", self.tokens, 1, 1 << 24)
        whole("hidden", self.hidden, 1, 1 << 16)
        if not 0 < finite("budget", self.budget_s) <= 600:
            raise ValueError(f"budget must be in (0, 600] seconds, got {self.budget_s}")

    def quick(self, keep_seqlens: bool) -> Options:
        """The same with two lengths, unless told to keep them, and 0.2 seconds for a cell."""
        return replace(self, seqlens=self.seqlens if keep_seqlens else (1024, 4096), budget_s=0.2)

    def cells(self) -> Iterator[Cell]:
        """All cells, those of one table together."""
        axes = self.directions, self.dtypes, self.head_dims, self.seqlens, self.masks
        for direction, dtype, head_dim, seqlen, mask in product(*axes):
            batch, heads = max(1, self.tokens // seqlen), max(1, self.hidden // head_dim)
            yield Cell(direction, dtype, head_dim, seqlen, MASKS[mask], batch, heads)


def with_kernels() -> tuple[str, ...]:
    """Names of the rungs that have kernels, the simplest first."""
    return tuple(rung.name for rung in reversed(ladder.RUNGS) if rung.modules)
