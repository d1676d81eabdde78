"""The steps from naive to flash2, thread by thread on a CPU: right, and as costly as they say."""

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from traced_attention import (
    REVERSED,
    blank,
    check,
    extra,
    random_problem,
    run,
    truth,
)

from flash_numba.kernels.spec import ForwardTiles, Spec
from flash_numba.kernels.steps import STEPS, module_of
from flash_numba.kernels.steps.call import check_rows, run_tiles
from flash_numba.kernels.steps.layout import grouped_rows
from flash_numba.problem import Problem
from flash_numba.tiling import ceil_div

ROWS = ("naive", "conflict-free", "registers")
TILED = ("tiles", "async", "flash2")
TILES = ForwardTiles(32, 32, 4, 4, 8, 32, 1, True)
CASES = {
    "N40-M70": {"seqlen_q": 40, "seqlen_k": 70},
    "N65-M33-causal-gqa": {"seqlen_q": 65, "seqlen_k": 33, "causal": True, "num_heads": 2},
}


def forward(step, problem, q, k, v, order=None, count=False):
    """O, LSE and, if asked for, the counts of a step; tiles of one warp from step 4 on."""
    module, scale = module_of(step), np.float32(problem.softmax_scale)
    out, lse = blank(problem.shapes["o"]), blank(problem.shapes["lse"])
    arguments = (q, k, v, out, lse)
    if step in ROWS:
        tiles = module.tiles_of(problem.head_dim)
        kernel, shared = module.make_forward(tiles, problem.causal), tiles.layout.bytes
        arguments += (scale,)
    else:
        tiles, spec = TILES, Spec.of(problem, True)
        kernel = module.make_forward(spec, tiles)
        shared = tiles.shared_bytes if step == "flash2" else grouped_rows(tiles).bytes
        factor = (np.float32(1) if not spec.folded else scale,) if step == "flash2" else ()
        arguments += (*factor, scale, *extra(problem))
    blocks = ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    return out, lse, run(kernel, blocks, tiles.threads, shared, arguments, order, count)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", STEPS)
def test_step(step, name):
    """Right on tails, and without races, reads of what nobody wrote or NaN."""
    problem, q, k, v, _ = random_problem(head_dim=32, num_kv_heads=1, **CASES[name])
    out, lse, _ = forward(step, problem, q, k, v, count=True)
    check(problem, {"o": out, "lse": lse}, truth(problem, q, k, v))


@pytest.mark.parametrize("step", ["naive", "registers", "async"])
def test_growing_scores(step):
    """The maximum of every row moves in every tile; large scores round, P does so as much."""
    problem, q, k, v, _ = random_problem(seqlen_q=33, seqlen_k=70, head_dim=32)
    k *= np.linspace(0, 40, 70, dtype=np.float32)[:, None, None]
    out, lse, _ = forward(step, problem, q, k, v)
    want = truth(problem, q, k, v)
    largest = np.abs(want.lse.numpy()).max()
    budget = 2 * 2.0**-24 * 32 * largest
    assert np.abs(lse - want.lse.numpy()).max() <= budget
    assert np.abs(out - want.out.numpy()).max() <= budget * np.abs(v).max()


@pytest.mark.parametrize("step", ["registers", "async"])
def test_order_of_threads_does_not_matter(step):
    problem, q, k, v, _ = random_problem(head_dim=32, num_kv_heads=1, **CASES["N40-M70"])
    first = forward(step, problem, q, k, v)[:2]
    threads = REVERSED if step == "async" else tuple(reversed(range(128)))
    assert all(map(np.array_equal, first, forward(step, problem, q, k, v, threads)[:2]))


@pytest.mark.parametrize("step", ["tiles", "async"])
def test_steps_with_tiles_know_what_flash2_knows(step):
    options = {"window": (9, 3), "key_lengths": np.array([0, 37]), "batch": 2}
    problem, q, k, v, _ = random_problem(seqlen_q=21, seqlen_k=50, head_dim=20, **options)
    out, lse, _ = forward(step, problem, q, k, v)
    check(problem, {"o": out, "lse": lse}, truth(problem, q, k, v))


def closed_form(step, n, d):
    """Counters of one head of full attention, N and D multiples of the tiles.

    Loads and stores are warp instructions; a sector has 8 floats, a warp 32 threads.
    """
    module = module_of(step)
    tiles = module.tiles_of(d) if step in ROWS else TILES
    warps, blocks, turns = n * tiles.threads // tiles.tile_m // 32, n // tiles.tile_m, n // 32
    assert tiles.tile_n == 32
    array = n * d // 8
    read = array + 2 * blocks * array
    if step in ROWS:
        columns = 2 if step == "registers" else 3  # K and V, and else Q, for each key
        loads, stores = warps * n * columns * d, warps * (d + turns * 2 * 32 * d // tiles.threads)
        staged = 2 * d * warps if step == "registers" else 0  # Q into registers, O out of the tile
        written = array if step == "registers" else 8 * array
        conflicts = 31 * warps * n * d if step == "naive" else 0
        return {
            "ld sectors": read,
            "st sectors": written + n // 8,
            "ld": loads + staged,
            "st": stores + staged // 2,
            "ldgsts": 0,
            "ld passes": loads + staged + conflicts,
            "ld conflicts": conflicts,
        }
    tm, tn, columns = tiles.thread_m, tiles.thread_n, d // tiles.lanes
    loads = warps * turns * ((tm + tn) * d // 4 + (tm + columns) * tiles.tile_n // 4)
    share = warps * turns * tm * tn // 4
    tile_q, tile_k = tiles.tile_m * d // 32, tiles.tile_n * d // 32
    copies = {
        "tiles": (0, warps * tile_q // 4 + turns * blocks * 2 * tile_k // 4),
        "async": (warps * tile_q // 4 + turns * blocks * 2 * tile_k // 4, 0),
        # K is transposed on its way, 4 bytes a copy; Q too, through registers.
        "flash2": (turns * blocks * (tile_k + tile_k // 4), warps * tile_q),
    }
    asynchronous, stored = copies[step]
    if step == "flash2":
        loads += warps * turns * ((tm + tn) // 4 + tm // 4 + 1)  # the last steps read ahead in vain
        read += 3 * blocks * array  # a copy of 4 bytes a lane takes a fourth of each sector
    return {
        "ld sectors": read,
        # Each of a thread's rows: a warp writes one LSE a row group, in all sectors of its rows.
        "st sectors": array + n // 8 * tm,
        "ld": loads,
        "st": share + stored,
        "ldgsts": asynchronous,
        "ld passes": 2 * loads,
        "ld conflicts": 0,
    }


METRICS = {
    "st sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "ld": "smsp__inst_executed_op_shared_ld.sum",
    "st": "smsp__inst_executed_op_shared_st.sum",
    "ldgsts": "smsp__inst_executed_op_ldgsts.sum",
    "ld passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "ld conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
}


@pytest.mark.parametrize("step", STEPS)
def test_counts_are_those_of_the_closed_form(step):
    problem, q, k, v, _ = random_problem(seqlen_q=128, seqlen_k=128, head_dim=32)
    report = forward(step, problem, q, k, v, count=True)[2]
    assert report is not None
    hardware = report.hardware()
    # Not the hardware's number: that has a sector more for some copies, whose rule is not ours.
    found = {"ld sectors": report.count("global", "load").sectors}
    found |= {name: hardware[metric] for name, metric in METRICS.items()}
    assert found == closed_form(step, 128, 32)


def test_what_a_step_cannot_do_is_refused():
    for options, message in (
        ({"dtype": "fp16"}, "fp32 for this step, got fp16"),
        ({"head_dim": 80}, "a multiple of 32 and at most 128 for this step, got 80 and 80"),
        ({"window": (3, None)}, "full and causal attention, got window"),
        ({"dropout_p": 0.5}, "full and causal attention, got dropout_p"),
    ):
        with pytest.raises(ValueError, match=message):
            check_rows(Problem(**{"seqlen_q": 8, "seqlen_k": 8, "head_dim": 64, **options}))
    with pytest.raises(ValueError, match="at most 128 for this step, got 256 and 256"):
        run_tiles(module_of("tiles").make_forward, Problem(8, 8, 256), (), 0)
    with pytest.raises(ValueError, match="step must be one of naive, conflict-free, "):
        module_of("fast")
