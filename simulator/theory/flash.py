"""Closed forms of the flash programs, in the order and words of docs/counting.md.

In each form N and M are queries and keys, A, R and C the sums of r·c, r and c over visited pairs.
"""

from ..counts import Counts
from .tally import Sizes
from .visits import Visits


def flash2_forward(t: Visits, s: Sizes) -> Counts:
    """One block per query tile: Q read once, K and V once a visited pair."""
    d, v = s.d, s.v
    return s.count(
        {"Q": t.active_queries * d, "K": t.key_loads * d, "V": t.key_loads * v},
        {"O": t.queries * v, "LSE": t.queries},
        loads=t.row_loads * d + t.key_loads * (d + v),
        stores=t.active_queries * d + t.key_loads * (d + v),
        peak=max((s.itemsize * (r * d + c * (d + v)) for r, c in t.largest), default=0),
        products=t.area * (d + v),
        exp=t.area + t.row_loads,
    )


def flash2_backward(t: Visits, s: Sizes, dlse: bool) -> Counts:
    """Delta pass, zero fill of dQ, and the one kernel that makes dQ, dK and dV."""
    d = s.d
    fill = Counts(writes={"dQ": t.queries * d}, hbm_bytes=t.queries * d * s.itemsize)
    moved = t.row_loads * d
    step_8 = s.count(
        {"dQ": moved},
        {"dQ": moved},
        loads=t.key_loads * d,
        stores=0,
        peak=0,
        products=t.area * d,
        adds=moved,
    )
    return _delta_pass(t, s, dlse) + fill + _dk_dv_kernel(t, s) + step_8


def flash2_two_kernel_backward(t: Visits, s: Sizes, dlse: bool) -> Counts:
    """Delta pass, dQ kernel, dK/dV kernel."""
    d, v = s.d, s.v
    rows, cols = t.active_queries, t.key_loads
    dq_kernel = s.count(
        {"Q": rows * d, "dO": rows * v, "LSE": rows, "delta": rows, "K": cols * d, "V": cols * v},
        {"dQ": t.queries * d},
        loads=t.row_loads * (d + v + 2) + cols * (2 * d + v),
        stores=rows * (d + v + 2) + cols * (d + v),
        peak=_backward_peak(t, s),
        products=t.area * (2 * d + v),
        exp=t.area,
    )
    return _delta_pass(t, s, dlse) + dq_kernel + _dk_dv_kernel(t, s)


def _delta_pass(t: Visits, s: Sizes, dlse: bool) -> Counts:
    moved = t.queries * (2 * s.v + dlse)
    return s.count(
        {"O": t.queries * s.v, "dO": t.queries * s.v, "dLSE": t.queries * dlse},
        {"delta": t.queries},
        loads=moved,
        stores=moved,
        peak=t.tile_rows * (2 * s.v * s.itemsize + 4 * dlse),
    )


def _dk_dv_kernel(t: Visits, s: Sizes) -> Counts:
    d, v = s.d, s.v
    rows, cols = t.row_loads, t.active_keys
    return s.count(
        {"K": cols * d, "V": cols * v, "Q": rows * d, "dO": rows * v, "LSE": rows, "delta": rows},
        {"dK": t.keys * d, "dV": t.keys * v},
        loads=rows * (2 * d + 2 * v + 2) + t.key_loads * (d + v),
        stores=cols * (d + v) + rows * (d + v + 2),
        peak=_backward_peak(t, s),
        products=t.area * (2 * d + 2 * v),
        exp=t.area,
    )


def _backward_peak(t: Visits, s: Sizes) -> int:
    width = (s.d + s.v) * s.itemsize
    return max((r * (width + 8) + c * width for r, c in t.largest), default=0)


def flash1_forward(t: Visits, s: Sizes) -> Counts:
    """One block per head: K and V read once, Q, O, l and m once a visited pair."""
    d, v = s.d, s.v
    N, A, R, C, cols = t.queries, t.area, t.row_loads, t.key_loads, t.active_keys
    peaks = [s.itemsize * (c * (d + v) + r * (d + v + c)) + 8 * r for r, c in t.largest]
    main = s.count(
        {"K": cols * d, "V": cols * v, "Q": R * d, "O": R * v, "l": R, "m": R},
        {"O": N * v + R * v, "l": N + R, "m": N + R},
        loads=R * (d + 2 + 2 * v) + C * (d + v) + 2 * A,
        stores=cols * (d + v) + R * (d + v + 2) + 2 * A + R * v,
        peak=max(peaks, default=0),
        products=A * (d + v),
        exp=A + 2 * R,
    )
    last = s.count({"m": N, "l": N}, {"LSE": N}, loads=2 * N, stores=2 * N, peak=8 * t.tile_rows)
    return main + last


def flash1_backward(t: Visits, s: Sizes, dlse: bool) -> Counts:
    """One block per kv head: dQ rewritten in HBM, D recomputed for every visited pair."""
    d, v = s.d, s.v
    A, R, C, cols = t.area, t.row_loads, t.key_loads, t.active_keys
    both, vectors = d + v, 1 + dlse
    peaks = [
        s.itemsize * (2 * c * both + 2 * r * both + 2 * r * c) + 4 * r * vectors
        for r, c in t.largest
    ]
    return s.count(
        {
            "K": cols * d,
            "V": cols * v,
            "Q": R * d,
            "O": R * v,
            "dO": R * v,
            "dQ": R * d,
            "LSE": R,
            "dLSE": R * dlse,
        },
        {"dQ": t.queries * d + R * d, "dK": t.keys * d, "dV": t.keys * v},
        loads=R * (4 * both + vectors) + C * (3 * d + 2 * v) + 6 * A + cols * both,
        stores=R * (2 * both + vectors + d) + C * both + 4 * A + 2 * cols * both,
        peak=max(peaks, default=0),
        products=A * (3 * d + 2 * v),
        exp=A,
    )


def aux_gradient(t: Visits, s: Sizes, dlse: bool) -> Counts:
    """Delta pass, and S, P, dP and dS of every visited pair once more; the gradient apart."""
    d, v = s.d, s.v
    rows, cols, both = t.row_loads, t.key_loads, s.d + s.v
    peaks = (s.itemsize * (r + c) * max(d, v) + 8 * r for r, c in t.largest)
    moved = rows * (both + 2) + cols * both
    kernel = s.count(
        {"Q": rows * d, "dO": rows * v, "LSE": rows, "delta": rows, "K": cols * d, "V": cols * v},
        {},
        loads=moved,
        stores=moved,
        peak=max(peaks, default=0),
        products=t.area * both,
        exp=t.area,
    )
    return _delta_pass(t, s, dlse) + kernel
