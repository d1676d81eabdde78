"""The front door on a GPU: every rung that has kernels, from every kind of array."""

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from cases import CASES
from harness import Case, check, tiled_rounding
from public_api import PublicApi, rounding

from flash_numba import explain, flash_attention, flash_attention_backward, ladder, masks
from flash_numba import reference as ref
from flash_numba.budget import within_budget
from flash_numba.ladder import RUNGS
from flash_numba.problem import DTYPES, Problem

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(17)
TAKES = {rung.name: rung.dtypes for rung in RUNGS if rung.modules}
NO_GRADIENTS = {("hopper", "K06"), ("tensor_core", "K06")}
"""Their backward finds P from lse in one multiply-add: beyond scores of some 10**6 the rounding of
lse alone makes P anything (`test_cases.test_why_two_rungs_have_no_gradients_of_k06`). K06 was
reported of the forward pass."""
each_rung = pytest.mark.parametrize("kernel", TAKES)


def each_rung_with(values, dtype_of: Callable = str):
    """Every rung with those of `values` (parameter `case`) whose element type it takes."""
    pairs = [
        pytest.param(kernel, value, id=f"{kernel}-{getattr(value, 'id', value)}")
        for kernel, dtypes in TAKES.items()
        for value in values
        if dtype_of(value) in dtypes
    ]
    return pytest.mark.parametrize(("kernel", "case"), pairs)


def arrays(dtype="fp32", head_dim=64):
    shapes = {"q": (2, 70, 4, head_dim), "k": (2, 90, 2, head_dim), "v": (2, 90, 2, head_dim)}
    return [RNG.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes.values()]


def own_type(kernel, torch=None):
    """The first element type that a rung takes, or torch's name of it."""
    name = TAKES[kernel][0]
    return getattr(torch, str(DTYPES[name])) if torch else name


def hold(found, problem, inputs, do):
    """o, lse, dq, dk and dv against the reference of the same type."""
    q, k, v = inputs
    answers = {}
    for dtype in (None, problem.dtype):
        o, lse = ref.forward(problem, q, k, v, dtype=dtype)
        grads = ref.backward(problem, q, k, v, do, dtype=dtype)
        answers[dtype] = {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    wider = tiled_rounding(Case(problem, q, k, v, do), answers[None])
    for name, array in zip(("o", "lse", "dq", "dk", "dv"), found, strict=True):
        dtype = "fp32" if name == "lse" else problem.dtype
        verdict = within_budget(array, answers[None][name], answers[problem.dtype][name], dtype)
        assert verdict.error <= verdict.allowance + wider.get(name, 0.0), (name, verdict)


def test_find_gpu_names_it():
    gpu = ladder.find_gpu()
    assert isinstance(gpu, ladder.Gpu)
    assert gpu.compute_capability >= (5, 0)
    assert gpu.name
    assert str(gpu) in str(explain(*arrays()))


@each_rung_with(CASES, lambda spec: spec.build().problem.dtype)
def test_cases(kernel, case):
    choice = ladder.look(case.build().problem, ladder.find_gpu(), kernel)
    if choice.rung is None:
        pytest.skip(choice.reasons[kernel])
    check(case.build(), PublicApi(kernel), rounding(case.id), (kernel, case.id) not in NO_GRADIENTS)


@each_rung_with(["fp32", "fp16", "bf16"])
def test_host_arrays_come_back_as_host_arrays(kernel, case):
    q, k, v = arrays(case)
    problem = Problem.of(q, k, v, causal=True)
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, kernel=kernel)
    do = RNG.standard_normal(o.shape).astype(o.dtype)
    found = flash_attention_backward(do, q, k, v, o, lse, causal=True, kernel=kernel)
    assert {type(x) for x in (o, lse, *found[:3])} == {np.ndarray}
    hold((o, lse, *found[:3]), problem, (q, k, v), do)


@each_rung
def test_numba_device_arrays(kernel):
    from numba import cuda

    host = arrays(own_type(kernel))
    mask = RNG.random((70, 90)) < 0.8
    q, k, v, on_gpu = (cuda.to_device(x) for x in (*host, mask))
    o, lse = flash_attention(q, k, v, mask=on_gpu, return_lse=True, kernel=kernel)
    found = flash_attention_backward(o, q, k, v, o, lse, mask=on_gpu, kernel=kernel)
    given = [o.copy_to_host(), lse.copy_to_host(), *(x.copy_to_host() for x in found[:3])]
    expected = flash_attention(*host, mask=mask, kernel=kernel)
    np.testing.assert_array_equal(given[0], expected)
    visible = masks.boolean(np.broadcast_to(mask, (2, 4, 70, 90)))
    problem = Problem.of(*host, mask=visible)
    hold(given, problem, host, given[0])


@each_rung_with(["fp32", "fp16"])
def test_cupy_arrays_on_their_stream(kernel, case):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    host = arrays(case)
    slopes = RNG.random(4).astype(np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        q, k, v, on_gpu = (cupy.asarray(x) for x in (*host, slopes))
        o, lse = flash_attention(q, k, v, alibi_slopes=on_gpu, return_lse=True, kernel=kernel)
        found = flash_attention_backward(o, q, k, v, o, lse, alibi_slopes=on_gpu, kernel=kernel)
        stream.synchronize()
    assert {type(x) for x in (o, lse, *found[:3])} == {cupy.ndarray}
    results = [x.get() for x in (o, lse, *found[:3])]
    change = masks.alibi(np.broadcast_to(slopes, (2, 4)), 20)
    hold(results, Problem.of(*host, score_mods=[change]), host, results[0])


@each_rung_with(["fp32", "fp16", "bf16"])
def test_torch_tensors_on_their_stream(kernel, case):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    host = arrays(case)
    element = getattr(torch, str(DTYPES[case]))
    exact = [x.astype(np.float32) for x in host]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what runs on another stream would come first
        q, k, v = (torch.from_numpy(x).cuda().to(element).requires_grad_() for x in exact)
        o, lse = flash_attention(
            q, k, v, causal=True, dropout_p=0.2, seed=9, return_lse=True, kernel=kernel
        )
        do = torch.randn_like(o)
        found = torch.autograd.grad(o, (q, k, v), do)
    stream.synchronize()
    assert {x.device for x in (o, lse, *found)} == {q.device}
    results = [x.detach().float().cpu().numpy() for x in (o, lse, *found)]
    problem = Problem.of(*host, causal=True, dropout_p=0.2, seed=9)
    hold(results, problem, host, do.float().cpu().numpy())


@each_rung
def test_torch_views_of_any_strides(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options = {"device": "cuda", "dtype": own_type(kernel, torch), "requires_grad": True}
    shapes = (2, 4, 70, 64), (2, 90, 1, 64), (2, 90, 4, 129)
    bases = base_q, base_k, base_v = [torch.randn(shape, **options) for shape in shapes]
    views = base_q.transpose(1, 2), base_k.expand(-1, -1, 4, -1), base_v[..., 1::2]
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    choice = explain(*views, kernel=kernel)
    if choice.rung is None:
        pytest.skip(choice.reasons[kernel])
    do = torch.ones(1, device="cuda", dtype=own_type(kernel, torch)).expand(2, 70, 4, 64)
    found = torch.autograd.grad(flash_attention(*views, kernel=kernel), bases, do)
    dq, dk, dv = torch.autograd.grad(
        flash_attention(*copies, kernel=kernel), copies, do.contiguous()
    )
    torch.testing.assert_close(found[0], dq.transpose(1, 2))
    torch.testing.assert_close(found[1], dk.sum(2, keepdim=True))
    torch.testing.assert_close(found[2][..., 1::2], dv)


@each_rung
def test_compiled_and_captured_in_a_graph(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.from_numpy(x).cuda() for x in arrays(own_type(kernel)))
    expected = flash_attention(q, k, v, causal=True, kernel=kernel)

    def call(q, k, v):
        return flash_attention(q, k, v, causal=True, kernel=kernel)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call(q, k, v)
    q.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, call(q, k, v))


@each_rung
def test_the_second_gpu_is_used_where_the_tensors_are_there(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    given = arrays(own_type(kernel))
    first, second = ([torch.from_numpy(x).to(f"cuda:{n}") for x in given] for n in range(2))
    o = flash_attention(*second, kernel=kernel)
    assert o.device.index == 1
    torch.testing.assert_close(o.cpu(), flash_attention(*first, kernel=kernel).cpu())
    assert torch.cuda.current_device() == 0


def on_gpu(torch, kernel, gradient=False):
    """q, k and v of a type that the rung takes."""
    dtype = TAKES[kernel][0]
    element = getattr(torch, str(DTYPES[dtype]))
    tensors = (torch.from_numpy(x.astype(np.float32)).cuda().to(element) for x in arrays(dtype))
    return [x.requires_grad_(gradient) for x in tensors]


# torch warns, once a process, where leaves are older than the stream of the capture.
@pytest.mark.filterwarnings("default::UserWarning")
@each_rung
@pytest.mark.parametrize("options", [{}, {"key_lengths": [90, 31]}], ids=["plain", "lengths"])
def test_a_graph_holds_forward_and_backward(kernel, options):
    """Captured without a wait or memory of another allocator; a replay reads new inputs."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    leaves = on_gpu(torch, kernel, gradient=True)
    do = torch.randn_like(leaves[0])

    def both():
        o = flash_attention(*leaves, causal=True, kernel=kernel, **options)
        return o, *torch.autograd.grad(o, leaves, do)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            both()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        captured = both()
    with torch.no_grad():
        for leaf in leaves:
            leaf.copy_(torch.randn_like(leaf))
    graph.replay()
    torch.cuda.synchronize()
    for name, found, expected in zip(("o", "dq", "dk", "dv"), captured, both(), strict=True):
        assert torch.equal(found, expected), (name, (found - expected).abs().max().item())


@each_rung
def test_repeated_calls_on_other_memory_strides_and_streams(kernel):
    """What a plan was not made for gets a plan of its own."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = on_gpu(torch, kernel)
    expected = flash_attention(q, k, v, kernel=kernel)
    room = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape)
    others = [q.clone(), q.transpose(1, 2).contiguous().transpose(1, 2), room.copy_(q)]
    others = [x for x in others if explain(x, k, v, kernel=kernel).rung]  # hopper's are aligned
    streams = [torch.cuda.Stream() for _ in (q, *others)]
    torch.cuda.synchronize()
    for _ in range(3):
        found = []
        for stream, other in zip(streams, (q, *others), strict=True):
            with torch.cuda.stream(stream):
                found.append(flash_attention(other, k, v, kernel=kernel))
        torch.cuda.synchronize()
        for o in found:
            torch.testing.assert_close(o, expected)


@each_rung
def test_threads_call_at_once(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from concurrent.futures import ThreadPoolExecutor

    given = [on_gpu(torch, kernel) for _ in range(4)]
    for n, (q, _, _) in enumerate(given):
        q.mul_(n + 1)
    expected = [flash_attention(*tensors, kernel=kernel) for tensors in given]
    torch.cuda.synchronize()

    def call(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [flash_attention(*given[n], kernel=kernel) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(o, expected[n]) for o in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


@each_rung
def test_a_gpu_that_is_not_the_current_one(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given, results = on_gpu(torch, kernel), []
    for device in ("cuda:0", "cuda:1"):
        q, k, v = (x.to(device).requires_grad_() for x in given)
        for _ in range(2):
            o = flash_attention(q, k, v, kernel=kernel)
            gradients = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
            results.append([x.cpu() for x in (o, *gradients)])
    for found in results:
        assert all(map(torch.equal, found, results[0]))


@each_rung
def test_a_new_thread_has_no_context_of_its_own(kernel):
    """Where torch has memory at hand, the first call of the driver is ours."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from concurrent.futures import ThreadPoolExecutor

    given = on_gpu(torch, kernel)
    expected = flash_attention(*given, kernel=kernel)
    flash_attention(*given, kernel=kernel)  # its memory is at hand then
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(flash_attention, *given, kernel=kernel).result()
    assert torch.equal(found, expected)


NEXT_PROCESS = """
import sys, torch
torch.manual_seed(1)
options = {"device": "cuda", "dtype": getattr(torch, sys.argv[2]), "requires_grad": True}
made = [torch.randn(2, 70, 4, 64, **options) for _ in "qkv"]
from flash_numba import flash_attention
o = flash_attention(*made, causal=True, kernel=sys.argv[1])
grads = torch.autograd.grad(o, made, torch.ones_like(o))
found = (x.detach().float().cpu().numpy().tobytes() for x in (o, *grads))
print("numba" in sys.modules, *map(hash, found))
"""


@pytest.mark.parametrize("kernel", ["flash2", "hopper"])
def test_the_next_process_finds_what_was_compiled(kernel, tmp_path):
    """The same bits without Numba, with tensor maps too; a damaged file is compiled anew."""
    pytest.importorskip("torch", reason="torch is not installed")
    choice = explain(*arrays(own_type(kernel)), kernel=kernel)
    if choice.rung is None:
        pytest.skip(choice.reasons[kernel])

    def process():
        run = subprocess.run(
            [sys.executable, "-c", NEXT_PROCESS, kernel, str(DTYPES[TAKES[kernel][0]])],
            env=os.environ | {"FLASH_NUMBA_CACHE": str(tmp_path), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        loaded, *hashes = run.stdout.split()
        return loaded == "True", hashes

    (cold, first), (warm, second) = process(), process()
    assert (cold, warm) == (True, False)
    assert first == second
    kernels = [path for path in tmp_path.rglob("kernel-*") if path.is_file()]
    kernels[0].write_bytes(b"\x00" + kernels[0].read_bytes()[1:])
    (damaged, third), (again, fourth) = process(), process()
    assert (damaged, again) == (True, False)
    assert third == fourth == first
