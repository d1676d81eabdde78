"""Idealised standard attention: an operation at a time, each operand moved once, no capacity.

These are the counts that papers compare with. No kernel attains them, since no matrix as large as
K or S fits SRAM: here a tile is a whole matrix, and SRAM has no limit. None of them writes lse.

References
----------
Dao et al., "FlashAttention", NeurIPS 2022: `algorithm0` is its Algorithm 0, backward Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..hbm import LAYOUT, Region
from ..machine import Machine
from .softmax import row_dot, row_softmax

SCORES = ("load Q, K", "S = scale Q Kᵀ", "mask S", "store S")
SOFTMAX = ("load S", "P = softmax(S)", "store P")
OUTPUT = ("load P, V", "O = P V", "store O")
DV = ("load P, dO", "dV = Pᵀ dO", "store dV")
DP = ("load dO, V", "dP = dO Vᵀ", "store dP")
DS = ("load P, dP", "dS = scale P ∘ (dP - rowsum(P ∘ dP))", "store dS")
DQ = ("load dS, K", "dQ = dS K", "store dQ")
DK = ("load dS, Q", "dK = dSᵀ Q", "store dK")
FUSED_P = ("load Q, K", "S = scale Q Kᵀ", "mask S", "P = softmax(S)", "store P")
FUSED_DS = (
    "load P, dO, O, V",
    "dP = dO Vᵀ",
    "D = rowsum(dO ∘ O)",
    "dS = scale P ∘ (dP - D)",
    "store dS",
)

ALGORITHM0_LINES = {"S": SCORES, "softmax": SOFTMAX, "O": OUTPUT}
ALGORITHM0_BACKWARD_LINES = {"dV": DV, "dP": DP, "dS": DS, "dQ": DQ, "dK": DK}

FUSED_LINES = {"P": FUSED_P, "O": OUTPUT}
FUSED_BACKWARD_LINES = {"dV": DV, "dS": FUSED_DS, "dQ": DQ, "dK": DK}

MASK_DROPOUT_LINES = {
    "S": ("load Q, K", "S = scale Q Kᵀ", "change S", "store S"),
    "mask": ("load S, mask", "S = -∞ where masked", "store S"),
    "softmax": SOFTMAX,
    "dropout": ("load P", "P = P / (1 - p) where kept, else 0", "store P, dropout"),
    "O": OUTPUT,
}
MASK_DROPOUT_BACKWARD_LINES = {
    "dV": DV,
    "dP": DP,
    "dropout": ("load dP, dropout", "dP = dP / (1 - p) where kept, else 0", "store dP"),
    "dS": DS,
    "mask": ("load dS, mask", "dS = 0 where masked", "store dS"),
    "dQ": DQ,
    "dK": DK,
}


def algorithm0(gpu: Machine) -> None:
    """O; S and P cross HBM twice each."""
    product(gpu, "S", SCORES, "Q", "K", "S")
    elementwise(gpu, "softmax", SOFTMAX, ["S"], ["P"], lambda _, S: row_softmax(S), exp=1)
    product(gpu, "O", OUTPUT, "P", "V", "O")


def algorithm0_backward(gpu: Machine) -> None:
    """dQ, dK, dV from P, which the forward kept."""
    summed_product(gpu, "dV", DV, "P", "dO", "dV")
    product(gpu, "dP", DP, "dO", "V", "dP")
    elementwise(gpu, "dS", DS, ["P", "dP"], ["dS"], softmax_gradient(gpu))
    product(gpu, "dQ", DQ, "dS", "K", "dQ")
    summed_product(gpu, "dK", DK, "dS", "Q", "dK")


def fused_softmax(gpu: Machine) -> None:
    """O; S stays on chip, P crosses HBM twice."""
    load, line, mask, softmax, store = FUSED_P
    gpu.kernel("P")
    for head in gpu.head_grid():
        rows, cols = gpu.all_rows, gpu.all_cols
        sQ, sK = (gpu.load(load, whole(gpu, name, head)) for name in ("Q", "K"))
        rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
        gpu.product(line, rS, sQ, sK.T, scale=gpu.scale)
        gpu.change_scores(mask, rS, head, rows, cols)
        sP = gpu.in_sram("P", rS.shape)
        gpu.compute(softmax, (sP,), (rS,), row_softmax, exp=rS.size)
        gpu.store(store, whole(gpu, "P", head), sP)
        gpu.free(sQ, sK, sP)
    product(gpu, "O", OUTPUT, "P", "V", "O")


def fused_softmax_backward(gpu: Machine) -> None:
    """dQ, dK, dV; dP stays on chip."""
    summed_product(gpu, "dV", DV, "P", "dO", "dV")
    load, line, delta, softmax, store = FUSED_DS
    gradient = softmax_gradient(gpu)
    gpu.kernel("dS")
    for head in gpu.head_grid():
        sP, sdO, sO, sV = (gpu.load(load, whole(gpu, n, head)) for n in ("P", "dO", "O", "V"))
        rdO, rdP = gpu.in_registers("dO", sdO.shape), gpu.in_registers("dP", sP.shape)
        D, sdS = gpu.in_registers("D", sP.shape[:1]), gpu.in_sram("dS", sP.shape)
        gpu.compute(load, (rdO,), (sdO,), np.copy)
        gpu.product(line, rdP, rdO, sV.T)
        gpu.compute(delta, (D,), (rdO, sO), row_dot)
        gpu.compute(softmax, (sdS,), (sP, rdP, D), partial(gradient, head))
        gpu.store(store, whole(gpu, "dS", head), sdS)
        gpu.free(sP, sdO, sO, sV, sdS)
    product(gpu, "dQ", DQ, "dS", "K", "dQ")
    summed_product(gpu, "dK", DK, "dS", "Q", "dK")


def with_mask_and_dropout(gpu: Machine) -> None:
    """O; mask and dropout are operations too, each with a matrix of bytes."""

    def hidden(_, S, keep):
        return np.where(keep > 0, S, np.float32(-np.inf))

    def dropped(head, P):
        kept = np.broadcast_to(gpu.kept(head, gpu.all_rows, gpu.all_cols), P.shape)
        return P * kept, kept

    scores, softmax = MASK_DROPOUT_LINES["S"], MASK_DROPOUT_LINES["softmax"]
    mask, dropout = MASK_DROPOUT_LINES["mask"], MASK_DROPOUT_LINES["dropout"]
    product(gpu, "S", scores, "Q", "K", "S", masked=False)
    elementwise(gpu, "mask", mask, ["S", "mask"], ["masked S"], hidden)
    elementwise(gpu, "softmax", softmax, ["masked S"], ["P"], lambda _, S: row_softmax(S), exp=1)
    elementwise(gpu, "dropout", dropout, ["P"], ["dropped P", "dropout"], dropped)
    product(gpu, "O", OUTPUT, "dropped P", "V", "O")


def with_mask_and_dropout_backward(gpu: Machine) -> None:
    """dQ, dK, dV; P is kept twice, before and after dropout."""
    dropout, mask = MASK_DROPOUT_BACKWARD_LINES["dropout"], MASK_DROPOUT_BACKWARD_LINES["mask"]
    summed_product(gpu, "dV", DV, "dropped P", "dO", "dV")
    product(gpu, "dP", DP, "dO", "V", "dP")
    elementwise(
        gpu, "dropout", dropout, ["dP", "dropout"], ["dropped dP"], lambda _, dP, kept: dP * kept
    )
    elementwise(gpu, "dS", DS, ["P", "dropped dP"], ["dS"], softmax_gradient(gpu, dropout=False))
    elementwise(gpu, "mask", mask, ["dS", "mask"], ["masked dS"], lambda _, dS, keep: dS * keep)
    product(gpu, "dQ", DQ, "masked dS", "K", "dQ")
    summed_product(gpu, "dK", DK, "masked dS", "Q", "dK")


# One operation each: load the operands whole, work, store the result, free.


def whole(gpu: Machine, name: str, head: int) -> Region:
    """All that query head `head` has of a tensor, or the K, V, dK, dV it shares."""
    tensor = gpu.tensor(name)
    shared = LAYOUT[tensor.name][0] == "k"
    return tensor[gpu.all_cols] if shared else tensor[head, gpu.all_rows]


def product(
    gpu: Machine, kernel: str, lines, left: str, right: str, out: str, masked: bool = True
) -> None:
    """A product for each query head: left @ right, or left @ rightᵀ for S (then masked) and dP."""
    load, line, *mask, store = lines
    is_scores = out == "S"
    gpu.kernel(kernel)
    for head in gpu.head_grid():
        sA, sB = gpu.load(load, whole(gpu, left, head)), gpu.load(load, whole(gpu, right, head))
        region = whole(gpu, out, head)
        sOut = gpu.in_sram(out, region.shape)
        scale = gpu.scale if is_scores else 1.0
        weights = gpu.drop(sA, head, gpu.all_rows, gpu.all_cols) if left == "P" else sA
        gpu.product(line, sOut, weights, sB.T if out in ("S", "dP") else sB, scale=scale)
        if is_scores:
            gpu.change_scores(mask[0], sOut, head, gpu.all_rows, gpu.all_cols, masked=masked)
        gpu.store(store, region, sOut)
        gpu.free(sA, sB, sOut)


def summed_product(gpu: Machine, kernel: str, lines, left: str, right: str, out: str) -> None:
    """A product for each kv head: leftᵀ @ right, summed over the query heads that share it."""
    load, line, store = lines
    gpu.kernel(kernel)
    for heads in gpu.kv_head_grid():
        region = whole(gpu, out, 0)
        acc, sOut = gpu.in_registers(out, region.shape, 0.0), gpu.in_sram(out, region.shape)
        for head in heads:
            sA, sB = gpu.load(load, whole(gpu, left, head)), gpu.load(load, whole(gpu, right, head))
            weights = gpu.drop(sA, head, gpu.all_rows, gpu.all_cols) if left == "P" else sA
            gpu.product(line, acc, weights.T, sB, add=True)
            gpu.free(sA, sB)
        gpu.compute(line, (sOut,), (acc,), np.copy)
        gpu.store(store, region, sOut)
        gpu.free(sOut)


def elementwise(
    gpu: Machine,
    kernel: str,
    lines: Sequence[str],
    operands: Sequence[str],
    results: Sequence[str],
    function: Callable,
    exp: int = 0,
) -> None:
    """``results = function(head, *operands)`` a query head; `exp` exponentials an element."""
    load, line, store = lines
    gpu.kernel(kernel)
    for head in gpu.head_grid():
        of = [gpu.load(load, whole(gpu, name, head)) for name in operands]
        into = [gpu.in_sram(name.split()[-1], of[0].shape) for name in results]
        gpu.compute(line, tuple(into), tuple(of), partial(function, head), exp=exp * of[0].size)
        for name, tile in zip(results, into, strict=True):
            gpu.store(store, whole(gpu, name, head), tile)
        gpu.free(*of, *into)


def softmax_gradient(gpu: Machine, dropout: bool = True) -> Callable:
    """``gradient(head, P, dP, D=rowsum(P * dP))`` = dS; `dropout`: dP has yet to go through it."""

    def gradient(head, P, dP, D=None):
        where = head, gpu.all_rows, gpu.all_cols
        if dropout:
            dP = dP * gpu.kept(*where)
        if D is None:
            D = row_dot(P, dP)
        return gpu.score_gradient(P * (dP - D[:, None]), gpu.score_chain(*where), *where)

    return gradient
