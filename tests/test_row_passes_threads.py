"""The short passes before backward kernels, thread by thread: delta less the gradient of lse."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from traced_attention import blank, run, stored

from flash_numba.kernels import hopper_backward_rows, row_passes
from flash_numba.kernels.hopper_backward_tiles import HopperBackwardTiles
from flash_numba.problem import DTYPES
from flash_numba.tiling import ceil_div

BATCH, HEADS = 2, 3


def rows(seqlen, head_dim, dtype) -> Any:
    """O, dO, lse of which a row is -inf, its gradient, and delta in float64."""
    rng = np.random.default_rng(4)
    shape = BATCH, seqlen, HEADS, head_dim
    o, do = (rng.standard_normal(shape).astype(DTYPES[dtype]) for _ in range(2))
    lse, dlse = (rng.standard_normal((BATCH, HEADS, seqlen)).astype(np.float32) for _ in range(2))
    lse[:, :, seqlen // 2] = -np.inf
    delta = np.einsum("bihd,bihd->bhi", o.astype(np.float64), do.astype(np.float64))
    return o, do, lse, dlse, delta - dlse, delta


def near(found, exact, head_dim):
    np.testing.assert_allclose(found, exact, rtol=0, atol=32 * head_dim * 2.0**-24)


@pytest.mark.parametrize("has_dlse", [True, False], ids=["lse", "o"])
@pytest.mark.parametrize(
    ("seqlen", "head_dim", "dtype", "vectors"),
    [
        (130, 64, "fp16", True),
        (5, 72, "bf16", True),
        (129, 21, "fp16", False),
        (3, 8, "fp32", True),
    ],
)
@pytest.mark.parametrize("which", ["row_dots", "delta_pass"])
def test_delta(which, seqlen, head_dim, dtype, vectors, has_dlse):
    o, do, _, dlse, less, delta = rows(seqlen, head_dim, dtype)
    found, dq = blank(delta.shape), blank((BATCH, seqlen, HEADS, 7))
    given = stored(o), stored(do), (dlse,) if has_dlse else (), found
    if which == "row_dots":
        kernel = row_passes.make_row_dots(dtype, head_dim, vectors, has_dlse)
    else:
        kernel = row_passes.make_delta(dtype, 7, head_dim, vectors, has_dlse)
        given += (dq,)
    blocks = BATCH * HEADS * ceil_div(seqlen, row_passes.ROWS)
    run(kernel, blocks, row_passes.THREADS, 0, given, count=True)
    near(found, less if has_dlse else delta, head_dim)
    assert which == "row_dots" or not dq.any()


@pytest.mark.parametrize("has_dlse", [True, False], ids=["lse", "o"])
@pytest.mark.parametrize("ordered", [True, False], ids=["in turn", "as they come"])
@pytest.mark.parametrize(("seqlen", "head_dim", "vectors"), [(70, 64, True), (33, 36, False)])
def test_rows_of_the_hopper_backward(seqlen, head_dim, vectors, ordered, has_dlse):
    o, do, lse, dlse, less, delta = rows(seqlen, head_dim, "fp16")
    tiles = HopperBackwardTiles(64, 64, tile_m=16)
    m_blocks = ceil_div(seqlen, tiles.tile_m)
    blocks = BATCH * HEADS * m_blocks
    found, sums = blank((blocks, 2 * tiles.tile_m)), blank((blocks, tiles.tile_m * tiles.depth))
    consumers, ticket = 2, np.full(1, -7, np.int32)
    turns = np.full((BATCH, HEADS, consumers * m_blocks), -7, np.int32)
    dq = (stored(blank(o.shape, o.dtype)),) if ordered else ()
    make = hopper_backward_rows.make_prepare
    kernel = make("fp16", head_dim, tiles, vectors, has_dlse, ordered)
    given = stored(o), stored(do), lse, (dlse,) if has_dlse else (), found, sums, dq, turns, ticket
    run(kernel, blocks, hopper_backward_rows.THREADS, 0, given, count=True)
    of_heads = found.reshape(BATCH, HEADS, m_blocks, 2, tiles.tile_m).swapaxes(2, 3)
    lse2, found = (of_heads[:, :, i].reshape(BATCH, HEADS, -1) for i in (0, 1))
    near(found[..., :seqlen], less if has_dlse else delta, head_dim)
    expected = np.where(lse == -np.inf, np.inf, lse * np.log2(np.e))
    near(lse2[..., :seqlen], expected, 1)
    assert (lse2[..., seqlen:] == np.inf).all()
    assert ticket[0] == 0
    assert not (turns.any() if ordered else sums.any())
