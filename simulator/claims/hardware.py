"""Claims about GPUs, and about hardware that is not here."""

from __future__ import annotations

from ..accelerators import MI250_DIE, TPU_V4
from ..energy import energy
from ..hardware import A100, GPUS, H100, T4
from .claim import UNCHECKABLE, WRONG, Found, claim, conditional_if, holds_if, plausible_if
from .evidence import KIB, form, least_time, results


@claim("C16", "0 §2")
def sram_of_an_a100() -> Found:
    """A100 has 192 KB of SRAM per streaming multiprocessor."""
    shared = A100.shared_bytes_per_sm / KIB, A100.shared_bytes_per_block / KIB
    return Found(
        conditional_if(shared[0] < 192),
        "192 KB is shared memory and L1 cache together (A100 white paper); of it up to 164 KB "
        "may be "
        "shared memory, and 163 KB belong to one block",
        f"{shared[0]:.0f} KiB an SM, {shared[1]:.0f} KiB a block, {A100.sm_count} SMs",
    )


@claim("C41", "0 §3.3")
def other_hardware() -> Found:
    """The advantage holds on other hardware (TPU v4, MI250)."""
    standard, flash = form("algorithm0", 4096), form("flash2", 4096)
    gains = {
        device.name: device.least_time(standard).total_s / device.least_time(flash).total_s
        for device in (TPU_V4, MI250_DIE)
    }
    return Found(
        UNCHECKABLE,
        "wherever device memory is the bound and a tile fits a faster one, the counts say so: "
        "they know no vendor; a measurement on both would decide",
        f"traffic falls {standard.hbm_bytes / flash.hbm_bytes:.1f}x (N=4,096, d=64, B_r=128), the "
        "least time "
        + " and ".join(f"{gain:.1f}x on a {name}" for name, gain in gains.items())
        + f": {plausible_if(min(gains.values()) > 1)}",
    )


@claim("C69", "0 §6.1")
def small_batches() -> Found:
    """Small batch and few heads leave the GPU underused."""
    heads, N, B_r = 8, 1024, 128
    blocks = {"flash2": heads * -(-N // B_r), "flash1": heads, "decoding": heads}
    shares = {name: min(1, count / H100.sm_count) for name, count in blocks.items()}
    long = heads * -(-16384 // B_r)
    return Found(
        conditional_if(max(shares.values()) < 1 <= long / H100.sm_count),
        "blocks = batch·heads·T_r for flash2, batch·heads for flash1 and for one new token; "
        "split-K "
        "divides the keys as well",
        f"batch 1, 8 heads, N=1,024, H100 ({H100.sm_count} SMs): "
        + ", ".join(f"{name} {blocks[name]} blocks" for name in blocks)
        + f"; at N=16,384 flash2 has {long}",
    )


@claim("C71", "0 §6.1")
def tiles_and_long_sequences() -> Found:
    """Tiles must fit 48-96 KB; above 100k tokens tiling may not be enough."""
    peaks = {N: form("flash2", N).sram_peak_bytes for N in (1000, 100_000, 1_000_000)}
    limits = sorted({gpu.shared_bytes_per_block // KIB for gpu in GPUS})
    return Found(
        holds_if(len(set(peaks.values())) > 1),
        "a tile's size has no N in it: (B_r + 2B_c)·d elements",
        f"flash2, tiles of 128 and 64, d=64, fp16: {peaks[1000]:,} bytes at N=1,000 and "
        f"{peaks[1_000_000]:,} at N=1,000,000; a block may have {limits[0]} to {limits[-1]} KiB",
    )


@claim("C76", "0 §6.3")
def aware_accelerator() -> Found:
    """A memory-hierarchy-aware accelerator gains 2-3x in attention throughput."""
    found = least_time(H100, form("flash2", 8192, 128, 128, 128))
    most = found.total_s / found.matmul_s
    return Found(
        UNCHECKABLE,
        "a gain can come from the unit that binds, until the next one does; a simulation of that "
        "accelerator would decide",
        "H100, N=8,192, d=128, tiles of 128, fp16, least times a head: "
        f"{1e6 * found.memory_s:.1f} µs to "
        f"move the tiles from HBM (less, as L2 serves some), products {1e6 * found.matmul_s:.1f} "
        "µs, "
        f"exponentials {1e6 * found.exp_s:.1f} µs: with the same products no memory gains more "
        f"than {most:.1f}x, so that 2x is {plausible_if(most >= 2)}, 3x {plausible_if(most >= 3)}",
    )


@claim("C83", "0 §4.2")
def amd() -> Found:
    """The same op serves AMD GPUs."""
    local = MI250_DIE.local_bytes or 0
    needs = {d: form("flash2", 4096, d).sram_peak_bytes or 0 for d in (64, 128, 256)}
    fit = [f"d={d}" for d, need in needs.items() if need <= local]
    return Found(
        UNCHECKABLE,
        "the algorithm does, kernels of CUDA do not: an AMD port is another program of the same "
        "tiles; running it would decide",
        f"tiles of 128 and 64 in fp16 take {needs[64]:,} bytes at d=64, {needs[128]:,} at 128 and "
        f"{needs[256]:,} at 256; a compute unit of an MI250 has {local:,} bytes of local memory: "
        f"{plausible_if(len(fit) > 0)} with these tiles for {', '.join(fit) or 'none'}",
    )


@claim("C92", "0 §6.1")
def slower_elsewhere() -> Found:
    """2-3x slower on non-NVIDIA hardware."""
    found = form("flash2", 4096)
    there = least_time(A100, found)
    nvidia = max(there.memory_s, there.matmul_s)
    others = {one.name: one.least_time(found).total_s for one in (MI250_DIE, TPU_V4)}
    return Found(
        UNCHECKABLE,
        "slower than what? The share of its own peak, measured on the device, would decide",
        f"least times a head (N=4,096, d=64, B_r=128, 16 bits): A100 {1e6 * nvidia:.1f} µs, "
        + ", ".join(
            f"{name} {1e6 * time:.1f} µs ({time / nvidia:.1f}x)" for name, time in others.items()
        )
        + f": 2x from the data sheets alone is {plausible_if(max(others.values()) >= 2 * nvidia)}, "
        "the rest would be programs that reach less of their peak",
    )


@claim("C94", "0 §6.3")
def energy_of_accelerators() -> Found:
    """Accelerators give 3-5x better energy efficiency for attention."""
    found = form("flash2", 4096)
    spent = energy(found, "fp16")
    gain = spent.total_j / (spent.total_j - spent.hbm_j)
    return Found(
        UNCHECKABLE,
        "joules a FLOP and a byte of both devices would decide; what they must save is in the "
        "products and what feeds them, not in HBM",
        f"flash2, N=4,096, d=64, B_r=128, fp16, does {found.matmul_flops / found.hbm_bytes:.0f} "
        "FLOPs a byte of HBM; by published figures (simulator/energy.py) "
        f"{spent.hbm_j / spent.total_j:.0%} of its energy is in HBM, so that free HBM would gain "
        f"{gain:.1f}x: 3x from memory alone is {plausible_if(gain >= 3)}",
    )


@claim("C95", "1")
def turing() -> Found:
    """On Turing it may not be possible at all."""
    table = results("compile_table")
    rows = (
        [row for row in table["rows"] if tuple(row["cc"]) == T4.compute_capability] if table else []
    )
    fits = [row for row in rows if row["shared_bytes"] <= T4.shared_bytes_per_block]
    peak = form("flash2", 1024, 64, 64, 32, dtype="fp32").sram_peak_bytes or 0
    possible = peak <= T4.shared_bytes_per_block and len(fits) == len(rows)
    return Found(
        WRONG if possible else conditional_if(True),
        "the algorithm needs shared memory and fp32 units; what needs Ampere is the flash-attn "
        "package "
        "from its version 2 on (mma on bf16, cp.async)",
        f"tiles of 64 and 32, d=64, fp32, take {peak:,} of a T4's {T4.shared_bytes_per_block:,} "
        "bytes; "
        f"{len(fits)} of {len(rows)} kernels in the table of builds for compute capability 7.5 "
        "assemble "
        "and fit; none has been run on one",
    )
