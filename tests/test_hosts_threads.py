"""`flash_attention` down to the kernels of the simple rungs, whose launches a CPU traces."""

import importlib

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

from fake_gpu import install, memory  # noqa: E402
from harness import Case, check, tiled_rounding  # noqa: E402
from public_api import PublicApi  # noqa: E402
from traced_attention import random_problem, run, stored  # noqa: E402

from flash_numba import ladder, masks  # noqa: E402
from flash_numba.arrays import DeviceArray  # noqa: E402
from flash_numba.kernels.spec import padded  # noqa: E402
from flash_numba.ladder import RUNGS  # noqa: E402

MODULES = ("flash1", "flash1_backward", "standard", "standard_backward")
CASES = {
    "fp32": {"window": (9, 3), "key_lengths": np.array([0, 11]), "batch": 2}
    | {"score_mods": (masks.softcap(2.0),), "num_heads": 2, "num_kv_heads": 1},
    "bf16": {"dtype": "bf16", "dropout_p": 0.4, "seed": 2**33 + 5, "causal": True},
}


def padded_rows(view):
    """`view` with the gaps between the rows of a matrix, which a trace wants to be there."""
    if len(view.shape) == 4 and view.strides[3] == 4:
        whole = padded(view.shape[3], 4)
        if view.strides[2] == 4 * whole:
            return view._replace(shape=(*view.shape[:3], whole))
    return view


def on_host(argument):
    if isinstance(argument, DeviceArray):
        return stored(memory(padded_rows(argument)))[..., : argument.shape[-1]]
    if isinstance(argument, tuple):
        return tuple(map(on_host, argument))
    return np.float32(argument) if isinstance(argument, float) else argument


@pytest.fixture
def traced_gpu(monkeypatch):
    """Kernels with small tiles run on the CPU; the names of those that were launched."""
    install(monkeypatch)
    monkeypatch.setattr(ladder, "RUNGS", RUNGS)
    names = []

    def launch(kernel, blocks, threads, shared_bytes, arguments, stream=0):
        names.append(kernel.py_func.__name__)
        run(kernel, blocks, threads, shared_bytes, tuple(map(on_host, arguments)))

    for name in MODULES:
        module = importlib.import_module(f"flash_numba.kernels.{name}")
        for attribute, value in (
            ("launch", launch),
            ("compute_capability", lambda: (7, 5)),
            ("shared_limit", lambda cc: 32 * 1024),
        ):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, value)
    return names


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rung", ["flash1", "standard"])
def test_public_functions_reach_the_kernels(rung, name, traced_gpu):
    problem, q, k, v, do = random_problem(seqlen_q=7, seqlen_k=18, head_dim=8, **CASES[name])
    dlse = np.random.default_rng(3).standard_normal(problem.shapes["lse"]).astype(np.float32)
    check(Case(problem, q, k, v, do, dlse), PublicApi(rung), tiled_rounding)
    first, last = {
        "flash1": ("flash1_forward", "flash1_backward"),
        "standard": ("standard_scores", "column_blocks"),
    }[rung]
    rounded = rung == "flash1" and problem.dtype != "fp32"
    assert traced_gpu[0] == first
    assert traced_gpu[-1] == ("round_pass" if rounded else last)
