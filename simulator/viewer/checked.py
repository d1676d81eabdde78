"""A log from a file may hold anything: what must be true of it before it is indexed."""

from __future__ import annotations

import numpy as np

from ..events import EventLog

META = {
    "program": str,
    "direction": str,
    "seqlen_q": int,
    "seqlen_k": int,
    "head_dim": int,
    "head_dim_v": int,
    "dtype": str,
    "causal": bool,
    "window": list,
    "listed_tiles": bool,
    "softmax_scale": float,
    "score_mods": list,
    "num_heads": int,
    "head": int,
    "tile_m": int,
    "tile_n": int,
    "sram_bytes": int | None,
    "kernels": list,
    "lines": list,
    "line_kernels": list,
    "tile_kinds": list,
}
"""What the viewer reads of a log's facts, and their types."""


def checked_kinds(log: EventLog) -> np.ndarray:
    """The tile classes of a log that is whole and agrees with itself.

    Returns
    -------
    int8 array of shape (query tiles, key tiles)

    Raises
    ------
    ValueError
        Naming what contradicts what.
    """
    _check_meta(log.meta)
    if not len(log):
        raise ValueError("event log must hold at least one event, got 0")
    meta = log.meta
    shape = -(-meta["seqlen_q"] // meta["tile_m"]), -(-meta["seqlen_k"] // meta["tile_n"])
    try:
        kinds = np.array(meta["tile_kinds"], np.int8)
    except (ValueError, TypeError, OverflowError):
        kinds = np.zeros(0)
    if kinds.shape != shape and not (kinds.size == 0 == shape[0] * shape[1]):
        raise ValueError(
            f"event log is inconsistent: tile_kinds must have shape {shape}, got {kinds.shape}"
        )
    limits = {"kernel": (0, len(meta["kernels"])), "m_block": (-1, shape[0])}
    for name, (low, high) in (limits | {"n_block": (-1, shape[1])}).items():
        column = log.columns[name]
        if column.min() < low or column.max() >= high:
            raise ValueError(
                f"event log is inconsistent: {name} must lie in {low}..{high - 1}, "
                f"got {column.min()}..{column.max()}"
            )
    if len(meta["line_kernels"]) != len(meta["lines"]):
        raise ValueError("event log is inconsistent: lines and line_kernels differ in number")
    tokens = meta.get("tokens")
    if tokens is not None and (type(tokens) is not list or len(tokens) != meta["seqlen_q"]):
        raise ValueError("event log is inconsistent: tokens and seqlen_q differ in number")
    for event in log.watched:
        if not 0 <= event < len(log):
            raise ValueError(f"event log is inconsistent: values kept after event {event}")
    return kinds.reshape(shape)


def _check_meta(meta) -> None:
    for key, kind in META.items():
        if key not in meta:
            raise ValueError(f"event log must state {', '.join(META)}; {key} is missing")
        value = meta[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{key} of an event log must be of type {wanted}, got {value!r}")
    for key in ("tile_m", "tile_n", "head_dim", "head_dim_v", "num_heads"):
        if meta[key] < 1:
            raise ValueError(f"{key} of an event log must be at least 1, got {meta[key]}")
