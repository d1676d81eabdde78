"""Claims about accesses to HBM."""

from __future__ import annotations

from fractions import Fraction

from ..energy import PJ_PER_BYTE
from ..hardware import A100, GPUS, H100
from ..theory.asymptotics import block_sizes, break_even_tile, square_coefficient
from ..theory.papers import ARXIV, theorem_2_curve
from .claim import CONDITIONS, HOLDS, WRONG, Found, claim, conditional_if, holds_if
from .evidence import TB, form, growth, least_time, si


def polynomial(program: str, d: int, direction: str) -> tuple[Fraction, Fraction, Fraction]:
    """a, b, c of the elements moved, a N² + b N + c: exact, from three sizes."""

    def moved(N: int) -> int:
        return form(program, N, d, 1, 1, direction).hbm_elements

    one, two, three = moved(1), moved(2), moved(3)
    a = Fraction(three - 2 * two + one, 2)
    b = two - one - 3 * a
    return a, b, one - a - b


@claim("C06", "0 §1.2")
def standard_forward() -> Found:
    """Standard attention's memory accesses are O(Nd + N²)."""
    fits = {d: polynomial("algorithm0", d, "forward") for d in (32, 64)}
    tiled = form("tiled", 4096, 64, 128, 128).hbm_elements
    ideal = form("algorithm0", 4096, 64).hbm_elements
    return Found(
        holds_if(all(fit == (4, 4 * d, 0) for d, fit in fits.items())),
        "4N² + 4Nd, if each operand of each operation is moved once; products in tiles that fit "
        "SRAM reread theirs: 5N² + (1/B_r + 1/B_c) N²d + ... more",
        f"coefficients of N² and N: {fits[64][0]} and {fits[64][1]} at d=64; N=4,096: {ideal:,} "
        f"elements, in tiles of 128 {tiled:,}",
    )


@claim("C07", "0 §1.2")
def forty_two_gigabytes() -> Found:
    """One forward pass at N=2048 and d=1024 moves about 42 GB."""
    readings = {
        f"{name}, {dtype}": form(name, 2048, 1024, dtype=dtype).hbm_bytes
        for name in ("algorithm0", "with_mask_and_dropout")
        for dtype in ("fp16", "fp32")
    }
    most = max(readings.values())
    return Found(
        holds_if(most >= 40e9),
        "(4N² + 4Nd) · bytes for one head; d=1024 split over heads of 64 makes 16 of them",
        "; ".join(f"{name}: {si(moved)}" for name, moved in readings.items())
        + f"; 42 GB would be {42e9 / most:,.0f} such passes",
    )


@claim("C10", "0 §1.2")
def three_to_five_times() -> Found:
    """Standard attention moves 3-5x more than theoretically necessary."""
    ratios = {}
    for N in (128, 1024, 8192):
        found = form("algorithm0", N)
        ratios[N] = found.hbm_elements / (4 * N * 64)
    return Found(
        holds_if(all(3 <= ratio <= 5 for ratio in ratios.values())),
        "Q, K, V must be read and O written: 4Nd. Standard attention moves 1 + N/d times that, "
        "which is 3 to 5 only where 2d ≤ N ≤ 4d",
        "d=64: " + ", ".join(f"{ratio:.0f}x at N={N:,}" for N, ratio in ratios.items()),
    )


@claim("C11", "0 §1.2")
def standard_backward() -> Found:
    """Standard attention's backward pass makes O(N² + Nd) accesses."""
    a, b, c = polynomial("algorithm0", 64, "backward")
    return Found(
        holds_if((a, c) == (7, 0) and b == 8 * 64),
        "7N² + 8Nd: P, dP and dS are read and written 7 times together",
        f"coefficients of N² and N: {a} and {b} at d=64",
    )


@claim("C15", "0 §1.3")
def bandwidth_needed() -> Found:
    """BW_req = 8BN²/t; over 8 TB/s for N=32K and t=1 ms."""
    N = 32 * 1024
    needed = 8 * N * N / 1e-3
    moved = form("algorithm0", N).hbm_bytes / 1e-3
    best = max(GPUS, key=lambda gpu: gpu.hbm_bytes_per_s)
    return Found(
        conditional_if(needed > 8 * TB and needed > best.hbm_bytes_per_s),
        "8N² = 4 passes over N² in fp16, for one head; 16 heads need 16 times as much",
        f"{needed / TB:.2f} TB/s by the formula, {moved / TB:.2f} TB/s counted; {best.name} has "
        f"{best.hbm_bytes_per_s / TB:.2f}",
    )


@claim("C20", "0 §2.2")
def n_squared_over_m() -> Found:
    """HBM accesses fall from O(N²) to O(N²/M): N²/M · B."""
    sram = 16384
    moved = {d: theorem_2_curve(4096, d, [sram])[0].accesses for d in (32, 64, 128)}
    ratio = moved[128] / moved[32]
    theorem = {d: theorem_2_curve(4096, d, [sram])[0].ratio for d in moved}
    return Found(
        holds_if(ratio < 1.5),
        "Θ(N²d²/M) (Theorem 2): the tiles that fit shrink as 1/d, and rows get longer as d",
        f"flash1, N=4,096, M={sram:,} elements: four times d moves {ratio:.1f} times as much; over "
        "N²d²/M it is " + ", ".join(f"{r:.1f} at d={d}" for d, r in theorem.items()),
    )


@claim("C31", "0 §3.2")
def every_block_once() -> Found:
    """Each Q, K, V block is loaded into SRAM only once; movement falls from O(N²) to O(N)."""
    N, d, B_r = 4096, 64, 128
    found = form("flash2", N, d, B_r)
    times = {name: found.reads[name] / (N * d) for name in ("Q", "K", "V")}
    more = growth(lambda n: form("flash2", n, d, B_r).hbm_elements, N)
    return Found(
        holds_if(max(times.values()) == 1),
        "flash2 loads Q once, K and V T_r = ⌈N/B_r⌉ times; flash1 K and V once, Q and O T_c times: "
        "the loop that is inside repeats",
        f"N=4,096, B_r=128: Q {times['Q']:.0f}x, K {times['K']:.0f}x, V {times['V']:.0f}x; twice N "
        f"moves {more:.2f} times as much",
    )


@claim("C37", "0 §3.3")
def three_point_two() -> Found:
    """On A100, memory reads and writes fall 3.2x."""
    ratios = {
        B_r: form("algorithm0", 2048).hbm_elements / form("flash2", 2048, B_r=B_r).hbm_elements
        for B_r in (64, 96, 128, 256)
    }
    paper = ARXIV.gigabytes[0] / ARXIV.gigabytes[1]
    return Found(
        conditional_if(min(ratios.values()) < 3.2 < max(ratios.values())),
        "(4N² + 4Nd) / (2Nd·N/B_r + 2Nd + N), near 2·B_r/d for long sequences: the tile "
        "decides, not "
        "the GPU",
        "forward, N=2,048, d=64: "
        + ", ".join(f"{ratio:.1f}x with B_r={B_r}" for B_r, ratio in ratios.items())
        + f"; the paper's Figure 2 prints {paper:.1f}x",
    )


@claim("C39", "0 §3.3")
def energy_superlinear() -> Found:
    """Energy savings grow superlinearly with sequence length."""

    def saved(N: int) -> float:
        return form("algorithm0", N).hbm_bytes - form("flash2", N).hbm_bytes

    def share(N: int) -> float:
        return saved(N) / form("algorithm0", N).hbm_bytes

    more = growth(saved, 4096)
    return Found(
        conditional_if(more > 2),
        "bytes that HBM need not move grow as (4 - 2d/B_r)·N²: their energy too; as a "
        "share "
        "of standard attention's traffic they approach the constant 1 - d/(2B_r)",
        f"twice N saves {more:.2f} times the bytes; the share is {share(1024):.1%} at N=1,024 and "
        f"{share(65536):.1%} at N=65,536; at {PJ_PER_BYTE['hbm']:.0f} pJ a byte of HBM "
        f"{saved(4096) * PJ_PER_BYTE['hbm'] * 1e-9:.1f} mJ a head at N=4,096",
    )


@claim("C44", "0 §4.1")
def speedup_is_traffic() -> Found:
    """Speedup = HBM accesses of naive / HBM accesses of optimized."""
    rows = []
    standard = form("algorithm0", 4096)
    for B_r in (64, 128, 256):
        flash = form("flash2", 4096, B_r=B_r)
        traffic = standard.hbm_bytes / flash.hbm_bytes
        slow, fast = least_time(A100, standard), least_time(A100, flash)
        rows.append((B_r, traffic, slow.total_s / fast.total_s, slow.bound, fast.bound))
    off = max(abs(traffic - speed) / traffic for _, traffic, speed, *_ in rows)
    return Found(
        CONDITIONS if off > 0.1 else HOLDS,
        "true while both are bound by memory; FlashAttention soon is bound by its products or "
        "exponentials, and the speedup stops there",
        "roofline of an A100, N=4,096, d=64, fp16: "
        + "; ".join(
            f"B_r={B_r}: traffic {traffic:.1f}x, least times {speed:.1f}x ({slow} → {fast})"
            for B_r, traffic, speed, slow, fast in rows
        ),
    )


@claim("C68", "0 §6.1")
def n_squared_d() -> Found:
    """FlashAttention's memory accesses = O(N²d)."""
    coefficients = {B: square_coefficient("flash2", B, 64) for B in (64, 128)}
    exact = all(value == Fraction(2 * 64, B) for B, value in coefficients.items())
    return Found(
        conditional_if(exact),
        "an upper bound: exactly (2/B_r)·N²d + 2Nd + N, so with a tile as large as SRAM lets it "
        "be, "
        "Θ(N²d²/M)",
        "the factor of N² at d=64: "
        + ", ".join(f"{c} with B_r={B}" for B, c in coefficients.items()),
    )


@claim("C75", "0 §6.3")
def with_rescaling_overhead() -> Found:
    """Accesses = N²/M · (2 + γ), γ being the overhead of rescaling."""
    sram, N = 16384, 4096
    gammas = {}
    for d in (32, 64, 128):
        tiles = block_sizes(sram, d)
        moved = form("flash1", N, d, *tiles).hbm_elements
        gammas[d] = moved * sram / N**2 - 2
    rescale = form("flash2", N, 64)
    names = set(rescale.reads) | set(rescale.writes)
    return Found(
        WRONG if max(gammas.values()) > 2 * min(gammas.values()) else HOLDS,
        "Θ(N²d²/M); rescaling O costs flash1 its rereads of O, and flash2 nothing: O is in "
        "registers",
        "γ would be "
        + ", ".join(f"{g:,.0f} at d={d}" for d, g in gammas.items())
        + f"; flash2 moves {', '.join(sorted(names))} and nothing for rescaling",
    )


@claim("C78", "1")
def nothing_in_between() -> Found:
    """Intermediate results of a block are never written to HBM."""
    first, second = form("flash1", 1024), form("flash2", 1024)
    once = 1024 * 64
    return Found(
        conditional_if(second.writes["O"] == once < first.writes["O"]),
        "S and P never; but FlashAttention-1 writes O, m and l for every key tile, and reads them "
        "again. FlashAttention-2 keeps them in registers",
        f"N=1,024, d=64: O has {once:,} elements; flash1 writes {first.writes['O']:,}, flash2 "
        f"{second.writes['O']:,}",
    )


@claim("C88", "0 §5.1")
def two_to_four_times() -> Found:
    """M between 64 and 256 gives 2-4x on A100."""
    ratios = {
        (d, B): float(4 / square_coefficient("flash2", B, d)) for d in (64, 128) for B in (64, 256)
    }
    even = {d: break_even_tile("flash2", d) for d in (64, 128)}
    standard, flash = form("algorithm0", 8192), form("flash2", 8192, B_r=256)
    speed = least_time(A100, standard).total_s / least_time(A100, flash).total_s
    hopper = least_time(H100, standard).total_s / least_time(H100, flash).total_s
    return Found(
        conditional_if(min(ratios.values()) < 2 and max(ratios.values()) > 4),
        "of traffic, 2·B_r/d for long sequences; of time, less (C44)",
        "; ".join(f"d={d}, B_r={B}: {ratio:.0f}x" for (d, B), ratio in ratios.items())
        + f"; below B_r={even[64]} (d=64) and {even[128]} (d=128) more is moved, not less. Least "
        "times"
        f" at N=8,192, d=64, B_r=256: {speed:.1f}x on an A100, {hopper:.1f}x on an H100",
    )
