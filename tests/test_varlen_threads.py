"""Packed batches in the tensor-core kernels' own source, thread by thread on a CPU."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from fake_gpu import CudaArray
from packed import one_by_one, packed_arrays, packed_problem
from traced_attention import blank, budget_of, extra, run, stored, truth
from traced_gpu import install_traced

from flash_numba import flash_attention_varlen, flash_attention_varlen_backward, masks
from flash_numba.device import turns
from flash_numba.kernels import (
    packed_tiles,
    tensor_core,
    tensor_core_backward,
    tensor_core_dkv,
    tensor_core_dq,
    tensor_core_gradients,
    tensor_core_gradients_launch,
)
from flash_numba.kernels.spec import Spec, padded
from flash_numba.kernels.tensor_core import LOG2_E
from flash_numba.kernels.tensor_core_backward_tiles import KeyGradientTiles, QueryGradientTiles
from flash_numba.kernels.tensor_core_gradients_tiles import GradientTiles
from flash_numba.kernels.tensor_core_tiles import TensorTiles, is_scale_folded
from simulator import theory
from simulator.run import simulate

TILES: dict[str, Any] = {"tile_m": 32, "tile_n": 32}


def listed(problem, packed, tile, of_keys=False):
    """The list of tiles, and what masks need, as `list_tiles` writes them."""
    kernel = packed_tiles.make_list_tiles(tile, of_keys, *(x is not None for x in packed[2:4]))
    places = packed_tiles.workspace(problem, *((0, tile) if of_keys else (tile, 0)))
    rows = max(places[1:]) // (4 * packed_tiles.COLUMNS)
    tiles = np.full((rows, packed_tiles.COLUMNS), -1, np.int32)
    shift = np.full(places[0] // 8, -1 << 40, np.int64)
    totals = np.int64(problem.sequences.total_q), np.int64(problem.sequences.total_k)
    used = (() if x is None else (x,) for x in packed[2:4])
    blocks = -(-(problem.batch + 2) // packed_tiles.SEQUENCES)
    run(kernel, blocks, packed_tiles.SEQUENCES, 0, (*packed[:2], *used, *totals, shift, tiles))
    return shift, tiles


def expected_list(problem, packed, tile, of_keys=False):
    """Rows of the list, sequence by sequence in plain Python."""
    found, rows = [], []
    totals = problem.sequences.total_q, problem.sequences.total_k
    for starts, used, total in zip(packed[:2], packed[2:4], totals, strict=True):
        spans = [(int(a), int(b - a)) for a, b in pairwise(starts)]
        counts = [n for _, n in spans] if used is None else list(map(int, used))
        spans += [(int(starts[-1]), total - int(starts[-1])), (0, int(starts[0]))]
        rows.append([(*span, count) for span, count in zip(spans, [*counts, 0, 0], strict=True)])
    work = [k if not of_keys else q for (*_, q), (*_, k) in zip(*rows, strict=True)]
    for number in sorted(range(len(work)), key=lambda n: (-work[n], n)):
        (first_q, rows_q, q), (first_k, rows_k, k) = rows[0][number], rows[1][number]
        own, other = (rows_k, rows_q) if of_keys else (rows_q, rows_k)
        tiles, first = max(-(-own // tile), 1 if of_keys else 0), len(found)
        batch = min(number, problem.batch - 1)
        found += [[batch, first, tiles, first_q, q, first_k, k, own, other]] * tiles
    return found


@pytest.mark.parametrize(("where", "cc"), [("host", (7, 5)), ("gpu", (8, 0))])
def test_public_functions_reach_the_kernels(where, cc, monkeypatch):
    """From the front door on: the lists lie where masks and kernels look for them."""
    wrap: Any = CudaArray if where == "gpu" else np.asarray
    one = cc >= (8, 0)  # and there is room
    names = install_traced(monkeypatch, 163 if one else 32)
    monkeypatch.setattr(tensor_core_backward, "compute_capability", lambda: cc)
    problem, packed = packed_problem(
        [9, 0, 5], [5, 4, 11], [8, 0, 5], head_dim=8, dtype="fp16", causal=True
    )
    arrays = packed_arrays(problem)
    q, k, v, do, cu_q, cu_k, used = map(
        wrap, (*(arrays[name] for name in ("q", "k", "v", "do")), *packed[:3])
    )
    options = {"seqused_q": used, "causal": True, "kernel": "tensor_core"}
    o, lse = flash_attention_varlen(q, k, v, cu_q, cu_k, return_lse=True, **options)
    grads = flash_attention_varlen_backward(do, q, k, v, o, lse, cu_q, cu_k, **options)
    found = {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    hold(problem, {n: x.array if where == "gpu" else x for n, x in found.items()}, arrays)
    assert names[:2] == ["list_tiles", "tensor_core_forward"]
    two = "list_tiles", "tensor_core_dq", "list_tiles", "tensor_core_dkv"
    expected = ("list_tiles", "tensor_core_gradients") if one else two
    assert names[2:] == ["row_dots", *expected]


@pytest.mark.parametrize("of_keys", [False, True], ids=["queries", "keys"])
def test_list_of_tiles(of_keys):
    rows = [5, 0, 70, 33], [3, 6, 0, 40]
    problem, packed = packed_problem(*rows, used_q=[5, 0, 60, 32], slack=(11, 0), head_dim=8)
    shift, tiles = listed(problem, packed, 32, of_keys)
    expected = expected_list(problem, packed, 32, of_keys)
    assert tiles[: len(expected), :9].tolist() == expected
    assert not tiles[len(expected) :, 2].any()
    assert shift[:4].tolist() == problem.shift.tolist()


def test_lists_of_many_sequences_do_not_overlap():
    """Two blocks list them, longest first among their own 256."""
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 40, (2, 300))
    problem, packed = packed_problem(*rows, slack=(50, 0), head_dim=8)
    _, tiles = listed(problem, packed, 16)
    used = tiles[tiles[:, 2] > 0]
    places = set()
    for batch, first, count, first_q, seqlen_q, *_, own, _ in used[:, :9].tolist():
        assert tiles[first : first + count, :3].tolist() == [[batch, first, count]] * count
        places |= {(first_q, own)}
        assert seqlen_q in (own, 0)
    assert sum(own for _, own in places if own) == problem.sequences.total_q
    assert len(used) == sum(-(-own // 16) for _, own in places)


@pytest.mark.parametrize("cu", [[90, -5, 40, 1000], [0, 2**31 - 1, -(2**31), 7]], ids=str)
def test_lengths_that_make_no_sense_stay_inside_the_tensors(cu):
    problem, packed = packed_problem([10, 20, 30], [10, 20, 30], [1, 2, 3], head_dim=8)
    wrong = packed._replace(
        cu_seqlens_q=np.array(cu, np.int32), seqused_q=np.array([-1, 2**31 - 1, 50], np.int32)
    )
    _, tiles = listed(problem, wrong, 16)
    used = tiles[tiles[:, 2] > 0, :9].astype(np.int64)
    assert (used >= 0).all()
    assert (used[:, 0] < 3).all()
    assert (used[:, 3] + used[:, 7] <= 60).all()
    assert (used[:, 4] <= used[:, 7]).all()


def in_batches(problem, array):
    """A packed array as kernels see it."""
    return np.broadcast_to(stored(array), (max(problem.batch, 1), *array.shape))


def kernels(
    problem, packed, q, k, v, do, count=False, chunks=None, sizes=(1, 2, 32), **tile
) -> Any:
    """Outputs of all three kernels, and their reports: tiles of 32 queries and keys."""
    depths = padded(problem.head_dim, 16), padded(problem.head_dim_v, 16)
    if chunks is None:
        chunks = problem.head_dim % 8 == problem.head_dim_v % 8 == 0
    spec, folded = Spec.of(problem, chunks), is_scale_folded(problem)
    scale = problem.softmax_scale
    factors = np.float32(scale * LOG2_E if folded else LOG2_E), np.float32(scale)
    mask_aux, range_aux, score_aux, _, _, dropped = extra(problem)
    found = {n: blank(problem.shapes[n], q.dtype) for n in ("o", "dq", "dk", "dv")}
    found["lse"] = blank(problem.shapes["lse"])
    reports = {}

    def launch(name, kernel, tiles, heads, arrays, of_keys):
        rows = listed(problem, packed, tiles.tile_n if of_keys else tiles.tile_m, of_keys)[1]
        more = mask_aux, range_aux, score_aux, (rows,), (), dropped
        arguments = (*(in_batches(problem, x) for x in arrays), *factors, *more)
        grid = len(rows) * heads
        reports[name] = run(kernel, grid, tiles.threads, tiles.shared_bytes, arguments, None, count)

    tiles: Any = TensorTiles(*depths, *sizes, blocks_per_sm=1, **tile)
    arrays = q, k, v, found["o"], found["lse"]
    kernel = tensor_core.make_forward(spec, tiles, folded)
    launch("forward", kernel, tiles, problem.num_heads, arrays, False)

    delta = np.einsum("ihd,ihd->hi", found["o"].astype(np.float64), do.astype(np.float64))
    inputs = q, k, v, do, found["lse"], delta.astype(np.float32)
    tiles = QueryGradientTiles(*depths, 2, 1, 32, 1)
    kernel = tensor_core_dq.make_query_gradient(spec, tiles, folded)
    launch("dq", kernel, tiles, problem.num_heads, (*inputs, found["dq"]), False)
    tiles = KeyGradientTiles(*depths, 2, 1, 32, 1)
    kernel = tensor_core_dkv.make_key_gradients(spec, tiles, folded, (True, True))
    launch("dkv", kernel, tiles, problem.num_kv_heads, (*inputs, found["dk"], found["dv"]), True)
    return found, reports


def one_kernel(problem, packed, q, k, v, do, lse, o, count=False, order=None, **tile) -> Any:
    """dQ, dK and dV of the kernel of all gradients, and its report."""
    depths = padded(problem.head_dim, 32), padded(problem.head_dim_v, 32)
    spec = Spec.of(problem, problem.head_dim % 8 == problem.head_dim_v % 8 == 0)
    tiles = GradientTiles(*depths, 2, 2, 2, 32, **tile)
    found = {n: blank(problem.shapes[n], q.dtype) for n in ("dq", "dk", "dv")}
    delta = np.einsum("ihd,ihd->hi", o.astype(np.float64), do.astype(np.float64))
    turns = np.zeros(tensor_core_gradients_launch.query_tiles(problem, tiles.tile_m), np.int32)
    sums = blank((*turns.shape, tiles.tile_m * tiles.depth))
    shared = sums, turns
    inputs = (in_batches(problem, x) for x in (q, k, v, do, lse, delta.astype(np.float32)))
    outputs = (in_batches(problem, x) for x in found.values())
    scale = np.float32(problem.softmax_scale)
    rows = listed(problem, packed, tiles.tile_n, True)[1]
    mask_aux, range_aux, score_aux, _, _, dropped = extra(problem)
    more = mask_aux, range_aux, score_aux, (rows,), (), dropped
    arguments = *inputs, *shared, np.zeros(1, np.int32), *outputs, scale * LOG2_E, scale, *more
    kernel = tensor_core_gradients.make_gradients(spec, tiles)
    grid = len(rows) * problem.num_kv_heads
    return found, run(kernel, grid, tiles.threads, tiles.shared_bytes, arguments, order, count)


def answer(alone, batch, q, k, v, do):
    """The truth for one sequence; its number matters to dropout and to slopes of its own."""
    found = truth(alone, *(np.repeat(x, alone.batch, axis=0) for x in (q, k, v, do)))
    names = {"o": "out", "lse": "lse", "dq": "dq", "dk": "dk", "dv": "dv"}
    return {n: getattr(found, own).numpy()[batch][None] for n, own in names.items()}


SIZES: dict[str, Any] = {"head_dim": 16, "dtype": "fp16"}
LENGTHS: dict[str, Any] = {"rows_q": [37, 0, 1, 40], "rows_k": [40, 9, 1, 21]}
COUNTED = "full", "causal-gqa", "used"
SLOPES = np.array([[0.1], [0.2], [0.3], [0.4]], np.float32)
CASES = {
    "full": SIZES | LENGTHS,
    "causal-gqa": SIZES | LENGTHS | {"causal": True, "num_heads": 2, "num_kv_heads": 1},
    "window-bf16-D64": SIZES | LENGTHS | {"window": (9, 3), "head_dim": 64, "dtype": "bf16"},
    "no-keys-no-queries": SIZES | {"rows_q": [33, 0], "rows_k": [0, 40], "causal": True},
    "used": SIZES | LENGTHS | {"used_q": [33, 0, 1, 31], "used_k": [18, 9, 0, 21]}
    | {"slack": (3, 40), "causal": True},
    "odd-D": SIZES | LENGTHS | {"head_dim": 21, "head_dim_v": 35, "causal": True},
    "dropout-softcap": SIZES | {"rows_q": [3, 40], "rows_k": [20, 33], "dropout_p": 0.4}
    | {"seed": 2**33 + 5, "score_mods": (masks.softcap(2.0),)},
}  # fmt: skip


def hold(problem, found, arrays):
    """Every row is written, and right; rows outside of the sequences hold zeros, LSE -inf."""
    given = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    expected = one_by_one(problem, answer, **given)
    for name, exact in expected.items():
        array = np.asarray(found[name], np.float64)
        assert np.array_equal(array == -np.inf, exact == -np.inf), name
        seen = exact > -np.inf
        error = np.abs(array[seen] - exact[seen]).max(initial=0.0)
        allowed = budget_of(problem) * {"lse": 1, "o": 4}.get(name, 16)
        assert error <= allowed, f"{name}: error {error} over {allowed}"
        rows = problem.side_of(name).outside
        outside = array[:, rows] if name == "lse" else array[rows]
        assert (outside == (-np.inf if name == "lse" else 0)).all(), name


@pytest.mark.parametrize("name", sorted(set(CASES) - set(COUNTED)))
def test_kernels(name):
    problem, packed = packed_problem(**CASES[name])
    arrays = packed_arrays(problem)
    hold(problem, kernels(problem, packed, **arrays)[0], arrays)


@pytest.mark.parametrize("name", sorted(set(CASES) - {*COUNTED, "dropout-softcap"}))
def test_all_gradients_by_one_kernel(name):
    problem, packed = packed_problem(**CASES[name])
    arrays = packed_arrays(problem)
    found, _ = kernels(problem, packed, **arrays)
    stages = 3 if name == "causal-gqa" else 2
    grads, _ = one_kernel(problem, packed, **arrays, lse=found["lse"], o=found["o"], stages=stages)
    hold(problem, found | grads, arrays)


@pytest.mark.parametrize("few", [0, 16])
def test_visits_that_nobody_notes(few, monkeypatch):
    """Key tiles of a sequence in either order, without a mask to look at."""
    monkeypatch.setattr(turns, "FEW", few)
    problem, packed = packed_problem(**CASES["full"])
    arrays = packed_arrays(problem)
    found, _ = kernels(problem, packed, **arrays)
    given = arrays | {"lse": found["lse"], "o": found["o"]}
    grads, _ = one_kernel(problem, packed, **given, stages=3, notes=False, late_p=False)
    hold(problem, found | grads, arrays)


def test_alibi_of_each_sequence():
    plain, packed = packed_problem(**SIZES, **LENGTHS)
    change = masks.alibi(SLOPES, plain.shift)
    problem, _ = packed_problem(**SIZES, **LENGTHS, score_mods=(change,), causal=True)
    arrays = packed_arrays(problem)
    hold(problem, kernels(problem, packed, **arrays)[0], arrays)


@pytest.mark.parametrize("name", COUNTED)
def test_kernels_and_that_their_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor, rows outside of the sequences included."""
    problem, packed = packed_problem(**CASES[name])
    arrays = packed_arrays(problem)
    found, reports = kernels(problem, packed, **arrays, count=True)
    hold(problem, found, arrays)
    for direction, names in (("forward", ["forward"]), ("backward", ["dq", "dkv"])):
        program = "flash2" if direction == "forward" else "flash2_two_kernel"
        options: dict[str, Any] = TILES | {"direction": direction}
        counts = simulate(program, problem, head=None, **options).counts
        assert counts == theory.counts(program, problem, **options, all_heads=True)
        by_delta_pass = {
            "dO": problem.side_of("q").used.sum() * problem.num_heads * problem.head_dim_v
        }
        tensors = {"forward": ("O",), "backward": ("dO", "dQ", "dK", "dV")}[direction]
        for tensor in ("Q", "K", "V", "LSE", *tensors):
            size = 4 if tensor == "LSE" else 2
            moved = [
                sum(reports[n].count("global", kind, tensor).bytes for n in names) // size
                for kind in ("load", "store")
            ]
            read = counts.reads.get(tensor, 0) - by_delta_pass.get(tensor, 0)
            assert moved == [read, counts.writes.get(tensor, 0)], (direction, tensor)
    assert not any(report.findings for report in reports.values())


@pytest.mark.parametrize("name", COUNTED)
def test_traffic_of_the_one_kernel_is_what_the_simulator_counts(name):
    """All but dQ's, which the first to add does not read, and the last adds to no sum."""
    problem, packed = packed_problem(**CASES[name])
    arrays = packed_arrays(problem)
    found, _ = kernels(problem, packed, **arrays)
    grads, report = one_kernel(
        problem, packed, **arrays, lse=found["lse"], o=found["o"], count=True
    )
    hold(problem, found | grads, arrays)
    counts = simulate("flash2", problem, head=None, direction="backward", **TILES).counts
    queries = problem.side_of("q")
    by_delta_pass = {"dO": queries.used.sum() * problem.num_heads * problem.head_dim_v}
    for tensor in ("Q", "K", "V", "dO", "LSE", "dK", "dV"):
        moved = [
            report.count("global", kind, tensor).bytes // (4 if tensor == "LSE" else 2)
            for kind in ("load", "store")
        ]
        read = counts.reads.get(tensor, 0) - by_delta_pass.get(tensor, 0)
        assert moved == [read, counts.writes.get(tensor, 0)], tensor
    written = report.count("global", "store", "dQ").bytes // 2
    assert written == queries.total * problem.num_heads * problem.head_dim
    assert not report.findings
