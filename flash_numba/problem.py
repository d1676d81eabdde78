"""One attention problem: its sizes, element type, mask and score changes - and nothing else.

Everything that runs attention (reference, simulator, kernels) is told what to do by a `Problem`,
so that one set of checks, with one wording, guards them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from . import masks
from .masks import Mask, ScoreMod

if TYPE_CHECKING:
    from .tiling import BlockMask

DTYPES = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""Element types of Q, K, V and O by the name that tables and options use."""


def dtype_name(dtype) -> str:
    """The name in `DTYPES` of a NumPy dtype.

    Raises
    ------
    TypeError
        If `dtype` is not one of them.
    """
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    known = ", ".join(str(d) for d in DTYPES.values())
    raise TypeError(f"dtype must be one of {known}; got {dtype}")


def _whole(name: str, value, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


@dataclass(frozen=True, eq=False)
class Problem:
    """Sizes and options of one attention call; layout (batch, seqlen, heads, head_dim).

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Queries and keys of a sequence, >= 0.
    head_dim, head_dim_v : int
        Columns of Q and K, and of V and O (default: the same).
    batch, num_heads, num_kv_heads : int
        Sequences, query heads and key/value heads. Query head h uses kv head
        ``h // (num_heads // num_kv_heads)``; `num_kv_heads` defaults to `num_heads`.
    dtype : str
        A key of `DTYPES`.
    softmax_scale : float, optional
        Factor on Q @ K.T, default 1/sqrt(head_dim); any finite number, 0 and negative included.
    causal : bool
        A query sees keys up to its own position, aligned bottom-right: the last query sees the
        last key.
    window : tuple of (int or None, int or None)
        Keys seen before and after the own position, inclusive; None = unlimited.
    key_lengths : int array of shape (batch,), optional
        Keys that each sequence really has; the rest of K and V is never read. Causal, window and
        ALiBi align to each sequence's own length.
    mask : Mask, optional
        A further mask, ANDed with causal and window.
    block_mask : tiling.BlockMask, optional
        A mask with a list of the tiles it leaves, ANDed too.
    score_mods : sequence of ScoreMod
        Score changes in the order they apply.
    dropout_p : float
        Probability in [0, 1) that a softmax weight is dropped.
    seed : int
        64-bit key of the dropout mask.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received.
    """

    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int | None = None
    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int | None = None
    dtype: str = "fp32"
    softmax_scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    key_lengths: np.ndarray | None = None
    mask: Mask | None = None
    block_mask: BlockMask | None = None
    score_mods: tuple[ScoreMod, ...] = ()
    dropout_p: float = 0.0
    seed: int = 0

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        for name, least in (("seqlen_q", 0), ("seqlen_k", 0), ("head_dim", 1), ("batch", 0)):
            put(name, _whole(name, getattr(self, name), least))
        put("num_heads", _whole("num_heads", self.num_heads, 1))
        if self.head_dim_v is None:
            put("head_dim_v", self.head_dim)
        if self.num_kv_heads is None:
            put("num_kv_heads", self.num_heads)
        put("head_dim_v", _whole("head_dim_v", self.head_dim_v, 1))
        put("num_kv_heads", _whole("num_kv_heads", self.num_kv_heads, 1))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, "
                f"got num_heads={self.num_heads} and num_kv_heads={self.num_kv_heads}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if self.softmax_scale is None:
            put("softmax_scale", 1 / math.sqrt(self.head_dim))
        if not math.isfinite(self.softmax_scale):
            raise ValueError(f"softmax_scale must be a finite number, got {self.softmax_scale}")
        put("softmax_scale", float(self.softmax_scale))
        put("causal", bool(self.causal))
        put("window", _window_sides(self.window))
        put("key_lengths", self._checked_lengths())
        put("score_mods", tuple(self.score_mods))
        for mod in self.score_mods:
            if not isinstance(mod, ScoreMod):
                raise TypeError(f"score_mods must hold ScoreMod objects, got {mod!r}")
        if self.mask is not None and not isinstance(self.mask, Mask):
            raise TypeError(f"mask must be a Mask or None, got {self.mask!r}")
        if not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p must be in [0, 1), got {self.dropout_p!r}")
        put("seed", _whole("seed", self.seed, 0))
        if self.seed >= 1 << 64:
            raise ValueError(f"seed must be below 2**64, got {self.seed}")

    def _checked_lengths(self) -> np.ndarray | None:
        if self.key_lengths is None:
            return None
        lengths = np.asarray(self.key_lengths)
        if lengths.shape != (self.batch,) or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"key_lengths must be whole numbers of shape ({self.batch},), "
                f"got {lengths.dtype} of shape {lengths.shape}"
            )
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= self.seqlen_k):
            raise ValueError(
                f"key_lengths must lie in 0..{self.seqlen_k} (seqlen_k), got {lengths.tolist()}"
            )
        return lengths.astype(np.int64)

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def itemsize(self) -> int:
        """Bytes of one element of Q, K, V or O."""
        return DTYPES[self.dtype].itemsize

    def key_length(self, batch: int) -> int:
        """Keys of sequence `batch`: its own length, or seqlen_k."""
        return self.seqlen_k if self.key_lengths is None else int(self.key_lengths[batch])

    @property
    def shift(self):
        """What aligns q_idx with k_idx: keys minus queries, one number or one a batch."""
        keys = self.seqlen_k if self.key_lengths is None else self.key_lengths
        return keys - self.seqlen_q

    @cached_property
    def range_mask(self) -> Mask | None:
        """Causal, window and `mask` as one Mask; None = every key is visible."""
        left, right = self.window
        return _all_of(
            masks.causal(self.shift) if self.causal else None,
            masks.window(self.shift, left, right) if self.window != (None, None) else None,
            self.mask,
        )

    @cached_property
    def visibility(self) -> Mask | None:
        """`range_mask` and the mask of `block_mask` as one Mask."""
        return _all_of(self.range_mask, self.block_mask.mask if self.block_mask else None)

    @classmethod
    def of(cls, q, k, v, **options) -> Problem:
        """The problem that three arrays pose.

        Parameters
        ----------
        q : array of shape (batch, seqlen_q, num_heads, head_dim)
        k : array of shape (batch, seqlen_k, num_kv_heads, head_dim)
        v : array of shape (batch, seqlen_k, num_kv_heads, head_dim_v)
        **options
            The remaining fields of `Problem`; `dtype` defaults to that of `q`.
        """
        for name, array in (("q", q), ("k", k), ("v", v)):
            if len(array.shape) != 4:
                raise ValueError(
                    f"{name} must have 4 axes (batch, seqlen, heads, head_dim), "
                    f"got shape {tuple(array.shape)}"
                )
        _match("batch", q=q.shape[0], k=k.shape[0], v=v.shape[0])
        _match("seqlen_k", k=k.shape[1], v=v.shape[1])
        _match("num_kv_heads", k=k.shape[2], v=v.shape[2])
        _match("head_dim", q=q.shape[3], k=k.shape[3])
        if q.shape[2] % max(k.shape[2], 1):
            raise ValueError(
                f"heads of q must be a multiple of the heads of k and v, got {q.shape[2]} and "
                f"{k.shape[2]}; the layout is (batch, seqlen, heads, head_dim)"
            )
        options.setdefault("dtype", dtype_name(q.dtype))
        return cls(
            seqlen_q=q.shape[1],
            seqlen_k=k.shape[1],
            head_dim=q.shape[3],
            head_dim_v=v.shape[3],
            batch=q.shape[0],
            num_heads=q.shape[2],
            num_kv_heads=k.shape[2],
            **options,
        )


def _all_of(*masks: Mask | None) -> Mask | None:
    present = [mask for mask in masks if mask is not None]
    return reduce(and_, present) if present else None


def _match(what: str, **sizes) -> None:
    if len(set(sizes.values())) > 1:
        got = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ValueError(
            f"{' and '.join(sizes)} must agree in {what} "
            f"(layout: batch, seqlen, heads, head_dim); {got}"
        )


def _window_sides(window) -> tuple[int | None, int | None]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(
            f"window must be a pair (left, right) of whole numbers or None, got {window!r}"
        ) from None
    for side in (left, right):
        if side is not None:
            _whole("window side (None = unlimited)", side, 0)
    return left, right
