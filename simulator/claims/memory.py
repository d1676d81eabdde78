"""Claims about how much memory attention needs."""

from __future__ import annotations

import math

from flash_numba.problem import Problem

from ..hardware import A100, H100
from ..theory import counts
from .claim import CONDITIONS, HOLDS, WRONG, Found, claim, conditional_if, holds_if
from .evidence import GB, form, si

N_32K = 32 * 1024


def held(N: int, d: int, flash: bool, itemsize: int = 2) -> int:
    """Bytes of one head's Q, K, V, O and what else the forward keeps: S and P, or lse (fp32)."""
    inputs = 4 * N * d * itemsize
    return inputs + (4 * N if flash else 2 * N * N * itemsize)


def longest(capacity: float, matrices: int, itemsize: int = 2) -> int:
    """The longest sequence of which so many N x N matrices fit."""
    return math.isqrt(int(capacity / (matrices * itemsize)))


@claim("C04", "0 §1")
def one_matrix_at_32k() -> Found:
    """At 32K tokens and d=1280 the attention matrix takes 5 GB per head."""
    fp16, fp32 = N_32K**2 * 2, N_32K**2 * 4
    needed = 5 * GB / N_32K**2
    return Found(
        holds_if(any(abs(size / GB - 5) < 0.5 for size in (fp16, fp32))),
        "N² · bytes an element; d does not appear",
        f"fp16 {si(fp16)}, fp32 {si(fp32)}; 5 GB would be {needed:.2f} bytes an element",
    )


@claim("C12", "0 §1.2")
def impractical_beyond_2k() -> Found:
    """Standard attention is impractical beyond about 2k tokens."""
    layers, heads, capacity = 24, 16, 80 * GB
    inference = longest(capacity, 2 * heads)
    training = {batch: longest(capacity, batch * layers * heads) for batch in (1, 8, 32)}
    return Found(
        conditional_if(min(training.values()) < 2048 < inference),
        "S and P of one layer, or P of every layer in training, must fit: N² · batch · heads · "
        "layers · bytes",
        f"in 80 GB, {heads} heads, fp16: one layer's S and P fit up to N = {inference:,}; P of "
        f"{layers} layers up to N = "
        + ", ".join(f"{N:,} at batch {batch}" for batch, N in training.items()),
    )


@claim("C13", "0 §1.3")
def matrix_with_head_dim() -> Found:
    """M_attention = 4·B·N²·d_head·h bytes."""
    N, d, heads = 1024, 64, 16
    claimed = 4 * N * N * d * heads
    stored = heads * form("algorithm0", N, d, dtype="fp32").writes["S"] * 4
    return Found(
        holds_if(claimed == stored),
        "4·B·h·N² bytes for one fp32 matrix a head: no d",
        f"N={N}, d={d}, h={heads}, B=1: claimed {si(claimed)}, S takes {si(stored)}, "
        f"{claimed // stored} times less",
    )


@claim("C14", "0 §1.3")
def sixteen_heads_at_32k() -> Found:
    """32K tokens and 16 heads take about 64 GB a layer for attention matrices."""
    one, both = 16 * N_32K**2 * 4, 2 * 16 * N_32K**2 * 4
    return Found(
        conditional_if(abs(one / 2**30 - 64) < 1),
        "h · N² · 4 bytes for S alone, fp32, B = 1 (and without the d of C13)",
        f"S {one / 2**30:.0f} GiB ({si(one)}); S and P {si(both)}; in fp16 half of each",
    )


@claim("C17", "0 §2")
def linear_memory() -> Found:
    """Memory falls from O(N²) to O(N), compute stays O(N²d)."""
    standard, flash = form("algorithm0", 2048), form("flash2", 2048)
    extra = {name: flash.writes[name] for name in flash.writes if name != "O"}
    stored = {name: standard.writes[name] for name in standard.writes if name != "O"}
    same = standard.matmul_flops == flash.matmul_flops
    return Found(
        holds_if(same and sum(extra.values()) == 2048 and sum(stored.values()) == 2 * 2048**2),
        "besides Q, K, V, O: S and P (2N²) against lse (N); 4N²d FLOPs either way (forward)",
        f"N=2,048: {sum(stored.values()):,} elements against {sum(extra.values()):,}; "
        f"{standard.matmul_flops:,} FLOPs both",
    )


@claim("C23", "0 §2.2")
def five_to_ten_times_less() -> Found:
    """At 8K tokens memory falls 5-10x."""
    ratios = {d: held(8192, d, False) / held(8192, d, True) for d in (64, 128, 256)}
    return Found(
        holds_if(any(5 <= ratio <= 10 for ratio in ratios.values())),
        "(4Nd + 2N²) / (4Nd + 2N) in elements of fp16, which is about 1 + N/2d",
        "attention alone at N=8,192: "
        + ", ".join(f"d={d}: {ratio:.1f}x" for d, ratio in ratios.items())
        + "; a whole model's factor depends on everything else it keeps",
    )


@claim("C24", "0 §2.3")
def savings_by_tile() -> Found:
    """Memory savings = N²/B²; N=8192 and B=512 give 256x."""
    by_tile = {B: held(8192, 64, True) for B in (64, 128, 512)}
    traffic = {B: form("flash2", 8192, B_r=B).hbm_elements for B in (64, 128, 512)}
    saved = held(8192, 64, False) / by_tile[512]
    return Found(
        holds_if(abs(saved - 8192**2 / 512**2) < 1),
        "HBM holds the same whatever the tile; N²/B² compares a matrix with one tile of it, and "
        "smaller tiles move more",
        f"N=8,192, d=64: {saved:.1f}x at any B; elements moved "
        + ", ".join(f"{n:,} at B_r={B}" for B, n in traffic.items()),
    )


@claim("C25", "0 §2.3")
def total_memory() -> Found:
    """Total memory = O(N) + O(B²)."""
    peaks = [form("flash1", N, 64, 64, 64).sram_peak_bytes for N in (1024, 4096)]
    tile = 64 * 64 * 2
    return Found(
        conditional_if(peaks[0] == peaks[1] and (peaks[0] or 0) > tile),
        "HBM: 4Nd for Q, K, V, O and N for lse; SRAM: B_r·B_c for S and (2B_r + 2B_c)·d for the "
        "tiles of Q, O, K, V, per thread block, whatever N is",
        f"flash1, tiles of 64, d=64, fp16: {peaks[0]:,} bytes of SRAM at N=1,024 and at N=4,096, "
        f"of which B² is {tile:,}",
    )


@claim("C29", "0 §3.1")
def savings_n_over_d() -> Found:
    """For N=8192 and d=64: memory savings = N²/(Nd) = N/d."""
    N, d = 8192, 64
    total = held(N, d, False) / held(N, d, True)
    return Found(
        conditional_if(N * N / (N * d) == N / d and total < N / d),
        "N/d compares one N x N with one N x d matrix; all that is held falls by about 1 + N/2d",
        f"N/d = {N // d}; S and P with Q, K, V, O against lse with Q, K, V, O: {total:.1f}x",
    )


@claim("C42", "0 §4.1")
def memory_of_a_tile() -> Found:
    """Tiling reduces memory from O(N²) to O(B²)."""
    flash = form("flash2", 8192, 64)
    return Found(
        conditional_if((flash.sram_peak_bytes or 0) < 227 * 1024),
        "O(B²) is what is on chip; HBM falls from O(N²) to O(Nd)",
        f"N=8,192, d=64, fp16: {flash.sram_peak_bytes:,} bytes of SRAM a block, "
        f"{si(held(8192, 64, True))} of HBM instead of {si(held(8192, 64, False))}",
    )


@claim("C47", "0 §4.3")
def thirty_percent() -> Found:
    """Memory savings = 1 - HBM_flash/HBM_standard; at 8,192 tokens 24 GB become 16.8 GB."""
    accesses = 1 - form("flash2", 8192).hbm_elements / form("algorithm0", 8192).hbm_elements
    memory = 1 - held(8192, 64, True) / held(8192, 64, False)
    claimed = 1 - 16.8 / 24
    return Found(
        holds_if(abs(accesses - claimed) < 0.05 or abs(memory - claimed) < 0.05),
        "accesses saved and memory saved are two numbers: 1 - (2d/B_r)/4 and about 1 - 2d/N",
        f"N=8,192, d=64, B_r=128: {accesses:.0%} of the accesses, {memory:.1%} of attention's "
        f"memory; the example's numbers are {claimed:.0%}",
    )


@claim("C48", "0 §4.3")
def images_and_proteins() -> Found:
    """1024x1024 images and 5,000-residue proteins fit because N×N is never stored."""
    pixels, patches = 1024 * 1024, (1024 // 16) ** 2
    pair = 5000**2 * 128 * 2
    matrix = {N: N * N * 2 for N in (pixels, patches, 5000)}
    return Found(
        conditional_if(matrix[pixels] > 80 * GB > matrix[patches]),
        "a token a pixel: yes; a token a 16x16 patch: N×N would fit too; a protein model keeps a "
        "pair representation of N×N×c itself, which FlashAttention does not remove",
        f"one head's S in fp16: pixels {si(matrix[pixels])}, patches {si(matrix[patches])}, "
        f"5,000 residues {si(matrix[5000])}; their pair representation with c=128: {si(pair)}",
    )


@claim("C50", "0 §5.1")
def layers_times_d_squared() -> Found:
    """Over N layers standard attention takes O(Nd²) memory and FlashAttention O(Nd)."""
    flash, standard = form("flash2", 1024, 64), form("algorithm0", 1024, 64)
    wider = form("algorithm0", 1024, 128)
    same = standard.writes["S"] == wider.writes["S"]
    return Found(
        WRONG if same else HOLDS,
        "activations: layers · heads · (2T² + 4Td) against layers · heads · (T + 4Td) for T "
        "tokens; "
        "the weights, 4d_model² a layer, are the same for both",
        f"T=1,024: S and P take {2 * standard.writes['S']:,} elements at d=64 and "
        f"{2 * wider.writes['S']:,} at d=128; flash2 keeps {flash.writes['LSE']:,}",
    )


@claim("C51", "0 §5.1")
def savings_fraction() -> Found:
    """Memory savings = BTd / (BTd + BTT)."""
    T, d = 8192, 64
    claimed = T * d / (T * d + T * T)
    saved = 1 - held(T, d, True) / held(T, d, False)
    return Found(
        holds_if(abs(claimed - saved) < 0.05),
        "that is the share that remains (roughly); what is saved is near T / (T + d), and exactly "
        "1 - (4Td + 2T) / (4Td + 2T²)",
        f"T=8,192, d=64: the formula gives {claimed:.1%}, saved are {saved:.1%}",
    )


@claim("C53", "0 §5.1")
def largest_batch() -> Found:
    """B_max = ⌊(G-P) / (4T(d+h))⌋."""
    G, P, T, h, d, layers = 80e9, 1.3e9, 2048, 2048, 128, 24
    claimed = int((G - P) / (4 * T * (d + h)))
    activations = 34 * T * h * layers
    possible = int((G - 16 * P) / activations)
    return Found(
        holds_if(0.5 < claimed / possible < 2),
        "(G - 16P) / (34·T·h·layers) bytes in mixed precision with FlashAttention: 16 bytes a "
        "parameter with Adam, 34·T·h bytes of activations a layer (Korthikanti et al. 2022, eq. 2 "
        "without its term 5as/h)",
        f"P=1.3e9, T=2,048, h=2,048, {layers} layers, 80 GB: claimed {claimed:,}, possible "
        f"{possible}",
    )


@claim("C58", "0 §5.1")
def table_of_gpus() -> Found:
    """A100: 192 KB, M=128, N at most 8192; H100: 256 KB, M=192, N at most 16384."""
    shared = {gpu.name: gpu.shared_bytes_per_block // 1024 for gpu in (A100, H100)}
    peaks = {N: form("flash2", N, 64, 192, 64).sram_peak_bytes for N in (16384, 1 << 20)}
    longest_n = int(80 * GB / (4 * 64 * 2 + 4))
    return Found(
        holds_if(shared == {"A100": 192, "H100": 256} and len(set(peaks.values())) > 1),
        "192 and 256 KB are shared memory and L1 together; a block may have less, and its tiles "
        "take the same at any N, so N is bounded by HBM alone",
        f"a block's shared memory: A100 {shared['A100']} KiB, H100 {shared['H100']} KiB; flash2 "
        "with "
        f"tiles of 192 and 64 takes {peaks[16384]:,} bytes at N=16,384 and at N=1,048,576; 80 GB "
        f"hold Q, K, V, O, lse of one head up to N = {longest_n:,}",
    )


@claim("C62", "0 §5.2")
def variable_length_memory() -> Found:
    """Memory savings of variable length = 1 - E[L]/L_max."""
    lengths = (100, 300, 500, 1024)
    padded = len(lengths) * 1024
    packed = sum(lengths)
    quadratic = 1 - sum(L * L for L in lengths) / (len(lengths) * 1024**2)
    formula = 1 - packed / len(lengths) / 1024
    return Found(
        conditional_if(math.isclose(1 - packed / padded, formula)),
        "exact for Q, K, V, O and lse, which grow with L; S and P, where stored, save "
        "1 - E[L²]/L_max²; FlashAttention and packing are two savings",
        f"lengths {lengths}: {formula:.1%} of the linear tensors, {quadratic:.1%} of S and P",
    )


@claim("C80", "1")
def out_of_memory() -> Found:
    """Standard attention runs out of memory at long context; with FlashAttention it trains."""
    layers, heads, d = 24, 16, 64
    standard = longest(80 * GB, layers * heads)
    per_token = layers * heads * (4 * d * 2 + 4)
    flash = int(80 * GB / per_token)
    fits = counts("flash2", Problem(flash, flash, d, dtype="fp16"), 128, 64, direction="backward")
    return Found(
        CONDITIONS if standard < flash and (fits.sram_peak_bytes or 0) < 227 * 1024 else WRONG,
        "with P of all layers kept, N ≤ √(G / 2·layers·heads); with lse instead N is bounded by "
        "the "
        "activations that grow with N. Whether it is faster is C05",
        f"{layers} layers, {heads} heads of {d}, fp16, batch 1, 80 GB for attention alone: "
        f"N = {standard:,} against {flash:,}",
    )
