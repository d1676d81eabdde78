"""Kernels compiled without a GPU are those that a run on one asks the store for."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from test_cli import invoke

pytest.importorskip("numba_cuda")

import cuda.pathfinder

from flash_numba import ahead, kernel_store, ladder, launch, packing
from flash_numba.kernels.offline import pretend
from flash_numba.ladder import Gpu
from simulator.bench.cells import Options
from simulator.bench.compiling import tasks
from simulator.installation import install_extra

H200 = Gpu("NVIDIA H200", (9, 0))
SMALL = ("--tokens", "512", "--hidden", "128", "--seqlen", "256", "--seqlen", "512")


@pytest.fixture
def asked(monkeypatch):
    """Keys that launches ask the store for, on a GPU that loads and runs nothing."""
    found = []
    loaded = SimpleNamespace(handle=None)
    monkeypatch.setattr(kernel_store, "load_function", lambda key, _: found.append(key) or loaded)
    monkeypatch.setattr(packing, "encoded", lambda tensor_map: bytes(128))
    launch._function.cache_clear()
    yield found
    launch._function.cache_clear()


@pytest.mark.parametrize(
    ("rung", "dtype", "head_dims"),
    [
        ("standard", "fp32", (64,)),
        ("flash1", "fp32", (64,)),
        ("flash2", "fp32", (64, 128)),
        ("tensor_core", "fp16", (64, 128, 192)),
        ("hopper", "bf16", (64, 128, 192)),
    ],
)
def test_keys_are_those_that_a_launch_asks_for(asked, rung, dtype, head_dims):
    pytest.importorskip("torch", reason="torch is not installed")
    from simulator.bench.contenders import Inputs, backward_call, forward_call

    options = Options(
        rungs=(rung,), dtypes=(dtype,), head_dims=head_dims, seqlens=(256, 512), tokens=512,
        hidden=256,
    )  # fmt: skip
    wanted = {one.key for one in ahead.distinct(tasks(options, H200), (9, 0))}
    with pretend((9, 0)):
        for cell in options.cells():
            (chosen,) = (one for one in ladder.RUNGS if one.name == rung)
            for form in chosen.forms(cell.direction):
                inputs = Inputs.empty(cell, "cpu")
                call = forward_call(form, cell, inputs)
                if cell.direction == "backward":
                    backward_call(form, cell, inputs, call.results["o"], call.results["lse"])
    assert wanted == set(asked)
    assert len(wanted) >= 4


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that a run of ``--compile`` would have compiled, in this process."""
    found = []

    def keep(key, dispatcher, signature):
        found.append(dispatcher.py_func.__name__)
        return True

    monkeypatch.setattr(launch, "keep_kernel", keep)
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lambda name: None)
    monkeypatch.setattr(ahead, "ProcessPoolExecutor", lambda jobs, _: ThreadPoolExecutor(1))
    return found


def test_each_kernel_is_compiled_once(compiled):
    """Whatever the length and the pass, and the slow ones of the backward pass first."""
    chosen = "--rung", "flash2", "--dtype", "fp32", "--head-dim", "64", "--mask", "full"
    run = invoke("bench", *SMALL, *chosen, "--compile", "2", "--compile-for", "9.0")
    assert run.exit_code == 0, run.output
    assert sorted(compiled[:2]) == ["delta_pass", "flash2_backward"]
    assert compiled[2:] == ["flash2_forward"]
    ways = ("backward", "backward", "forward")
    begun = [
        f"{name}, flash2 {way} fp32 D=64 N=256 full: "
        for name, way in zip(compiled, ways, strict=True)
    ]
    lines = run.stderr.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, begun, strict=True)] == begun


def test_a_kernel_that_does_not_compile_is_told(monkeypatch, compiled):
    def fail(*_):
        raise RuntimeError("ptxas fatal")

    monkeypatch.setattr(launch, "keep_kernel", fail)
    chosen = "--rung", "flash2", "--dtype", "fp32", "--head-dim", "64", "--direction", "forward"
    run = invoke("bench", *SMALL, *chosen, "--compile", "2", "--compile-for", "8.0")
    assert run.exit_code == 1
    assert (
        "flash2_forward, flash2 forward fp32 D=64 N=256 full: failed, RuntimeError: ptxas fatal"
        in run.stderr
    )


def test_variants_of_a_kernel_are_told_apart(compiled):
    """What a line names, but for the time, is of one kernel; hopper's tiles depend on N too."""
    chosen = "--rung", "flash2", "--rung", "hopper", "--dtype", "fp32", "--dtype", "fp16"
    run = invoke("bench", *chosen, "--compile", "2", "--compile-for", "9.0")
    assert run.exit_code == 0, run.output
    named = [line.partition(":")[0] for line in run.stderr.splitlines()]
    assert len(set(named)) == len(named) == len(compiled) > 30
    assert {line.rpartition(" ")[2] for line in named} == {"full", "causal"}


def test_without_the_toolkit_it_says_what_brings_it(monkeypatch, compiled):
    def lost(name):
        raise cuda.pathfinder.DynamicLibNotFoundError(f'Failure finding "lib{name}.so"')

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lost)
    run = invoke("bench", *SMALL, "--compile", "1", "--compile-for", "9.0")
    assert run.exit_code == 2
    assert run.stderr.startswith("error: compiling kernels needs nvrtc, nvvm of the CUDA toolkit")
    assert run.stderr.endswith(f"{install_extra('cu13')}\n")
    assert run.stderr.count("\n") == 1
    assert not compiled


def test_which_gpu_must_be_known(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda: ladder.NoGpu("no CUDA GPU: none"))
    run = invoke("bench", "--compile", "2")
    assert run.exit_code != 0
    assert "--compile-for must say for which GPU" in run.output
    run = invoke("bench", "--compile", "2", "--compile-for", "9.1")
    assert run.exit_code != 0
    assert "compile-for must be one of 7.5" in run.output


def test_what_is_kept_is_found_again(monkeypatch, tmp_path):
    """One kernel compiled whole, without a GPU."""
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path))
    options = Options(
        rungs=("standard",), directions=("forward",), dtypes=("fp32",), masks=("full",),
        head_dims=(64,), seqlens=(256,),
    )  # fmt: skip
    one, *_ = ahead.distinct(tasks(options, H200), (9, 0))
    assert "failed" not in ahead._compile(one)
    stored = kernel_store.load_kernel(one.key)
    assert stored is not None
    assert stored[0].startswith(b"\x7fELF")
    assert ahead._compile(one).endswith("there already")
