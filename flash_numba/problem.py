"""One attention problem: its sizes, element type, mask and score changes - and nothing else.

Everything that runs attention (reference, simulator, kernels) is told what to do by a `Problem`,
so that one set of checks, with one wording, guards them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from . import checks, masks
from .checks import LARGEST, agree, axes, finite, one_of, shown, whole
from .masks import Mask, ScoreMod
from .sequences import Sequences, Side

if TYPE_CHECKING:
    from .tiling import BlockMask

DTYPES = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""Element types of Q, K, V and O by the name that tables and options use."""


_OF_KEYS = ("k", "v", "dk", "dv")


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
    sequences : Sequences, optional
        The batch is packed: q is (total_q, num_heads, head_dim), lse (num_heads, total_q), and each
        sequence has lengths of its own, which masks and score changes align to; `seqlen_q` and
        `seqlen_k` only bound them. Without key_lengths and block_mask.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received.
    """

    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int = None  # pyright: ignore[reportAssignmentType]
    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = None  # pyright: ignore[reportAssignmentType]
    dtype: str = "fp32"
    softmax_scale: float = None  # pyright: ignore[reportAssignmentType]
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    key_lengths: Sequence[int] | np.ndarray | None = None
    mask: Mask | None = None
    block_mask: BlockMask | None = None
    score_mods: Sequence[ScoreMod] = ()
    dropout_p: float = 0.0
    seed: int = 0
    sequences: Sequences | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        for name in ("seqlen_q", "seqlen_k"):
            put(name, whole(name, getattr(self, name), 0, LARGEST))
        put("head_dim", whole("head_dim", self.head_dim, 1))
        put("batch", whole("batch", self.batch, 0))
        put("num_heads", whole("num_heads", self.num_heads, 1))
        if self.head_dim_v is None:
            put("head_dim_v", self.head_dim)
        if self.num_kv_heads is None:
            put("num_kv_heads", self.num_heads)
        put("head_dim_v", whole("head_dim_v", self.head_dim_v, 1))
        put("num_kv_heads", whole("num_kv_heads", self.num_kv_heads, 1))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, "
                f"got num_heads={self.num_heads} and num_kv_heads={self.num_kv_heads}"
            )
        one_of("dtype", self.dtype, DTYPES)
        if self.softmax_scale is None:
            put("softmax_scale", 1 / math.sqrt(self.head_dim))
        put("softmax_scale", finite("softmax_scale", self.softmax_scale))
        put("causal", checks.flag("causal", self.causal))
        put("window", window_sides(self.window))
        put("key_lengths", self._checked_lengths())
        if not isinstance(self.score_mods, tuple | list):
            raise TypeError(
                f"score_mods must be a sequence of ScoreMod, got {shown(self.score_mods)}"
            )
        put("score_mods", tuple(self.score_mods))
        for mod in self.score_mods:
            if not isinstance(mod, ScoreMod):
                raise TypeError(f"score_mods must hold ScoreMod objects, got {shown(mod)}")
        if self.mask is not None and not isinstance(self.mask, Mask):
            raise TypeError(f"mask must be a Mask or None, got {shown(self.mask)}")
        if self.block_mask is not None:
            self._check_block_mask(self.block_mask)
        put("dropout_p", checks.dropout_probability("dropout_p", self.dropout_p))
        put("seed", checks.seed("seed", self.seed))
        if self.sequences is not None:
            for name in ("key_lengths", "block_mask"):
                if (given := getattr(self, name)) is not None:
                    raise ValueError(f"{name} must be None in a packed batch, got {shown(given)}")

    def _checked_lengths(self) -> np.ndarray | None:
        if self.key_lengths is None:
            return None
        try:
            lengths = np.asarray(self.key_lengths, int if self.batch == 0 else None)
        except (ValueError, TypeError):  # ragged, or no numbers
            lengths = np.array(None)
        if lengths.shape != (self.batch,) or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"key_lengths must be whole numbers of shape ({self.batch},), "
                f"got {lengths.dtype} of shape {lengths.shape}"
            )
        if lengths.size and (lengths.min() < 0 or lengths.max() > self.seqlen_k):
            raise ValueError(
                f"key_lengths must lie in 0..{self.seqlen_k} (seqlen_k), got {lengths.tolist()}"
            )
        return lengths.astype(np.int64)

    def _check_block_mask(self, block_mask: BlockMask) -> None:
        kinds = getattr(block_mask, "kinds", None)
        if not isinstance(kinds, np.ndarray):
            raise TypeError(f"block_mask must be a BlockMask or None, got {shown(block_mask)}")
        tiles = block_mask.grid(self)
        allowed = {1, self.batch}, {1, self.num_heads}, {tiles[0]}, {tiles[1]}
        if kinds.ndim != 4 or any(a not in b for a, b in zip(kinds.shape, allowed, strict=True)):
            raise ValueError(
                f"block_mask must list tiles of shape (1 or {self.batch}, 1 or {self.num_heads}, "
                f"{tiles[0]}, {tiles[1]}) = (batch, num_heads, query tiles, key tiles), "
                f"got {kinds.shape}"
            )

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

    def alike(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Sequences by their numbers of queries and keys: the first of them, and how many."""
        if self.sequences is not None:
            queries, keys = (self.side_of(name).used for name in "qk")
        elif self.key_lengths is not None:
            queries, keys = np.full(self.batch, self.seqlen_q), self.key_lengths
        else:
            return {(self.seqlen_q, self.seqlen_k): (0, self.batch)} if self.batch else {}
        pairs = np.stack([queries, keys], axis=1)
        found, *which = np.unique(pairs, axis=0, return_index=True, return_counts=True)
        numbers = zip(*(one.tolist() for one in which), strict=True)
        return dict(zip(map(tuple, found.tolist()), numbers, strict=True))

    def sequence(self, batch: int) -> Problem:
        """Sequence `batch` alone as a problem with one length; the index of its batch stays."""
        if self.sequences is None:
            return self
        lengths = {"seqlen_q": self._rows("q", batch), "seqlen_k": self._rows("k", batch)}
        lengths = {name: rows.stop - rows.start for name, rows in lengths.items()}
        return replace(self, **lengths, sequences=None)

    def _rows(self, name: str, batch: int) -> slice:
        """Rows of sequence `batch` in the array `name`."""
        if self.sequences is None:
            return slice(0, self.key_length(batch) if name in _OF_KEYS else self.seqlen_q)
        return self.side_of(name).rows(batch)

    def side_of(self, name: str) -> Side:
        """Where the sequences of a packed batch lie in the array `name`; known on the host only."""
        assert self.sequences is not None
        side = self.sequences.keys if name in _OF_KEYS else self.sequences.queries
        assert side is not None
        return side

    def of_sequence(self, name: str, array: np.ndarray, batch: int) -> np.ndarray:
        """The part of an array that belongs to sequence `batch`, a view.

        Parameters
        ----------
        name : str
            Under which `shapes` has the array's shape.

        Returns
        -------
        array of shape (rows, heads, columns), or (num_heads, rows) for lse and dlse
        """
        rows = self._rows(name, batch)
        part = array if self.sequences is not None else array[batch]
        return part[:, rows] if name in ("lse", "dlse") else part[rows]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all inputs and outputs by name (q, k, v, o, lse; do, dlse, dq, dk, dv)."""
        q: tuple[int, ...] = self.batch, self.seqlen_q, self.num_heads, self.head_dim
        k: tuple[int, ...] = self.batch, self.seqlen_k, self.num_kv_heads, self.head_dim
        lse: tuple[int, ...] = self.batch, self.num_heads, self.seqlen_q
        if self.sequences is not None:
            q, k = (self.sequences.total_q, *q[2:]), (self.sequences.total_k, *k[2:])
            lse = self.num_heads, self.sequences.total_q
        v, o = (*k[:-1], self.head_dim_v), (*q[:-1], self.head_dim_v)
        inputs = {"q": q, "k": k, "v": v, "do": o, "dlse": lse}
        return inputs | {"o": o, "lse": lse, "dq": q, "dk": k, "dv": v}

    def check_shapes(self, **arrays) -> None:
        """Raise for the first array whose shape is not the problem's, or that holds no numbers.

        Parameters
        ----------
        **arrays
            Under the names of `shapes`.
        """
        for name, array in arrays.items():
            if not isinstance(getattr(array, "shape", None), tuple):
                raise TypeError(f"{name} must be an array, got {shown(array)}")
            allowed, received = self.shapes[name], tuple(array.shape)
            if received != allowed:
                packed = self.sequences is not None
                if name in ("lse", "dlse"):
                    layout = "num_heads, total_q" if packed else "batch, num_heads, seqlen_q"
                else:
                    layout = f"{'total' if packed else 'batch, seqlen'}, heads, head_dim"
                raise ValueError(f"{name} must have shape {allowed} ({layout}), got {received}")
            if getattr(array.dtype, "kind", "f") not in "fiubV":
                raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")

    @property
    def shift(self) -> Any:
        """What aligns q_idx with k_idx: keys minus queries, one number or one a batch."""
        if self.sequences is not None:
            return self.sequences.shift
        keys = self.seqlen_k if self.key_lengths is None else np.asarray(self.key_lengths)
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
            The remaining fields of `Problem`. Without `dtype` it is that of the arrays, which must
            agree; with it any array is taken, as a float64 one whose numbers stand for that type.
        """
        for name, array in (("q", q), ("k", k), ("v", v)):
            axes(name, array, "batch", "seqlen", "heads", "head_dim")
        agree("batch", q=q.shape[0], k=k.shape[0], v=v.shape[0])
        agree("seqlen_k", k=k.shape[1], v=v.shape[1])
        agree("num_kv_heads", k=k.shape[2], v=v.shape[2])
        agree("head_dim", q=q.shape[3], k=k.shape[3])
        if q.shape[2] % max(k.shape[2], 1):
            raise ValueError(
                f"heads of q must be a multiple of the heads of k and v, got {q.shape[2]} and "
                f"{k.shape[2]}; the layout is (batch, seqlen, heads, head_dim)"
            )
        if "dtype" not in options:
            options["dtype"] = dtype_name(q.dtype)
            if not q.dtype == k.dtype == v.dtype:
                raise TypeError(
                    f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
                )
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


def check_problem(problem) -> None:
    """Raise a TypeError unless `problem` is a Problem."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {shown(problem)}")


def _all_of(*masks: Mask | None) -> Mask | None:
    present = [mask for mask in masks if mask is not None]
    return reduce(and_, present) if present else None


def window_sides(window) -> tuple[int | None, int | None]:
    """`window` if it is a pair of whole numbers >= 0 or None, else a ValueError.

    A side beyond `masks.UNLIMITED` becomes that: no sequence is as long.
    """
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(
            f"window must be a pair (left, right) of whole numbers or None, got {shown(window)}"
        ) from None

    def side(value):
        if value is None:
            return None
        return min(whole("window side (None = unlimited)", value, 0), masks.UNLIMITED)

    return side(left), side(right)
