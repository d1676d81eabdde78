"""Claims about how much arithmetic there is, and how it grows."""

from __future__ import annotations

import numpy as np

from ..theory.asymptotics import PRODUCTS
from .claim import CONDITIONS, HOLDS, WRONG, Found, claim, conditional_if, holds_if
from .evidence import form, growth, measured_on, results, si


@claim("C03", "0 §1")
def time_and_memory() -> Found:
    """Self-attention has O(n²d) time and memory."""
    one, twice = form("algorithm0", 1024, 64), form("algorithm0", 1024, 128)
    time = twice.matmul_flops / one.matmul_flops
    memory = twice.writes["S"] / one.writes["S"]
    return Found(
        WRONG if (time, memory) == (2, 1) else HOLDS,
        "time Θ(n²d): 4n²d FLOPs; memory Θ(n² + nd): the matrix has no d",
        f"twice d: {time:.0f} times the FLOPs, {memory:.0f} times the matrix",
    )


@claim("C08", "0 §1.2")
def flops() -> Found:
    """FLOPs = 2N²d."""
    found = form("algorithm0", 1024, 64)
    ratio = found.matmul_flops / (2 * 1024**2 * 64)
    return Found(
        conditional_if(ratio == 2),
        "2N²d is QKᵀ alone; PV takes as many: 4N²d forward, 8N²d or 10N²d backward",
        f"N=1,024, d=64: {found.matmul_flops:,} counted, {ratio:.0f} times 2N²d; besides, "
        f"{found.exp_count:,} exponentials",
    )


@claim("C09", "0 §1.2")
def one_billion_parameters() -> Found:
    """A 1B-parameter model on 8k tokens needs about 130 TFLOPs per layer."""
    layers, width, N = 20, 2048, 8192
    weights = 12 * width**2
    layer = 2 * weights * N + 4 * N * N * width
    step = 3 * layers * layer
    return Found(
        holds_if(0.5 < layer / 130e12 < 2),
        "2·12·d_model²·N + 4N²·d_model for a layer's forward pass, three times that for a step",
        f"d_model={width}, {layers} layers of {weights:,} weights ({layers * weights / 1e9:.1f} "
        "B): a "
        f"layer {si(layer, 'FLOP')}; a whole training step {si(step, 'FLOP')}",
    )


@claim("C21", "0 §2.2")
def recomputation_cost() -> Found:
    """Recomputation costs only a single additional forward pass."""
    forward = form("flash2", 1024).matmul_flops
    stored = form("algorithm0", 1024, direction="backward").matmul_flops
    extra = {
        name: form(name, 1024, direction="backward").matmul_flops - stored
        for name in ("flash2", "flash2_two_kernel")
    }
    shares = {name: flops / forward for name, flops in extra.items()}
    return Found(
        conditional_if(shares == {"flash2": 0.5, "flash2_two_kernel": 1.5}),
        "S is made again, PV is not: one product of the forward's two, and N² exponentials; a "
        "deterministic form of two kernels makes S and dP twice",
        "more than a backward with P stored, in forward passes: "
        + ", ".join(f"{name} {share}" for name, share in shares.items()),
    )


@claim("C36", "0 §3.3")
def flops_fall() -> Found:
    """FLOPs fall from O(N²d) to O(Nd)."""
    standard, flash = form("algorithm0", 2048).matmul_flops, form("flash2", 2048).matmul_flops
    return Found(
        holds_if(flash < standard),
        "4N²d forward both; backward 10N²d instead of 8N²d: FLOPs rise, traffic falls",
        f"N=2,048, d=64: {standard:,} and {flash:,}; backward "
        f"{form('algorithm0', 2048, direction='backward').matmul_flops:,} and "
        f"{form('flash2', 2048, direction='backward').matmul_flops:,}",
    )


@claim("C40", "0 §3.3")
def latency_linear() -> Found:
    """Latency of standard attention grows as N², of FlashAttention as N."""
    counted = growth(lambda N: form("flash2", N).matmul_flops, 4096)
    found, timed = results("h200_fp32"), ""
    if found:
        rows = {
            row["seqlen"]: row["ms"] / row["batch"]
            for row in found["rows"]
            if (row["rung"], row["direction"], row["head_dim"], row["causal"])
            == ("flash2", "forward", 64, False)
        }
        ratio = rows[8192] / rows[4096]
        timed = f"; measured {ratio:.2f} times the time a sequence ({measured_on(found)}, fp32)"
    return Found(
        holds_if(counted < 3),
        "both as N²: the arithmetic is 4N²d either way; linear is the memory",
        f"twice N: {counted:.0f} times the FLOPs{timed}",
    )


@claim("C52", "0 §5.1")
def optimal_block() -> Found:
    """The optimal block is M = √(C·S/(4d)), C the SRAM and S the number of SMs."""
    d, capacity = 64, 163 * 1024 // 2
    claimed = {sms: (capacity * sms / (4 * d)) ** 0.5 for sms in (108, 432)}
    B_r = max(
        B
        for B in range(16, 2048, 16)
        if (form("flash2", 2048, d, B, 16).sram_peak_bytes or 0) <= 2 * capacity
    )
    moved = {B: form("flash2", 8192, d, B, 16).hbm_elements for B in (64, 256, B_r)}
    return Found(
        holds_if(abs(claimed[108] / B_r - 1) < 0.1),
        "traffic falls with B_r without end, and each SM has an SRAM of its own, so S does not "
        "enter: "
        "the bounds are SRAM, B_r + 2B_c ≤ C/d, and registers, which hold S and O",
        f"A100, d=64, fp16: the formula says {claimed[108]:.0f}, and {claimed[432]:.0f} for four "
        "times "
        f"the SMs; SRAM admits B_r = {B_r}; elements moved at N=8,192: "
        + ", ".join(f"{n:,} (B_r={B})" for B, n in moved.items()),
    )


@claim("C54", "0 §5.1")
def minimum_of_latency() -> Found:
    """Latency = α⌈T/M⌉² + βM has its minimum at M = (αT²/β)^(1/3)."""
    T, alpha, beta = 4096, 1.0, 1.0
    sizes = np.linspace(1, 2000, 200_000)
    smooth = sizes[np.argmin(alpha * (T / sizes) ** 2 + beta * sizes)]
    whole = np.arange(1, 2001)
    stepped = whole[np.argmin(alpha * np.ceil(T / whole) ** 2 + beta * whole)]
    claimed, right = (alpha * T**2 / beta) ** (1 / 3), (2 * alpha * T**2 / beta) ** (1 / 3)
    return Found(
        holds_if(abs(claimed / smooth - 1) < 0.02),
        "the derivative -2αT²/M³ + β vanishes at (2αT²/β)^(1/3); the ceiling moves it to a divisor",
        f"T=4,096, α=β=1: claimed {claimed:.0f}, minimum at {smooth:.0f} (formula {right:.0f}), "
        "with "
        f"the ceiling at {stepped}; and the model is C52's error: latency does not grow with M",
    )


@claim("C57", "0 §5.1")
def backward_trade() -> Found:
    """Backward: 3-5x less memory at 10-15 % more FLOPs."""
    stored, recomputed = PRODUCTS["algorithm0"], PRODUCTS["flash2"]
    backward = recomputed[1] / stored[1] - 1
    both = sum(recomputed) / sum(stored) - 1
    memory = {N: (4 * N * 64 + N * N) / (4 * N * 64 + 2 * N) for N in (512, 1024, 4096)}
    return Found(
        holds_if(0.1 <= min(backward, both) <= 0.15),
        "5 products instead of 4 backward, 7 instead of 6 together; what is kept for it falls by "
        "(4Nd + N²) / (4Nd + 2N), fp16",
        f"FLOPs: {backward:+.0%} backward, {both:+.1%} with the forward; kept: "
        + ", ".join(f"{ratio:.1f}x at N={N:,}" for N, ratio in memory.items()),
    )


@claim("C61", "0 §5.2")
def variable_length_speedup() -> Found:
    """Variable length speedup = 1 / ((1/N) Σ L_max/L_i)."""
    lengths = (128, 256, 512, 1024)
    longest = max(lengths)
    claimed = 1 / np.mean([longest / one for one in lengths])
    padded = len(lengths) * form("flash2", longest).matmul_flops
    packed = sum(form("flash2", one).matmul_flops for one in lengths)
    return Found(
        holds_if(abs(claimed / (padded / packed) - 1) < 0.05),
        "N·L_max² / Σ L_i² of the FLOPs; the formula is below 1 wherever lengths differ: it "
        "calls a "
        "gain a loss",
        f"lengths {lengths}: the formula gives {claimed:.2f}, counted FLOPs {padded / packed:.2f}",
    )


@claim("C81", "0 §1")
def attention_dominates_gpt3() -> Found:
    """In GPT-3 attention dominates the training cost."""
    N, width = 2048, 12288
    scores, weights = 4 * N * N * width, 2 * 12 * width**2 * N
    share = scores / (scores + weights)
    half = 6 * width
    return Found(
        holds_if(share > 0.5),
        "N / (6·d_model + N) of the FLOPs are QKᵀ and PV; half only where N = 6·d_model",
        f"N=2,048, d_model=12,288: {share:.1%}; half at N = {half:,}",
    )


@claim("C89", "0 §5.1")
def ninety_percent() -> Found:
    """90 % of B_max with gradient accumulation beats B_max."""
    sms, heads, tiles = 108, 16, 2048 // 128

    def filled(batch: int) -> float:
        blocks = batch * heads * tiles
        return blocks / (-(-blocks // sms) * sms)

    batches = range(10, 129, 10)
    better = [batch for batch in batches if filled(batch * 9 // 10) > filled(batch)]
    best = max(batches, key=lambda batch: filled(batch * 9 // 10) / filled(batch))
    return Found(
        CONDITIONS if 0 < len(better) < len(batches) else WRONG,
        "the work a sample is the same; only how full the last wave of blocks is differs, "
        "either way",
        f"108 SMs, 16 heads, N=2,048, B_r=128: of {len(batches)} sizes of B_max from 10 to 120, "
        "90 % "
        f"fills the waves better for {len(better)}; most at {best}, {filled(best * 9 // 10):.1%} "
        f"against {filled(best):.1%}",
    )
