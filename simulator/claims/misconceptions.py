"""What many say of FlashAttention, settled by counting."""

from __future__ import annotations

from ..hardware import A100
from ..theory.asymptotics import block_rule_needs, break_even_tile
from ..theory.papers import A100_SRAM_BYTES, theorem_2_curve
from .claim import Found, claim, holds_if
from .evidence import KIB, form, growth, si
from .precision import bitwise_equal_share


@claim("M01", "")
def loaded_once() -> Found:
    """Q, K and V are each loaded once."""
    found = form("flash2", 4096)
    times = {name: found.reads[name] / (4096 * 64) for name in ("Q", "K", "V")}
    return Found(
        holds_if(set(times.values()) == {1}),
        "Q once; K and V once for each of the ⌈N/B_r⌉ query tiles",
        "N=4,096, B_r=128: " + ", ".join(f"{name} {n:.0f}x" for name, n in times.items()),
    )


@claim("M02", "")
def linear_traffic() -> Found:
    """Traffic becomes O(N), or O(1)."""
    more = growth(lambda N: form("flash2", N).hbm_elements, 8192)
    return Found(
        holds_if(more < 3),
        "N² as before, with a factor of 2d/B_r instead of 4; O(N) is the memory held",
        f"twice N moves {more:.2f} times as much",
    )


@claim("M03", "")
def small_tiles_save() -> Found:
    """The saving is N²/B²: smaller tiles save more."""
    moved = {B: form("flash2", 4096, B_r=B).hbm_elements for B in (256, 128, 64, 32)}
    return Found(
        holds_if(moved[32] < moved[256]),
        "smaller query tiles reread K and V more often",
        "N=4,096: " + ", ".join(f"{n:,} elements with B_r={B}" for B, n in moved.items()),
    )


@claim("M04", "")
def always_less() -> Found:
    """FlashAttention always moves less."""
    standard = form("algorithm0", 4096).hbm_elements
    small = form("flash2", 4096, B_r=16).hbm_elements / standard
    first = form("flash1", 4096, B_r=32, B_c=32).hbm_elements / standard
    least = {name: break_even_tile(name, 64) for name in ("flash1", "flash2")}
    return Found(
        holds_if(max(small, first) < 1),
        "flash2 moves less where B_r > d/2, flash1 where B_c > (3d + 4)/4, for long sequences",
        f"N=4,096, d=64: flash2 with B_r=16 moves {small:.1f} times as much as standard attention, "
        f"flash1 with tiles of 32 {first:.1f} times; they gain from B_r={least['flash2']} and "
        f"B_c={least['flash1']}",
    )


@claim("M05", "")
def nested_loops() -> Found:
    """Two nested loops over tiles mean N²d²/M² accesses."""
    points = theorem_2_curve(8192, 64, [32768, 65536])
    ratio = points[0].accesses / points[1].accesses
    return Found(
        holds_if(abs(ratio - 4) < 0.5),
        "there are N²d²/M² pairs of tiles (up to constants), and each moves a tile of size M: "
        "N²d²/M",
        f"flash1, the paper's tiles, N=8,192, d=64: twice the SRAM moves {ratio:.2f} times less, "
        "not 4",
    )


@claim("M06", "")
def forward_recomputes() -> Found:
    """FLOPs are the same, or: the forward pass recomputes."""
    flops = {
        (name, direction): form(name, 1024, direction=direction).matmul_flops
        for name in ("algorithm0", "flash2")
        for direction in ("forward", "backward")
    }
    forward = flops["flash2", "forward"] / flops["algorithm0", "forward"]
    backward = flops["flash2", "backward"] / flops["algorithm0", "backward"]
    return Found(
        holds_if(backward == 1 or forward > 1),
        "forward 4N²d both; backward 10N²d instead of 8N²d, as S is made again",
        f"N=1,024, d=64: {forward:.2f} times forward, {backward:.2f} times backward",
    )


@claim("M07", "")
def bit_identical() -> Found:
    """The result is bit-identical to standard attention."""
    shares = [bitwise_equal_share(seed) for seed in (0, 1, 2)]
    return Found(
        holds_if(min(shares) == 1),
        "equal to rounding",
        "fp32, N=256, d=64, three inputs: "
        + ", ".join(f"{share:.0%}" for share in shares)
        + " of the outputs have equal bits",
    )


@claim("M08", "")
def twenty_megabytes() -> Found:
    """SRAM is 20 MB."""
    total = A100.sm_count * A100_SRAM_BYTES
    return Found(
        holds_if(A100.shared_bytes_per_block >= total),
        "20 MB is the sum over all SMs of an A100; a tile lives in one thread block's share of one",
        f"{A100.sm_count} · {A100_SRAM_BYTES // KIB} KiB = {si(total)}; a block has "
        f"{A100.shared_bytes_per_block // KIB} KiB",
    )


@claim("M09", "")
def quarter_fills() -> Found:
    """B_c = M/4d fills SRAM exactly."""
    sram = 16384
    needs = {way: block_rule_needs(sram, 64, way) for way in ("forward", "backward")}
    return Found(
        holds_if(set(needs.values()) == {sram}),
        "a quarter each for Q, K, V and O leaves nothing for S, m and l; it fits forward from "
        "M = 8d(d + 1) on, and never backward",
        f"d=64, M={sram:,} elements: forward needs {needs['forward']:,}, backward "
        f"{needs['backward']:,}",
    )


@claim("M10", "")
def causal_halves() -> Found:
    """A causal mask halves the work."""
    shares = {}
    for tiles in (8, 64):
        N = 64 * tiles
        masked = form("flash2", N, B_r=64, B_c=64, causal=True).matmul_flops
        shares[tiles] = masked / form("flash2", N, B_r=64, B_c=64).matmul_flops
    return Found(
        holds_if(all(share == 0.5 for share in shares.values())),
        "(T + 1) / 2T of the tiles for T x T of them: those on the diagonal are computed whole",
        ", ".join(f"{share:.1%} with T={tiles}" for tiles, share in shares.items()),
    )
