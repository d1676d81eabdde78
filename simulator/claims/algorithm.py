"""Claims about what attention and FlashAttention compute."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

from flash_numba import masks, reference
from flash_numba.budget import within_budget
from flash_numba.masks import Mask
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask, Schedule

from ..inputs import random_input
from ..programs import PROGRAMS
from ..run import simulate
from .claim import CONDITIONS, HOLDS, WRONG, Found, claim, conditional_if, holds_if
from .evidence import Attention, form, off_by, softmax

KERNELS = Path(__file__).parents[2] / "flash_numba"


def right_gradient(head: Attention) -> np.ndarray:
    """dQ by the formula of the papers."""
    return head.scale * (head.P * (head.dP - head.delta)) @ head.K


def gradient_claim(claimed: np.ndarray, head: Attention, shape: str) -> Found:
    """What is found of a formula for dQ."""
    dQ = head.dQ
    wrong, right = off_by(claimed, dQ), off_by(right_gradient(head), dQ)
    return Found(
        holds_if(wrong < 1e-6),
        f"dQ = scale·[P∘(dO·Vᵀ - δ)]·K with δ = rowsum(dO∘O); {shape}",
        f"against finite differences, N=M=d={len(dQ)}: off by {wrong:.0%}, the right formula by "
        f"{right:.0e}",
    )


def error_of(problem: Problem, **tiles) -> tuple[float, bool]:
    """flash2's largest error in the simulator, and whether it is within the budget."""
    q, k, v = random_input(problem)
    o, _ = reference.forward(problem, q, k, v)
    twin, _ = reference.forward(problem, q, k, v, dtype=problem.dtype)
    run = simulate("flash2", problem, q, k, v, head=None, **tiles)
    verdict = within_budget(run.arrays["O"], o, twin, problem.dtype)
    return verdict.error, bool(verdict)


@claim("C01", "0 §1")
def scaling() -> Found:
    """softmax(QKᵀ/√d)V; the √d keeps the softmax from saturating."""
    d = 64
    q, k = np.random.default_rng(0).standard_normal((2, 256, d))
    raw = q @ k.T
    largest = [softmax(scores).max(axis=1).mean() for scores in (raw / np.sqrt(d), raw)]
    return Found(
        conditional_if(abs(raw.std() / np.sqrt(d) - 1) < 0.1 and largest[1] > 2 * largest[0]),
        "Var(q·k) = d for independent entries of variance 1, so QKᵀ/√d has variance 1; trained "
        "Q and "
        "K need not be like that",
        f"d=64, N=256: scores have deviation {(raw / np.sqrt(d)).std():.2f} with √d and "
        f"{raw.std():.2f} without; the largest weight of a row is {largest[0]:.2f} and "
        f"{largest[1]:.2f}",
    )


@claim("C02", "0 §1")
def multi_head() -> Found:
    """Multi-head attention = concat of heads times W_O; FFN with ReLU; sinusoidal encoding."""
    rng = np.random.default_rng(0)
    heads, W = rng.standard_normal((4, 10, 8)), rng.standard_normal((32, 32))
    joined = np.concatenate(list(heads), axis=1) @ W
    summed = sum(head @ W[8 * h : 8 * h + 8] for h, head in enumerate(heads))
    where, step, frequency = np.arange(50.0), 7, 10000.0 ** (-np.arange(0, 64, 2) / 64)
    sin, cos = (f((where + step)[:, None] * frequency) for f in (np.sin, np.cos))
    turned = sin - (
        np.sin(where[:, None] * frequency) * np.cos(step * frequency)
        + np.cos(where[:, None] * frequency) * np.sin(step * frequency)
    )
    errors = float(np.abs(joined - summed).max()), float(np.abs(turned).max())
    return Found(
        holds_if(max(errors) < 1e-12 and sin.shape == cos.shape),
        "the definitions of Vaswani et al. 2017: concat(heads)·W_O = Σ head_h·W_O[h], and the "
        "encoding of pos+k is that of pos turned by an angle that depends on k alone",
        f"differences {errors[0]:.0e} and {errors[1]:.0e}",
    )


@claim("C18", "0 §2")
def gradient_as_product() -> Found:
    """∂L/∂Q = (∂L/∂O)Vᵀ · softmax(S)."""
    head = Attention()
    return gradient_claim(head.dP @ head.P, head, "dO·Vᵀ and P are N x M, dQ is N x d")


@claim("C22", "0 §2.2")
def gradient_of_output() -> Found:
    """∂O/∂Q = softmax(QKᵀ/√d) · ∂L/∂O · Kᵀ."""
    head = Attention()
    return gradient_claim(head.P @ head.dO @ head.K.T, head, "P·dO is M x d only if N = M")


@claim("C43", "0 §4.1")
def gradient_elementwise() -> Found:
    """∂L/∂Q = (∂L/∂O)Vᵀ ⊙ softmax(QKᵀ/√d)."""
    head = Attention()
    return gradient_claim(head.dP * head.P, head, "P∘dP is the first term of dS, N x M, not of dQ")


@claim("C56", "0 §5.1")
def gradient_masked() -> Found:
    """∂L/∂Q = (softmax(QKᵀ/√d) ∘ mask) ∂L/∂V."""
    head = Attention()
    dV = head.P.T @ head.dO
    return gradient_claim(head.P @ dV, head, "and the mask acts on S, before the softmax")


@claim("C35", "0 §3.2")
def gradient_of_values() -> Found:
    """∂L/∂V = Pᵀ ∂L/∂O."""
    head = Attention()
    error = off_by(head.P.T @ head.dO, head.dV)
    return Found(
        holds_if(error < 1e-6),
        "dV = Pᵀ·dO (with dropout, P after it)",
        f"against finite differences off by {error:.0e}",
    )


@claim("C26", "0 §2.3")
def block_sparse_softmax() -> Found:
    """It uses a "block-sparse softmax" applied per tile with correction factors."""
    schedule = Schedule(Problem(1024, 1024, 64), 128, 64)
    visited, tiles = int((schedule.kinds() > 0).sum()), schedule.m_blocks * schedule.n_blocks
    return Found(
        holds_if(visited < tiles),
        "the online softmax: every tile is visited, and the running maximum m and sum l make it "
        "exact; "
        "block-sparse attention is another algorithm, which skips tiles",
        f"N=1,024, tiles of 128 and 64: {visited} of {tiles} tiles are visited",
    )


@claim("C27", "0 §2.3")
def reduction_tree() -> Found:
    """Tiles are combined with a reduction tree."""
    rng = np.random.default_rng(0)
    S, V = rng.standard_normal((32, 512)), rng.standard_normal((512, 16))
    parts = [_part(S[:, j : j + 64], V[j : j + 64]) for j in range(0, 512, 64)]
    folded = parts[0]
    for part in parts[1:]:
        folded = _merge(folded, part)
    level = parts
    while len(level) > 1:
        level = [_merge(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    truth = softmax(S) @ V
    tree, chain = (float(np.abs(o / l - truth).max()) for _, l, o in (level[0], folded))
    lines = PROGRAMS["flash2"].forward.lines["forward"]
    return Found(
        WRONG if max(tree, chain) < 1e-12 and "O = α O" in lines else HOLDS,
        "a row's tiles are folded one after another, T_c - 1 merges in a chain; merging is "
        "associative, "
        "so a tree is right too, and split-K decoding uses one",
        f"8 tiles: chain off by {chain:.0e}, tree by {tree:.0e}; flash2's loop has the line 'O = "
        "α O'",
    )


def _part(S, V):
    m = S.max(axis=1, keepdims=True)
    P = np.exp(S - m)
    return m, P.sum(axis=1, keepdims=True), P @ V


def _merge(a, b):
    m = np.maximum(a[0], b[0])
    left, right = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, left * a[1] + right * b[1], left * a[2] + right * b[2]


@claim("C30", "0 §3.1")
def one_kernel() -> Found:
    """One fused kernel does matmul, softmax, scaling and dropout."""
    fused = len(PROGRAMS["flash2"].forward.lines)
    apart = len(PROGRAMS["with_mask_and_dropout"].forward.lines)
    plain, dropped = form("flash2", 512), form("flash2", 512, dropout_p=0.5)
    return Found(
        holds_if(fused == 1 and plain.hbm_bytes == dropped.hbm_bytes),
        "the forward pass is one kernel, and dropout is drawn again from its seed; the backward "
        "takes "
        "two or three",
        f"kernels: {fused} against {apart} for standard attention with mask and dropout; dropout "
        "adds "
        f"{dropped.hbm_bytes - plain.hbm_bytes} bytes of traffic",
    )


@claim("C32", "0 §3.2")
def warp_primitives() -> Found:
    """Kernels use __shfl_xor_sync and __reduce_max_sync for the softmax."""
    calls = {"shfl_xor_sync": 0, "reduce_max_sync": 0}
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                calls[name] = calls.get(name, 0) + 1
    shuffles, reduces = calls["shfl_xor_sync"], calls["reduce_max_sync"]
    return Found(
        conditional_if(shuffles > 0 and reduces == 0),
        "shuffles, yes; __reduce_max_sync takes 32-bit integers only (CUDA C++ Programming "
        "Guide, Warp "
        "Reduce Functions), and scores are floats",
        f"in this project's kernels: {shuffles} calls of shfl_xor_sync, {reduces} of "
        "reduce_max_sync",
    )


@claim("C34", "0 §3.2")
def block_sparse() -> Found:
    """Block-sparse attention reduces FLOPs in proportion to sparsity."""
    N, tile = 512, 64
    rng = np.random.default_rng(0)
    allowed = np.kron(rng.random((8, 8)) < 0.3, np.ones((tile, tile), bool))
    speckled = rng.random((N, N)) < 0.3
    dense = form("flash2", N, 32, tile, tile).matmul_flops
    shares = []
    for matrix in (allowed, speckled):
        mask = masks.boolean(matrix[None, None])
        problem = Problem(N, N, 32, dtype="fp16")
        listed = BlockMask.from_mask(mask, problem, tile, tile)
        sparse = Problem(N, N, 32, dtype="fp16", block_mask=listed)
        run = simulate("flash2", sparse, tile_m=tile, tile_n=tile)
        shares.append((matrix.mean(), run.counts.matmul_flops / dense))
    (blocks, by_blocks), (elements, by_elements) = shares
    return Found(
        conditional_if(blocks == by_blocks and by_elements > 2 * elements),
        "FLOPs fall with the share of tiles left, not of elements: a tile with one visible "
        "element is "
        "computed whole. It is approximate unless the pattern is what is wanted",
        f"{blocks:.1%} of tiles left: {by_blocks:.1%} of the FLOPs; {elements:.1%} of elements "
        "left at "
        f"random: {by_elements:.1%}",
    )


@claim("C59", "0 §5.2")
def padding_mask() -> Found:
    """Padding mask: A_ij = Q_iK_jᵀ/√d for j ≤ L_i, else -∞."""
    padded = Problem(64, 128, 16, key_lengths=[50])
    error, fine = error_of(padded, tile_m=16, tile_n=16)
    whole = simulate("flash2", Problem(64, 128, 16), tile_m=16, tile_n=16).counts.reads["K"]
    short = simulate("flash2", padded, tile_m=16, tile_n=16).counts.reads["K"]
    return Found(
        conditional_if(fine and short == whole * 50 // 128),
        "L belongs to the sequence, not to the query i, and with j from 0 it is j < L",
        f"50 of 128 keys: error {error:.0e}, and {short:,} instead of {whole:,} elements of K "
        "are read: "
        "padding is never loaded",
    )


@claim("C60", "0 §5.2")
def relative_positions() -> Found:
    """R_ij = Σ_k w_k sin(|i-j|θ_k), computed in SRAM inside the kernel."""
    rng = np.random.default_rng(0)
    change = masks.relative_positions(rng.standard_normal(8), 10000.0 ** (-np.arange(8) / 8))
    problem = Problem(48, 48, 16, score_mods=(change,))
    error, fine = error_of(problem, tile_m=16, tile_n=16)
    changed = simulate("flash2", problem, tile_m=16, tile_n=16).counts
    plain = simulate("flash2", Problem(48, 48, 16), tile_m=16, tile_n=16).counts
    return Found(
        holds_if(fine and changed == plain),
        "a change of scores f(score, i, j): the w_k and θ_k are read, no N x N bias exists; w_k "
        "has a "
        "gradient",
        f"error against float64 {error:.0e}, and {changed.hbm_elements - plain.hbm_elements} "
        "elements "
        "of traffic more",
    )


@claim("C65", "0 §5.3")
def sequence_parallel() -> Found:
    """Sequence parallel: O_i = Σ_j softmax(Q_iK_jᵀ/√d) V_j."""
    rng = np.random.default_rng(0)
    S, V = rng.standard_normal((32, 256)), rng.standard_normal((256, 16))
    parts = [(S[:, j : j + 64], V[j : j + 64]) for j in range(0, 256, 64)]
    claimed = sum(softmax(s) @ v for s, v in parts)
    merged = _part(*parts[0])
    for part in parts[1:]:
        merged = _merge(merged, _part(*part))
    truth = softmax(S) @ V
    wrong, right = off_by(np.asarray(claimed), truth), off_by(merged[2] / merged[1], truth)
    return Found(
        holds_if(wrong < 1e-9),
        "each part has a softmax of its own, so the weights of a row would sum to the number of "
        "parts; "
        "O = Σ_j e^(lse_j - lse) O_j is right",
        f"4 parts: off by {wrong:.0%}; merged with lse, by {right:.0e}",
    )


@claim("C72", "0 §6.2")
def shifted_softmax() -> Found:
    """softmax(x)_i = e^(x_i-max) / Σ e^(x_j-max)."""
    x = np.array([[1000.0, 999.0, 0.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        naive = np.exp(x) / np.exp(x).sum()
    ratio = softmax(x)[0, 0] / softmax(x)[0, 1]
    return Found(
        holds_if(bool(np.isnan(naive).any()) and abs(ratio - np.e) < 1e-12),
        "e^(-max) cancels; the exponents are at most 0, and the sum is at least 1",
        f"scores of 1000 and 999: weights in the ratio {ratio:.6f} = e; without the maximum "
        f"{np.isnan(naive).sum()} of 3 are NaN",
    )


@claim("C82", "0 §4.1")
def softmax_of_a_tile() -> Found:
    """Attention = softmax(Q_tile K_tileᵀ/√d) V_tile, a tile at a time."""
    rng = np.random.default_rng(0)
    S, V = rng.standard_normal((32, 256)), rng.standard_normal((256, 16))
    last = softmax(S[:, 192:]) @ V[192:]
    error = off_by(last, softmax(S) @ V)
    broken = simulate("flash2_without_rescale", *_small()).arrays["O"]
    truth, _ = reference.forward(*_small())
    return Found(
        holds_if(error < 1e-9),
        "true if the tile of keys is all keys; else tiles must be combined by their maxima and "
        "sums",
        f"one tile of four: off by {error:.0%}; all tiles without rescaling: "
        f"{off_by(broken, truth):.0%}",
    )


def _small():
    problem = Problem(128, 128, 16)
    q, k, v = random_input(problem)
    return problem, 4 * q, k, v


@claim("C93", "0 §6.1")
def new_mask_new_kernel() -> Found:
    """A new mask pattern needs an entirely new kernel."""
    dilated = Mask(
        "every third key", lambda batch, head, q_idx, k_idx, aux: (q_idx - k_idx) % 3 == 0
    )
    error, fine = error_of(Problem(48, 48, 16, mask=dilated), tile_m=16, tile_n=16)
    return Found(
        WRONG if fine else CONDITIONS,
        "a mask is a function of (batch, head, q_idx, k_idx), which the compiler puts into the one "
        "kernel, here as in FlexAttention",
        f"a one-line mask that no kernel was written for: error against float64 {error:.0e}",
    )
