"""Claims about models, frameworks, times and many GPUs."""

from __future__ import annotations

import json
import pkgutil

import numpy as np

from flash_numba import interop

from ..hardware import A100, H100, Roofline
from ..inputs import demo_input
from .claim import (
    CONDITIONS,
    HOLDS,
    UNCHECKABLE,
    UNMEASURED,
    WRONG,
    Found,
    claim,
    conditional_if,
    holds_if,
    plausible_if,
)
from .evidence import (
    RESULTS,
    best_rates,
    form,
    least_time,
    measured_on,
    off_by,
    results,
    si,
    softmax,
)

FLASH_RUNGS = "flash2", "tensor_core", "hopper"
"""Whose measured times count as those of FlashAttention; torch_math's are standard attention's."""


def speedups() -> tuple[list[float], str]:
    """Measured times of standard attention over those of FlashAttention, and where."""
    ratios, where = [], ""
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for row in found.get("rows", ()):
            if row.get("rung") in FLASH_RUNGS and "torch_math" in row.get("peers", ()):
                ratios.append(row["peers"]["torch_math"] / row["ms"])
                where = measured_on(found)
    return ratios, where


def attention_share(N: int, width: int, d: int) -> float:
    """The share of a layer's least time on an A100 that standard attention takes, fp16."""
    heads = width // d
    attention = heads * least_time(A100, form("algorithm0", N, d)).total_s
    products = 2 * 12 * width**2 * N / A100.matmul_flops_per_s("fp16")
    return attention / (attention + products)


@claim("C05", "0 §1, §2")
def faster_in_practice() -> Found:
    """FlashAttention is 2-4x faster in practice."""
    ratios, where = speedups()
    bound = {N: form("algorithm0", N).hbm_bytes / form("flash2", N).hbm_bytes for N in (512, 8192)}
    traffic = ", ".join(f"{ratio:.1f}x at N={N:,}" for N, ratio in bound.items())
    if not ratios:
        return Found(
            UNMEASURED,
            "between 1 and the ratio of traffic, by what binds each (C44)",
            f"traffic falls {traffic} (d=64, B_r=128); times of standard attention in the same "
            "run as "
            "flash2's are yet to be measured",
        )
    return Found(
        conditional_if(min(ratios) < 4 and max(ratios) > 2),
        "between 1 and the ratio of traffic, by what binds each (C44)",
        f"{min(ratios):.1f}x to {max(ratios):.1f}x over {len(ratios)} cells ({where}); traffic "
        "falls "
        f"{traffic}",
    )


@claim("C38", "0 §3.3")
def table_of_times() -> Found:
    """BERT-Large N=512 142→62 ms; GPT-3 N=2048 890→210; ViT-Huge N=1024 315→98."""
    rows = (
        ("BERT-Large", 512, 64, 142, 62),
        ("GPT-3", 2048, 128, 890, 210),
        ("ViT-Huge", 1024, 80, 315, 98),
    )
    parts = []
    for name, N, d, slow, fast in rows:
        traffic = form("algorithm0", N, d).hbm_bytes / form("flash2", N, d).hbm_bytes
        judged = plausible_if(slow / fast <= traffic)
        parts.append(f"{name} {slow / fast:.1f}x where traffic falls {traffic:.1f}x: {judged}")
    return Found(
        UNCHECKABLE,
        "neither batch nor GPU nor what is timed is given; the source's own runs would decide",
        "; ".join(parts) + " (B_r=128, by traffic alone)",
    )


@claim("C45", "0 §4.2")
def drop_in() -> Found:
    """Drop-in flash_attention(Q,K,V) of (batch, seq, heads, head_dim) in PyTorch and TensorFlow."""
    modules = {module.name for module in pkgutil.iter_modules(interop.__path__)}
    asked = ("pytorch", "tensorflow")
    have = [name for name in asked if name in modules]
    return Found(
        conditional_if(have == ["pytorch"]),
        "in PyTorch, with autograd, any strides; TensorFlow is not served. The layout is "
        "FlashAttention's "
        "own; torch's scaled_dot_product_attention has (batch, heads, seq, head_dim)",
        f"{len(have)} of {len(asked)} frameworks here: {', '.join(have)}",
    )


@claim("C46", "0 §4.2")
def multihead_attention() -> Found:
    """At 8K tokens, 3.8x faster than nn.MultiheadAttention on an A100."""
    standard, flash = form("algorithm0", 8192), form("flash2", 8192)
    ratio = least_time(A100, standard).total_s / least_time(A100, flash).total_s
    return Found(
        UNCHECKABLE,
        "nn.MultiheadAttention includes its projections, and has called FlashAttention itself "
        "since "
        "torch 2.0; a run of both on an A100 would decide",
        f"least times of attention alone on an A100, d=64: {ratio:.1f}x (B_r=128): 3.8x is "
        f"{plausible_if(ratio >= 3.8)} against the one of 2022",
    )


@claim("C49", "0 §4.3")
def fixed_latency() -> Found:
    """Deterministic memory access gives a fixed latency (99th percentile within 0.3 ms)."""
    layer = cameras_layer()
    least, share = 1e3 * layer.total_s, 0.3 / 12.7
    return Found(
        UNCHECKABLE,
        "the accesses are the same each time, and with them the least time; clocks, other work on "
        "the GPU and the launch are not. Percentiles of that system would decide",
        f"8,192 tokens, 8 heads of 64: at least {least:.2f} ms a layer on an A100 each time, by "
        f"{layer.bound}: 12.7 ms are {plausible_if(least <= 12.7)} up to {12.7 / least:.0f} "
        f"layers. 0.3 ms are {0.3 / least:.0%} of a layer and {share:.1%} of 12.7 ms: clocks must "
        f"keep to {share:.1%}",
    )


def cameras_layer() -> Roofline:
    """Least time on an A100 of a layer's attention of 8 streams of 1,024 tokens, 8 heads of 64."""
    return least_time(A100, form("flash2", 8 * 1024) * 8)


def judged(margins: list[float]) -> str:
    """Of what 128 gains over the better of 64 and 256: 15 % always, sometimes, or never."""
    if min(margins) >= 0.15:
        return HOLDS
    return CONDITIONS if max(margins) >= 0.15 else WRONG


@claim("C55", "0 §5.1")
def tile_of_128() -> Found:
    """Beyond 2048 tokens M=128 beats 64 and 256 by 15-20 % on A100/H100."""
    times = {B: least_time(H100, form("flash2", 4096, 64, B, 64)) for B in (64, 128, 256)}
    found = results("h200_tiles")
    exact = (
        "larger tiles move less; what stops them is registers, which hold S and O of the tile, and "
        "the number of blocks: the best tile is a kernel's own"
    )
    told = "least times a head by the roofline of an H100, N=4,096, d=64, fp16: " + ", ".join(
        f"B_r={B} {1e6 * time.total_s:.1f} µs ({time.bound})" for B, time in times.items()
    )
    if found is None:
        return Found(UNMEASURED, exact, told)
    cells = sorted({(row["head_dim"], row["seqlen"]) for row in found["rows"]})
    margins, measured = [], []
    for d, N in cells:
        rates = best_rates(found["rows"], d, N)
        if N > 2048:
            margins.append(rates[128] / max(rates[64], rates[256]) - 1)
            measured.append(
                f"d={d}, N={N:,}: "
                + ", ".join(f"{B} {rate:.0f}" for B, rate in sorted(rates.items()))
                + f" ({margins[-1]:+.0%})"
            )
    return Found(
        judged(margins),
        exact,
        f"one kernel that differs in B_r alone ({measured_on(found)}), TFLOP/s in fp16 and what "
        f"128 gains over the better of the others: {'; '.join(measured)}; {told}",
    )


@claim("C63", "0 §5.3")
def gradient_accumulation() -> Found:
    """Gradient accumulation: ∇W = (1/N) Σ ∇W_i."""
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((12, 3)), rng.standard_normal(12), rng.standard_normal(3)

    def gradient(rows):
        return 2 * X[rows].T @ (X[rows] @ w - y[rows]) / len(y[rows])

    whole = gradient(slice(12))
    equal = np.mean([gradient(slice(i, i + 4)) for i in (0, 4, 8)], axis=0)
    uneven = np.mean([gradient(slice(*ends)) for ends in ((0, 2), (2, 12))], axis=0)
    errors = off_by(equal, whole), off_by(uneven, whole)
    return Found(
        conditional_if(errors[0] < 1e-12 < errors[1]),
        "for a mean loss over micro-batches of equal size; else weight each by its tokens",
        f"three of 4: off by {errors[0]:.0e}; of 2 and 10: {errors[1]:.0%}",
    )


@claim("C64", "0 §5.3")
def tensor_parallel() -> Found:
    """Tensor parallel attention: concat(head_1..head_k) W_O through an all-gather."""
    rng = np.random.default_rng(0)
    heads, W = rng.standard_normal((4, 16, 8)), rng.standard_normal((32, 32))
    gathered = np.concatenate(list(heads), axis=1) @ W
    reduced = np.sum([head @ W[8 * h : 8 * h + 8] for h, head in enumerate(heads)], axis=0)
    error = float(np.abs(gathered - reduced).max())
    return Found(
        conditional_if(error < 1e-12),
        "right; usually each GPU multiplies with its rows of W_O and the sums are all-reduced "
        "(Shoeybi et "
        "al. 2019): W_O need not be copied to every GPU",
        f"both differ by {error:.0e}; W_O a GPU: {W.size:,} elements against {W.size // 4:,} on 4",
    )


@claim("C66", "0 §5.3")
def pipeline_decoding() -> Found:
    """Pipeline parallel decoding: KV cache partitioned over stages, 1F1B schedule."""
    layers, kv_width, tokens, stages = 32, 1024, 8192, 4
    cache = 2 * layers // stages * kv_width * tokens * 2
    sent = 4096 * 2
    return Found(
        WRONG if sent < cache else CONDITIONS,
        "a stage keeps the cache of its own layers and never sends it; between stages go "
        "activations, one "
        "row a token. 1F1B orders forward and backward passes, and decoding has no backward",
        "32 layers on 4 stages, 8,192 tokens, 1,024 kv columns, fp16: a stage keeps "
        f"{si(cache)}, and "
        f"sends {si(sent)} a token (width 4,096)",
    )


@claim("C67", "0 §5.3")
def linear_scaling() -> Found:
    """Near-linear scaling to 256 GPUs at 8K tokens."""
    rows = 8192 // 256
    needed = H100.matmul_flops_per_s("bf16") / rows
    return Found(
        UNCHECKABLE,
        "a GPU with N/p queries does 4·(N/p)·d FLOPs for each key that it receives as 4d bytes "
        "(K and V, "
        "bf16): N/p FLOPs a byte. A run on them would decide",
        f"a sequence over 256 GPUs leaves {rows} queries each: products at an H100's peak would "
        "need "
        f"{needed / 1e12:.1f} TB/s a GPU, {needed / H100.hbm_bytes_per_s:.1f} times what its HBM "
        f"gives: {plausible_if(needed <= H100.hbm_bytes_per_s)}, but as data parallelism, where K "
        "and V stay where they are",
    )


@claim("C73", "0 §6.2")
def sparse_variants() -> Found:
    """Sparse variants give 2-4x more at 90-95 % of the accuracy."""
    left = (
        form("flash2", 8192, window=(1024, 1024)).matmul_flops / form("flash2", 8192).matmul_flops
    )
    return Found(
        UNCHECKABLE,
        "FLOPs and traffic fall with the tiles left (C34); accuracy is a property of model and "
        "task",
        f"a window of 1,024 to each side at N=8,192 leaves {left:.0%} of the FLOPs: at most "
        f"{1 / left:.1f}x, so that 2x is {plausible_if(left <= 1 / 2)}; the models would decide on "
        "accuracy",
    )


@claim("C79", "1")
def universal_win() -> Found:
    """A near-universal win, a one-line drop-in."""
    cases = {
        "N=64": (64, 64, 64),
        "one query and 4,096 keys": (1, 4096, 64),
        "N=4,096 and B_r=16": (4096, 4096, 16),
        "N=4,096 and B_r=128": (4096, 4096, 128),
    }
    ratios = {
        name: form("algorithm0", N, M=M).hbm_bytes / form("flash2", N, M=M, B_r=B_r).hbm_bytes
        for name, (N, M, B_r) in cases.items()
    }
    return Found(
        conditional_if(min(ratios.values()) < 1.1 < max(ratios.values())),
        "the gain in traffic is at most 1 + N/d and needs tiles above d/2; a new token attends to "
        "its cache at the cost of reading it, however it is done",
        "traffic of standard attention over flash2's, d=64: "
        + ", ".join(f"{ratio:.2f} for {name}" for name, ratio in ratios.items()),
    )


@claim("C84", "0 §4.3")
def gpt4() -> Found:
    """GPT-4: 30 % less memory, 18 % less time a step."""
    share = attention_share(8192, 12288, 128)
    return Found(
        UNCHECKABLE,
        "its sizes are not published; whoever trained it would decide",
        f"for GPT-3's width (12,288) at N=8,192 standard attention is at least {share:.0%} of a "
        "layer's "
        f"time on an A100's roofline: 18 % less is {plausible_if(share >= 0.18)}",
    )


@claim("C85", "0 §4.3")
def vit_large() -> Found:
    """ViT-Large: 22 % less training time."""
    N = (224 // 16) ** 2 + 1
    share = attention_share(N, 1024, 64)
    return Found(
        UNCHECKABLE,
        "the share of time that standard attention takes bounds the gain; a training run would "
        "decide",
        f"N={N}, width 1,024: standard attention is {share:.0%} of a layer's least time on an "
        f"A100: 22 % less is {plausible_if(share >= 0.22)} by that roofline",
    )


@claim("C86", "0 §4.3")
def protein_model() -> Found:
    """Protein model: 3.1x throughput, under 32 GB at 5,000 residues."""
    N, channels = 5000, 128
    pair = N * N * channels * 2
    scores = 4 * N * form("algorithm0", N, 32).writes["S"] * 2
    return Found(
        UNCHECKABLE,
        "triangle attention is N rows of N x N: N³ scores a head, which FlashAttention need not "
        "store; "
        "the pair representation N²·c remains; a run at that length would decide",
        f"5,000 residues, bf16: pair representation {si(pair)} a copy, scores of 4 heads "
        f"{si(scores)} where they are stored: under 32 GB is {plausible_if(scores < 32e9)} with "
        f"them and {plausible_if(pair < 32e9)} without, for up to {32e9 // pair:.0f} copies of the "
        "former",
    )


@claim("C87", "0 §4.3")
def eight_cameras() -> Found:
    """8 camera streams at 36 FPS: 12.7 ms of a 15 ms budget."""
    frame = 1e3 / 36
    least = 1e3 * cameras_layer().total_s
    return Found(
        UNCHECKABLE,
        "a frame every 27.8 ms leaves room for 15; the rest is that vehicle's hardware, whose "
        "traces "
        "would decide",
        f"{frame:.1f} ms a frame; 8,192 tokens, 8 heads of 64 take an A100 at least {least:.2f} "
        f"ms a layer: 12.7 ms are {plausible_if(least <= 12.7)} up to {12.7 / least:.0f} layers",
    )


@claim("C90", "0 §5.3")
def communication_and_sparsity() -> Found:
    """Communication is overlapped with the softmax and reduced by the sparsity of scores."""
    q, k, _, _ = demo_input()
    heads = q.astype(np.float64)[0].swapaxes(0, 1) @ k.astype(np.float64)[0].transpose(1, 2, 0)
    weights = softmax(heads / np.sqrt(q.shape[-1]))
    zeros, small = float((weights == 0).mean()), float((weights < 1e-3).mean())
    tiles = weights.reshape(*weights.shape[:1], 206, 206)[:, :192, :192]
    tiles = tiles.reshape(12, 12, 16, 12, 16).max(axis=(2, 4))
    empty = float((tiles < 1e-3).mean())
    return Found(
        holds_if(zeros > 0.5),
        "exact attention needs every key, and which scores are small is known only after "
        "computing them; "
        "ring attention overlaps sends with tiles, and a causal mask saves half of them",
        f"12 heads of a real layer: {zeros:.0%} of the weights are 0, {small:.0%} below 0.001, "
        "but only "
        f"{empty:.0%} of tiles of 16 x 16 have none above that",
    )


@claim("C91", "0 §5.3")
def thirteen_billion() -> Found:
    """1.2 samples/s/GPU at 13B parameters."""
    rate = 1.2 * 6 * 13e9 * 8192
    shares = {gpu.name: rate / gpu.matmul_flops_per_s("bf16") for gpu in (A100, H100)}
    return Found(
        UNCHECKABLE,
        "6·P·N FLOPs a sample at least (forward and backward of the weights alone); the run's log "
        "would decide",
        f"8,192 tokens a sample: {rate / 1e12:.0f} TFLOP/s, "
        + ", ".join(
            f"{share:.0%} of an {name}'s bf16 peak ({plausible_if(share <= 1)} by that bound)"
            for name, share in shares.items()
        ),
    )
