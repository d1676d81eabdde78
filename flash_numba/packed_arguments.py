"""From the arguments of a packed attention call to its `Problem`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .addresses import unknown
from .arrays import DeviceArray, Place, contiguous, dtype_of, kind_of
from .checks import agree, axes, shown, whole
from .problem import Problem
from .sequences import Packed, Sequences, Side

LAYOUT = "total", "heads", "head_dim"


def packed_like(q, packed: Packed) -> Packed:
    """`packed` checked, its lists made arrays of q's kind on the host.

    Raises
    ------
    ValueError, TypeError
        If one has not the right type or shape. What is on a GPU is not read.
    """
    found: dict[str, Any] = {}
    for name, given in packed.arrays.items():
        if isinstance(given, list | tuple):
            given = _listed(name, given, q)
        found[name] = given
    for name, given in found.items():
        if given is None and name.startswith("seqused"):
            continue
        if not isinstance(getattr(given, "shape", None), tuple):
            raise TypeError(f"{name} must be an int32 array, got {shown(given)}")
        if dtype_of(given) != "int32":
            raise TypeError(f"{name} must have dtype int32, got {dtype_of(given)}")
    length = found["cu_seqlens_q"].shape[0] if len(found["cu_seqlens_q"].shape) == 1 else 0
    if length == 0:
        raise ValueError(
            "cu_seqlens_q must have shape (batch + 1,), got shape "
            f"{tuple(found['cu_seqlens_q'].shape)}"
        )
    for name, given in found.items():
        allowed = (length if name.startswith("cu") else length - 1,)
        if given is not None and tuple(given.shape) != allowed:
            of = "batch + 1" if name.startswith("cu") else "batch"
            raise ValueError(
                f"{name} must have shape {allowed} ({of}; cu_seqlens_q has {length}), got shape "
                f"{tuple(given.shape)}"
            )
    for name in ("max_seqlen_q", "max_seqlen_k"):
        longest = getattr(packed, name)
        found[name] = None if longest is None else whole(name, longest, 0)
    return Packed(**found)


def _listed(name: str, given, q):
    try:
        array = np.asarray(given, np.int64 if not given else None)
        if array.dtype.kind not in "iu" or np.abs(array).max(initial=0) >= 1 << 31:
            raise ValueError
    except (ValueError, TypeError):
        raise TypeError(f"{name} must hold whole numbers, got {shown(given)}") from None
    kind = kind_of("q", q)
    if kind.device(q) != "cpu":
        raise TypeError(
            f"{name} must be an int32 array on {kind.device(q)}, as q is, "
            f"got a {type(given).__name__}"
        )
    return kind.wrap(array.astype(np.int32), q)


def packed_problem(q_shape, k_shape, v_shape, dtype, numbers, packed: Packed, place: Place):
    """The problem that the shapes, the numbers and `packed` pose.

    Raises
    ------
    ValueError
        If a shape does not fit or, on the host, a number does not.
    """
    for name, shape in (("q", q_shape), ("k", k_shape), ("v", v_shape)):
        axes(name, DeviceArray(0, shape, (), dtype), *LAYOUT)
    if not place.on_host:
        batch = packed.cu_seqlens_q.shape[0] - 1
        return _on_gpu(q_shape, k_shape, v_shape, dtype, numbers, batch)
    sides = []
    for letter, shape in (("q", q_shape), ("k", k_shape)):
        starts, used = (
            None if x is None else place.kind.host(x)
            for x in (getattr(packed, f"cu_seqlens_{letter}"), getattr(packed, f"seqused_{letter}"))
        )
        longest = getattr(packed, f"max_seqlen_{letter}")
        sides.append(_checked_side(letter, shape[0], starts, used, longest))
    return _posed(q_shape, k_shape, v_shape, dtype, numbers, len(sides[0].used), *sides)


def _checked_side(letter: str, total: int, starts, used, longest: int | None) -> Side:
    name = f"cu_seqlens_{letter}"
    if (np.diff(starts) < 0).any() or starts[0] < 0 or starts[-1] > total:
        raise ValueError(
            f"{name} must never fall and lie in 0..{total} (rows of {letter}), got {_some(starts)}"
        )
    rows = np.diff(starts)
    if used is not None and ((used < 0) | (used > rows)).any():
        raise ValueError(
            f"seqused_{letter} must lie between 0 and the sequences' rows {_some(rows)}, "
            f"got {_some(used)}"
        )
    if longest is not None and longest < (most := int(rows.max(initial=0))):
        raise ValueError(
            f"max_seqlen_{letter} must be at least {most}, the rows of the longest sequence, "
            f"got {longest}"
        )
    return Side.of(total, starts, used)


def _some(numbers: np.ndarray) -> str:
    return shown(numbers.tolist())


@lru_cache(maxsize=256)
def _on_gpu(q_shape, k_shape, v_shape, dtype, numbers, batch: int) -> Problem:
    """A repeated call finds its problem made: nothing in it depends on the sequences' lengths."""
    shift = contiguous(unknown("memory"), (batch,), "int64")
    return _posed(q_shape, k_shape, v_shape, dtype, numbers, batch, None, None, shift)


def _posed(q_shape, k_shape, v_shape, dtype, numbers, batch, queries, keys, on_gpu=None) -> Problem:
    layout = ", ".join(LAYOUT)
    agree("total_k", layout=layout, k=k_shape[0], v=v_shape[0])
    agree("num_kv_heads", layout=layout, k=k_shape[1], v=v_shape[1])
    agree("head_dim", layout=layout, q=q_shape[2], k=k_shape[2])
    if q_shape[1] % max(k_shape[1], 1):
        raise ValueError(
            f"heads of q must be a multiple of the heads of k and v, got {q_shape[1]} and "
            f"{k_shape[1]}; the layout is ({layout})"
        )
    return Problem(
        seqlen_q=q_shape[0],
        seqlen_k=k_shape[0],
        head_dim=q_shape[2],
        head_dim_v=v_shape[2],
        batch=batch,
        num_heads=q_shape[1],
        num_kv_heads=k_shape[1],
        dtype=dtype,
        sequences=Sequences(q_shape[0], k_shape[0], queries, keys, on_gpu),
        **numbers.of_problem(),
    )
