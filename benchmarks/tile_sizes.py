"""Time one kernel with query tiles of several sizes, and torch's FlashAttention-2 beside it.

The forward pass of `tensor_core` in fp16 without a mask, key tiles of 64. A warp has 16 or 32 query
rows: each tile comes in two shapes. Results are checked against float64 first and timed in turn, as
``flash-numba bench`` does; about 20 seconds. Needs a GPU and torch.

    python benchmarks/tile_sizes.py [--output results.json]
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from flash_numba.arrays import DeviceArray
from flash_numba.kernels import tensor_core
from flash_numba.kernels.tensor_core_tiles import TensorTiles
from simulator.bench import gpu as gpus
from simulator.bench.cells import Cell
from simulator.bench.contenders import Inputs, OneModule, ours, peers
from simulator.bench.measure import METHOD, times
from simulator.bench.truth import Truth

RESULTS = Path(__file__).parent / "results" / "h200_tiles.json"
TOKENS, HIDDEN = 16384, 2048
PEERS = ("torch_flash",)
TILE_M, TILE_N, HEAD_DIMS, SEQLENS = (64, 128, 256), 64, (64, 128), (2048, 4096, 8192)


def tiles_of(head_dim: int) -> list[TensorTiles]:
    """Every tile in every shape that fits the shared memory of an H100 or H200."""
    found = []
    for tile_m, row_blocks in product(TILE_M, (1, 2)):
        warps = tile_m // (16 * row_blocks)
        blocks_per_sm = 2 if warps <= 4 else 1
        one = TensorTiles(head_dim, head_dim, row_blocks, warps, TILE_N, blocks_per_sm)
        if blocks_per_sm * (one.shared_bytes + 1024) > 228 * 1024:
            one = one._replace(blocks_per_sm=1)
        if one.shared_bytes <= 227 * 1024:
            found.append(one)
    return found


def name_of(tiles: TensorTiles) -> str:
    """Tile, and how warps share it."""
    return f"{tiles.tile_m}x{tiles.tile_n}, {tiles.warps} warps"


def contender(tiles: TensorTiles, truth: Truth, stream: int):
    """The kernel with these tiles, run once and found right; and its function."""
    functions: list[Any] = []

    def forward(*arguments):
        with patch.object(tensor_core, "forward_tiles", lambda *_: tiles):
            functions.append(tensor_core.forward(*arguments))

    kernel = OneModule(name_of(tiles), SimpleNamespace(forward=forward))
    return ours(kernel, truth, stream), functions[0]


def compile_tiles(tiles: TensorTiles) -> None:
    """Leave the kernel where `flash_numba.kernel_store` finds it, run once."""
    gpu = gpus.find()
    small = Cell("forward", "fp16", tiles.depth, 256, False, 1, 1)
    inputs = Inputs.draw(small, gpu.device)
    out, lse = inputs.q.clone(), inputs.q.new_empty(small.problem.shapes["lse"]).float()
    views = [DeviceArray.of(x) for x in (*inputs[:3], out, lse)]
    with patch.object(tensor_core, "forward_tiles", lambda *_: tiles):
        tensor_core.forward(small.problem, *views, stream=gpu.stream)


def rows_of(gpu: gpus.TorchGpu, cell: Cell) -> list[dict]:
    """A row for each tile."""
    inputs = Inputs.draw(cell, gpu.device)
    truth = Truth(cell, inputs)
    made = [(one, *contender(one, truth, gpu.stream)) for one in tiles_of(cell.head_dim)]
    others = peers(PEERS, cell, inputs)
    samples = times(gpu, [one for _, one, _ in made] + others, budget_s=0.8)
    ms = {name: median(found) for name, found in samples.items()}
    return [
        {
            "tile_m": tiles.tile_m,
            "tile_n": tiles.tile_n,
            "warps": tiles.warps,
            "blocks_per_sm": tiles.blocks_per_sm,
            **asdict(cell),
            "ms": ms[one.name],
            "tflops": cell.flops / ms[one.name] / 1e9,
            "registers": function.registers,
            "local_bytes": function.local_bytes,
            "peers": {name: ms[name] for name in PEERS if name in ms},
        }
        for tiles, one, function in made
    ]


def main():
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--compile-only", action="store_true", help="compile, time nothing")
    options = parser.parse_args()
    all_tiles = [tiles for head_dim in HEAD_DIMS for tiles in tiles_of(head_dim)]
    spawn = multiprocessing.get_context("spawn")
    # A tile a process: what stops one launch stops all later ones of its process.
    with ProcessPoolExecutor(6, spawn, max_tasks_per_child=1) as pool:
        list(pool.map(compile_tiles, all_tiles))
    if options.compile_only:
        return
    gpu, rows = gpus.find(), []
    for head_dim, seqlen in product(HEAD_DIMS, SEQLENS):
        batch, heads = TOKENS // seqlen, HIDDEN // head_dim
        cell = Cell("forward", "fp16", head_dim, seqlen, False, batch, heads)
        for row in rows_of(gpu, cell):
            rows.append(row)
            shape = f"{row['tile_m']:3}x{row['tile_n']:3}, {row['warps']:2} warps"
            print(f"{cell}: {shape} {row['tflops']:6.1f} TFLOP/s", flush=True)
    results = {"machine": gpu.machine(), "method": METHOD, "rows": rows}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
