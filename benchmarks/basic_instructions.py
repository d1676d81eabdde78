"""What a GPU answers to the instructions of `flash_numba.device.ptx`, its copies and its words.

A kernel a family: random operands in, answers out, beside numbers that are hard to round. The
emulations are held against the answers by running the same kernels thread by thread. Needs a GPU of
compute capability 8.0.

    python benchmarks/basic_instructions.py benchmarks/results/basic_instructions.npz
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import machine

from flash_numba.device import ptx, ptx_copies, ptx_words
from flash_numba.device.numba_cuda import cuda, kernel, types

THREADS, COUNT = 256, 4096
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3.4e38, 65504, 65519.99, 65520]
SPECIAL += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.98e-8, 5.97e-8, 6.1e-5, -126.5, -149.5, 127.99, 1.0]


class Case(NamedTuple):
    """A kernel and what it is run on.

    Attributes
    ----------
    kernel : Numba dispatcher
    covers : str
        Names of the intrinsics in it.
    inputs, outputs : tuple of NumPy arrays
        In the order of the kernel's parameters; outputs as they are before the launch.
    blocks, threads : int
    """

    kernel: Any
    covers: str
    inputs: tuple
    outputs: tuple
    blocks: int = 1
    threads: int = THREADS


@kernel(THREADS)
def numbers(x, y, power, most, product, same):
    """Arithmetic of float32."""
    i = cuda.grid(1)
    power[i] = ptx.exp2(x[i])
    most[i] = ptx.larger(x[i], y[i])
    product[i] = ptx.rounded_product(x[i], y[i])
    same[i] = ptx.recomputed(i)


@kernel(THREADS)
def quick_numbers(x, logarithm, inverse):
    """Arithmetic of float32 that is nearly right."""
    i = cuda.grid(1)
    logarithm[i] = ptx.log2(x[i])
    inverse[i] = ptx.reciprocal(x[i])


@kernel(THREADS)
def conversions(halves, x, words, wide, narrow, bits, floats):
    """Between types, and between a number and its bits."""
    i = cuda.grid(1)
    wide[i] = ptx.float_from_half(halves[i])
    narrow[i] = ptx.half_from_float(x[i])
    bits[i] = ptx.bits_from_float(x[i])
    floats[i] = ptx.float_from_bits(words[i])


@kernel(THREADS)
def vectors(x, h, y, g):
    """Four neighbours at once, through a tile of shared memory that is read turned round."""
    memory = cuda.shared.array(1028, types.float32, alignment=16)
    tile = ptx.shared_tile(memory, 4, (4, 256))
    t = cuda.threadIdx.x
    row, column = t // 64, t % 64 * 4
    ptx.store4(tile, (row, column), ptx.load4_global(x, 4 * t))
    cuda.syncthreads()
    ptx.store4_global(y, 4 * t, ptx.load4(tile, (3 - row, 252 - column)))
    ptx.store4_global(g, 4 * t, ptx.load4_global(h, 1020 - 4 * t))


@kernel(THREADS)
def pairs(x, y):
    """Two neighbours at once, out of a tile of shared memory."""
    tile = cuda.shared.array(512, types.float32, alignment=16)
    t = cuda.threadIdx.x
    tile[t], tile[t + 256] = x[t], x[t + 256]
    cuda.syncthreads()
    first, second = ptx.load2(tile, 510 - 2 * t)
    y[t], y[t + 256] = first, second


@kernel(THREADS)
def messages(x, flag, y):
    """A block writes, raises a flag and ends; another one waits for the flag and reads."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        y[0, t] = 2 * x[t]
        cuda.syncthreads()
        cuda.threadfence()
        if t == 0:
            ptx.store_release(flag, 0, 7)
    else:
        if t == 0:
            while ptx.load_acquire(flag, 0) == 0:
                pass
        cuda.syncthreads()
        y[1, t] = ptx.load_uncached(y, (0, 255 - t))


@kernel(THREADS)
def copies(x, h, y, g):
    """Asynchronous copies in two groups, one in three of them filled with zeros."""
    wide = cuda.shared.array(1024, types.float32, alignment=16)
    narrow = cuda.shared.array(512, types.uint16, alignment=16)
    t = cuda.threadIdx.x
    ptx_copies.copy16_async(wide, 4 * t, x, 1020 - 4 * t, t % 3 > 0)
    ptx_copies.copy_commit()
    ptx_copies.copy4_async(narrow, 2 * t, h, 510 - 2 * t, t % 3 > 1)
    ptx_copies.copy_commit()
    ptx_copies.copy_wait_group(1)
    cuda.syncthreads()
    for i in range(4):
        y[4 * t + i] = wide[4 * (255 - t) + i]
    ptx_copies.copy_wait_all()
    cuda.syncthreads()
    for i in range(2):
        g[2 * t + i] = narrow[2 * (255 - t) + i]


@kernel(THREADS)
def words(h, g, f):
    """16-bit elements by words of two and of eight."""
    memory = cuda.shared.array(2048, types.uint16, alignment=16)
    t = cuda.threadIdx.x
    ptx_words.store_words4(memory, 8 * t, ptx_words.load_words4_global(h, 8 * t))
    cuda.syncthreads()
    found = ptx_words.load_words4(memory, 8 * (t ^ 5))
    ptx_words.store_words4_global(g, 8 * t, found)
    cuda.syncthreads()
    for i in range(4):
        ptx_words.store_word(memory, 8 * t + 2 * i, found[3 - i])
    cuda.syncthreads()
    for i in range(8):
        f[8 * t + i] = memory[8 * (t ^ 9) + i]


@kernel(THREADS)
def past_l1(x, h, y, g):
    """Four neighbours from L2, and pairs of 16-bit elements to global memory."""
    t = cuda.threadIdx.x
    ptx.store4_global(y, 4 * t, ptx.load4_uncached(x, 1020 - 4 * t))
    low, high = types.uint32(h[2 * t]), types.uint32(h[2 * t + 1])
    ptx_words.store_word_global(g, 510 - 2 * t, low | high << types.uint32(16))


def _floats(rng, count: int) -> np.ndarray:
    """Normal numbers of many sizes, special ones first."""
    drawn = rng.standard_normal(count) * 2.0 ** rng.integers(-30, 30, count)
    found = drawn.astype(np.float32)
    found[: len(SPECIAL)] = np.array(SPECIAL, np.float64).astype(np.float32)
    return found


def _blank(count, dtype) -> np.ndarray:
    return np.full(count, 0xAB if np.dtype(dtype).kind in "iu" else np.nan, dtype)


def cases() -> dict[str, Case]:
    """All cases by name; the same numbers each time."""
    rng = np.random.default_rng(20)
    x, y = _floats(rng, COUNT), rng.permutation(_floats(rng, COUNT))
    x[32:64], y[32:64] = np.repeat(SPECIAL[:4], 8), np.tile(SPECIAL[:8], 4)
    halves = rng.permutation(2**16)[:COUNT].astype(np.uint16)
    bits = rng.integers(0, 2**32, COUNT).astype(np.uint32)
    h = rng.integers(0, 2**16, 2048).astype(np.uint16)
    f32, u16, u32 = np.float32, np.uint16, np.uint32
    plain = rng.standard_normal(1024).astype(f32)
    return {
        "numbers": Case(
            numbers,
            "exp2 larger rounded_product recomputed",
            (x, y),
            tuple(_blank(COUNT, kind) for kind in (f32, f32, f32, u32)),
            COUNT // THREADS,
        ),
        "quick_numbers": Case(
            quick_numbers,
            "log2 reciprocal",
            (np.abs(plain),),
            (_blank(1024, f32), _blank(1024, f32)),
            1024 // THREADS,
        ),
        "conversions": Case(
            conversions,
            "float_from_half half_from_float bits_from_float float_from_bits",
            (halves, x, bits),
            tuple(_blank(COUNT, kind) for kind in (f32, u16, u32, f32)),
            COUNT // THREADS,
        ),
        "vectors": Case(
            vectors,
            "load4 store4 load4_global store4_global shared_tile",
            (plain, h[:1024]),
            (_blank(1024, f32), _blank(1024, u16)),
        ),
        "pairs": Case(pairs, "load2", (plain[:512],), (_blank(512, f32),)),
        "messages": Case(
            messages,
            "store_release load_acquire load_uncached",
            (plain[:256],),
            (np.zeros(1, np.int32), _blank((2, 256), f32)),
            2,
        ),
        "copies": Case(
            copies,
            "copy16_async copy4_async copy_commit copy_wait_group copy_wait_all",
            (plain, h[:512]),
            (_blank(1024, f32), _blank(512, u16)),
        ),
        "past L1": Case(
            past_l1,
            "load4_uncached store_word_global",
            (plain, h[:512]),
            (_blank(1024, f32), _blank(512, u16)),
        ),
        "words": Case(
            words,
            "load_words4 store_word store_words4 load_words4_global store_words4_global",
            (h,),
            (_blank(2048, u16), _blank(2048, u16)),
        ),
    }


def main():
    """Run all, write the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    found = {}
    for name, case in cases().items():
        case.kernel[case.blocks, case.threads](*case.inputs, *case.outputs)
        found |= {f"{name}/{i}": output for i, output in enumerate(case.outputs)}
    found["machine"] = np.array(json.dumps(machine()))
    np.savez_compressed(path, allow_pickle=False, **found)
    print(f"{len(found)} arrays in {path}")


if __name__ == "__main__":
    main()
