"""Closed forms of standard attention: `tiled`, and the idealised baselines without a capacity.

None skips a tile, so N, M, A = NM and the sums R and C over all tiles are all there is.
"""

from ..counts import Counts
from .tally import Sizes
from .visits import Visits


def tiled_forward(t: Visits, s: Sizes) -> Counts:
    """S kernel, softmax kernel (two passes over S), O kernel."""
    d, v = s.d, s.v
    A, R, C = t.area, t.row_loads, t.key_loads
    moved = R * d + C * d + 2 * A + A + C * v
    peaks = [max((r + c) * d, r * c, r * c + c * v) for r, c in t.largest]
    return s.count(
        {"Q": R * d, "K": C * d, "S": 2 * A, "P": A, "V": C * v},
        {"S": A, "P": A, "LSE": t.queries, "O": t.queries * v},
        loads=moved,
        stores=moved,
        peak=s.itemsize * max(peaks, default=0),
        products=A * (d + v),
        exp=2 * A + R,
    )


def tiled_backward(t: Visits, s: Sizes, dlse: bool) -> Counts:
    """The dV, dP, dS (two passes over P and dP), dQ and dK kernels."""
    d, v = s.d, s.v
    A, R, C = t.area, t.row_loads, t.key_loads
    moved = 7 * A + 2 * R * v + C * v + t.queries * dlse + C * d + R * d
    peaks = [
        s.itemsize * max(r * c + r * v, (r + c) * v, 2 * r * c, r * c + c * d, r * c + r * d)
        for r, c in t.largest
    ]
    return s.count(
        {
            "P": 3 * A,
            "dP": 2 * A,
            "dS": 2 * A,
            "dO": 2 * R * v,
            "V": C * v,
            "K": C * d,
            "Q": R * d,
            "dLSE": t.queries * dlse,
        },
        {"dV": t.keys * v, "dP": A, "dS": A, "dQ": t.queries * d, "dK": t.keys * d},
        loads=moved,
        stores=moved,
        peak=max([*peaks, 4 * t.tile_rows * dlse]),
        products=A * (2 * d + 2 * v),
    )


def algorithm0_forward(t: Visits, s: Sizes) -> Counts:
    """S = QKᵀ; P = softmax S; O = PV."""
    return _baseline_forward(t, s, {"S": t.area, "P": t.area}, {"S": t.area, "P": t.area})


def fused_softmax_forward(t: Visits, s: Sizes) -> Counts:
    """P = softmax QKᵀ in one operation; O = PV."""
    return _baseline_forward(t, s, {"P": t.area}, {"P": t.area})


def with_mask_and_dropout_forward(t: Visits, s: Sizes) -> Counts:
    """Passes of their own for mask and dropout; a byte an element of each of their tensors."""
    return _baseline_forward(
        t,
        s,
        {"S": 2 * t.area, "P": 2 * t.area, "mask": t.area},
        {"S": 2 * t.area, "P": 2 * t.area, "dropout": t.area},
    )


def algorithm0_backward(t: Visits, s: Sizes) -> Counts:
    """Five operations: dV = PᵀdO; dP = dOVᵀ; dS from P and dP; dQ = dSK; dK = dSᵀQ."""
    reads = {"P": 2 * t.area, "dP": t.area, "dS": 2 * t.area}
    return _baseline_backward(t, s, reads, {"dP": t.area, "dS": t.area})


def fused_softmax_backward(t: Visits, s: Sizes) -> Counts:
    """As `algorithm0_backward`, with dS in one operation from P, dO, O and V."""
    reads = {"P": 2 * t.area, "dS": 2 * t.area, "O": t.queries * s.v}
    return _baseline_backward(t, s, reads, {"dS": t.area})


def with_mask_and_dropout_backward(t: Visits, s: Sizes) -> Counts:
    """As `algorithm0_backward`, with a pass over dP for dropout and one over dS for the mask."""
    reads = {"P": 2 * t.area, "dP": 2 * t.area, "dS": 3 * t.area}
    masks = {"mask": t.area, "dropout": t.area}
    return _baseline_backward(t, s, reads | masks, {"dP": 2 * t.area, "dS": 2 * t.area})


def _baseline_forward(t: Visits, s: Sizes, reads: dict, writes: dict) -> Counts:
    keys = t.keys_by_head
    inputs = {"Q": t.queries * s.d, "K": keys * s.d, "V": keys * s.v}
    outputs = {"O": t.queries * s.v}
    return _moved_once(s, inputs | reads, outputs | writes, t.area * (s.d + s.v), t.area)


def _baseline_backward(t: Visits, s: Sizes, reads: dict, writes: dict) -> Counts:
    keys = t.keys_by_head
    inputs = {"Q": t.queries * s.d, "K": keys * s.d, "V": keys * s.v, "dO": 2 * t.queries * s.v}
    outputs = {"dQ": t.queries * s.d, "dK": t.keys * s.d, "dV": t.keys * s.v}
    return _moved_once(s, inputs | reads, outputs | writes, t.area * 2 * (s.d + s.v), 0)


def _moved_once(s: Sizes, reads: dict, writes: dict, products: int, exp: int) -> Counts:
    moved = sum(reads.values()) + sum(writes.values())
    return s.count(reads, writes, loads=moved, stores=moved, peak=None, products=products, exp=exp)
