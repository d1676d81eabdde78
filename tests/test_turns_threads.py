"""Blocks that add to dQ in turns, traced all at once: nothing else says who comes when.

Traced one after the other, as elsewhere, blocks are in order whatever they wait for.
"""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOptionalSubscript=false

from dataclasses import replace

import numpy as np
import pytest

numba = pytest.importorskip("numba")
pytest.importorskip("greenlet")

import test_flash2_threads as flash2  # noqa: E402
import test_hopper_backward_threads as hopper  # noqa: E402
import test_tensor_core_gradients_threads as tensor_core  # noqa: E402
from numba import cuda  # noqa: E402
from traced_attention import check, random_problem, truth  # noqa: E402

from flash_numba import masks  # noqa: E402
from flash_numba.device.ptx import load_acquire, store_release  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from flash_numba.tiling import BlockMask  # noqa: E402
from simulator.threads import KernelError, trace  # noqa: E402

TAKE_TURNS = "flash2_backward", "tensor_core_gradients", "hopper_backward"


@pytest.fixture
def at_once(monkeypatch):
    """Names of the kernels whose blocks ran at once, with every check on."""
    names = []

    def run(kernel, blocks, threads, shared_bytes, arguments, order=None, count=False):
        name, cluster = kernel.py_func.__name__, 1
        if name in TAKE_TURNS:
            names.append(name)
            cluster = blocks
        traced = trace(kernel, count=True, order=order, cluster=cluster)
        return traced[blocks, threads, 0, shared_bytes](*arguments)

    for module in (flash2, hopper, tensor_core):
        monkeypatch.setattr(module, "run", run)
    return names


@pytest.mark.parametrize("name", ["causal-gqa", "window-lengths"])
def test_flash2(name, at_once):
    problem, q, k, v, do = random_problem(**flash2.CASES[name])
    want = truth(problem, q, k, v, do)
    out, lse = (np.asarray(x, np.float32) for x in (want.out, want.lse))
    dq, dk, dv = flash2.backward(problem, q, k, v, out, lse, do)
    check(problem, {"dq": dq, "dk": dk, "dv": dv}, want)
    assert at_once == ["flash2_backward"]


@pytest.mark.parametrize("options", [{}, {"sizes": (2, 2, 2, 32), "stages": 3}], ids=["2", "3"])
def test_tensor_core(options, at_once):
    case = {"seqlen_q": 41, "seqlen_k": 70, "head_dim": 24, "causal": True, "dtype": "fp16"}
    tensor_core.check_gradients(*random_problem(**case, num_heads=2, num_kv_heads=1), **options)
    assert at_once == ["tensor_core_gradients"]


@pytest.mark.parametrize("name", ["causal-gqa", "three-tiles"])
def test_hopper(name, at_once):
    hopper.check_gradients(*random_problem(**hopper.CASES[name]))
    assert at_once == ["hopper_backward"]


def listed(tile_m, tile_n, **sizes):
    """Five key tiles, of which a block list skips the second one."""
    mask = masks.Mask("all but one", lambda batch, head, q_idx, k_idx, aux: k_idx // aux[0] != 1)
    problem = Problem(seqlen_k=5 * tile_n, **sizes)
    blocks = BlockMask.from_mask(replace(mask, aux=(tile_n,)), problem, tile_m, tile_n)
    return random_problem(seqlen_k=5 * tile_n, **sizes, block_mask=blocks)


def test_turns_of_a_block_list(at_once):
    problem, q, k, v, do = listed(32, 16, seqlen_q=21, head_dim=20)
    want = truth(problem, q, k, v, do)
    out, lse = (np.asarray(x, np.float32) for x in (want.out, want.lse))
    dq, dk, dv = flash2.backward(problem, q, k, v, out, lse, do)
    check(problem, {"dq": dq, "dk": dk, "dv": dv}, want)
    half = {"head_dim": 16, "dtype": "fp16"}
    tensor_core.check_gradients(*listed(32, 32, seqlen_q=21, **half))
    # One block after all others: a turn that is not its own never comes.
    hopper.check_gradients(*listed(16, 128, seqlen_q=16, **half), resident=1)
    assert at_once == list(TAKE_TURNS)


# What these tests rest on


def make_adds(awaits: bool, meets: bool):
    """A kernel whose blocks write, one after the other, ``y = 2 * y + block``."""

    @cuda.jit
    def adds(y, turns):
        block, t = cuda.blockIdx.x, cuda.threadIdx.x
        if awaits and t == 0:
            while load_acquire(turns, 0) != block:
                pass
        cuda.syncthreads()
        y[t] = 2 * y[t] + block
        if meets:
            cuda.syncthreads()
        if t == 0:
            store_release(turns, 0, block + 1)

    return adds


def traced(kernel):
    y, turns = np.zeros(64, np.float32), np.zeros(1, np.int32)
    trace(kernel, cluster=4)[4, 64](y, turns)
    return y


def test_acquire_follows_release():
    assert (traced(make_adds(True, True)) == ((0 * 2 + 1) * 2 + 2) * 2 + 3).all()


@pytest.mark.parametrize(
    ("awaits", "meets"), [(False, True), (True, False)], ids=["not awaited", "left early"]
)
def test_turns_that_order_nothing_are_races(awaits, meets):
    with pytest.raises(KernelError, match=r"race: .*y.*block"):
        traced(make_adds(awaits, meets))


def test_a_turn_that_never_comes():
    with pytest.raises(KernelError, match="runaway loop: this loop is still turning"):
        trace(make_adds(True, True), turns=1 << 13)[1, 64](
            np.zeros(64, np.float32), np.ones(1, np.int32)
        )
