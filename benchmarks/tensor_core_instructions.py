"""What a GPU answers to tensor-core instructions on random operands.

Runs `mma`, `ldmatrix` and the packed conversions of `flash_numba.device.ptx_matrix`, one warp a
case, and writes operands and answers, which the emulations are held against: exactly on small
integers, to a tolerance on random numbers. Needs a GPU of cc 8.0.

    python benchmarks/tensor_core_instructions.py benchmarks/results/tensor_core_instructions.npz
"""

import argparse
import json
from pathlib import Path

import numpy as np
from common import machine

from flash_numba.device import ptx_matrix
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.problem import DTYPES

PRODUCTS = {"mma_m16n8k16_fp16": "fp16", "mma_m16n8k16_bf16": "bf16", "mma_m16n8k8_fp16": "fp16"}
LOADS = [f"ldmatrix_x{count}{trans}" for count in (1, 2, 4) for trans in ("", "_trans")]
PACKS = {"pack_fp16": "fp16", "pack_bf16": "bf16", "pack_fp16_by_parts": "fp16"}
WARPS = 8


def make_product(name: str):
    """Kernel ``product(a, b, c, d)``: one warp's product, operands of shape (warps, 32, n)."""
    multiply = getattr(ptx_matrix, name)
    deep = "k16" in name

    @kernel(32)
    def product(A, B, C, D):
        w, lane = cuda.blockIdx.x, cuda.threadIdx.x
        c = (C[w, lane, 0], C[w, lane, 1], C[w, lane, 2], C[w, lane, 3])
        if deep:
            a = (A[w, lane, 0], A[w, lane, 1], A[w, lane, 2], A[w, lane, 3])
            d = multiply(a, (B[w, lane, 0], B[w, lane, 1]), c)
        else:
            d = multiply((A[w, lane, 0], A[w, lane, 1]), (B[w, lane, 0],), c)
        for i in range(4):
            D[w, lane, i] = d[i]

    return product


def make_load(name: str):
    """Kernel ``load(words, at, out)``: a warp's matrices out of 512 16-bit words."""
    read = getattr(ptx_matrix, name)

    @kernel(32)
    def load(words, at, out):
        w, lane = cuda.blockIdx.x, cuda.threadIdx.x
        shared = cuda.shared.array(512, types.uint16, alignment=16)
        for i in range(16):
            shared[16 * lane + i] = words[w, 16 * lane + i]
        cuda.syncthreads()
        found = read(shared, at[w, lane])
        for i in range(len(found)):
            out[w, lane, i] = found[i]

    return load


def make_pack(name: str):
    """Kernel ``pack(low, high, out)``."""
    convert = getattr(ptx_matrix, name)

    @kernel(32)
    def pack(low, high, out):
        w, lane = cuda.blockIdx.x, cuda.threadIdx.x
        out[w, lane] = convert(low[w, lane], high[w, lane])

    return pack


def registers(rng, dtype: str, count: int, integers: bool):
    """Random operands as registers: uint32 of shape (WARPS, 32, count)."""
    shape = WARPS, 32, count, 2
    numbers = rng.integers(-8, 9, shape) if integers else rng.standard_normal(shape)
    return numbers.astype(DTYPES[dtype]).view(np.uint32)[..., 0]


def run(built, *inputs, out):
    """The answer of a kernel."""
    built[WARPS, 32](*inputs, out)
    return out


def products(rng) -> dict[str, np.ndarray]:
    """Operands and answers of every `mma`."""
    found = {}
    for name, dtype in PRODUCTS.items():
        built = make_product(name)
        counts = (4, 2) if "k16" in name else (2, 1)
        for integers in (True, False):
            a, b = (registers(rng, dtype, count, integers) for count in counts)
            c = (
                rng.integers(-99, 100, (WARPS, 32, 4))
                if integers
                else rng.normal(size=(WARPS, 32, 4))
            )
            c = c.astype(np.float32)
            d = run(built, a, b, c, out=np.zeros_like(c))
            key = f"{name}/{'integers' if integers else 'random'}"
            found |= {f"{key}/a": a, f"{key}/b": b, f"{key}/c": c, f"{key}/d": d}
    return found


def loads(rng) -> dict[str, np.ndarray]:
    """Operands and answers of every `ldmatrix`."""
    found = {}
    for name in LOADS:
        count = int(name[len("ldmatrix_x")])
        words = rng.integers(0, 2**16, (WARPS, 512)).astype(np.uint16)
        at = 8 * np.stack([rng.permutation(64)[:32] for _ in range(WARPS)])
        out = run(make_load(name), words, at, out=np.zeros((WARPS, 32, count), np.uint32))
        found |= {f"{name}/words": words, f"{name}/at": at, f"{name}/out": out}
    return found


def packs(rng) -> dict[str, np.ndarray]:
    """Operands and answers of the packed conversions, special numbers among them."""
    found = {}
    special = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.99, 65520, 1e-8, 5.97e-8, 2.98e-8, 6.1e-5]
    special += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, 1e-40]
    for name in PACKS:
        low, high = rng.standard_normal((2, WARPS, 32)).astype(np.float32) * np.float32(100)
        low[0, : len(special)] = special
        high[1, : len(special)] = special
        out = run(make_pack(name), low, high, out=np.zeros(low.shape, np.uint32))
        found |= {f"{name}/low": low, f"{name}/high": high, f"{name}/out": out}
    return found


def main():
    """Run all, write operands and answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    rng = np.random.default_rng(0)
    found = products(rng) | loads(rng) | packs(rng)
    found["machine"] = np.array(json.dumps(machine()))
    np.savez_compressed(path, allow_pickle=False, **found)
    print(f"{len(found)} arrays in {path}")


if __name__ == "__main__":
    main()
