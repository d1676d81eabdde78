"""Packed batches on a GPU, through the public functions: numbers, lengths that stay on the GPU."""

import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from packed import packed_cases, packed_problem

from flash_numba import flash_attention_varlen, flash_attention_varlen_backward, ladder, masks

torch = pytest.importorskip("torch")
from dense import attention  # noqa: E402
from test_flash2_gpu import TORCH, UNIT, gradient_tolerance  # noqa: E402

pytestmark = pytest.mark.gpu

LENGTHS = [(1, 1), (63, 128), (0, 70), (257, 203), (130, 0), (128, 64), (5, 300)]
SLOPES = np.linspace(0.1, 0.8, 4 * len(LENGTHS), dtype=np.float32).reshape(len(LENGTHS), 4)
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (17, 5)},
    "dropout": {"dropout_p": 0.3, "seed": 2**40 + 7, "causal": True},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": SLOPES, "causal": True},
    "scale": {"scale": -0.5},
}
SHAPES = [(64, 64, "fp16"), (128, 128, "bf16"), (40, 72, "fp16"), (21, 35, "bf16")]
SHAPES += [(256, 256, "fp16")]
COMBINED: list = [*zip(OPTIONS, [*SHAPES, *SHAPES], strict=False), ("full", SHAPES[1])]
COMBINED += [("causal", SHAPES[0]), ("causal", SHAPES[4])]


@contextmanager
def poisoned():
    """torch fills the memory of new tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def make(lengths, head_dim, head_dim_v, dtype, used=False, **options) -> Any:
    """A problem, its lists on the GPU, and q, k, v, do and dlse; NaN in rows that do not count."""
    rows_q, rows_k = zip(*lengths, strict=True)
    count: Any = [[max(0, n - 3 * i) for i, n in enumerate(rows)] if used else None
             for rows in (rows_q, rows_k)]  # fmt: skip
    sizes: Any = {"head_dim": head_dim, "head_dim_v": head_dim_v, "dtype": dtype}
    named: Any = dict(options)
    mods = [masks.softcap(named.pop("softcap"))] if "softcap" in named else []
    slopes, scale = named.pop("alibi_slopes", None), named.pop("scale", None)
    heads: Any = {"num_heads": 4, "num_kv_heads": 2, "softmax_scale": scale}
    slack = (9, 5) if used else (0, 0)
    problem, packed = packed_problem(rows_q, rows_k, *count, slack=slack, **sizes, **heads, **named)
    if slopes is not None:
        mods.append(masks.alibi(slopes, problem.shift))
    named["score_mods"] = tuple(mods)
    problem, packed = packed_problem(rows_q, rows_k, *count, slack=slack, **sizes, **heads, **named)
    generator = torch.Generator("cuda").manual_seed(3)
    tensors = {}
    for name in ("q", "k", "v", "do"):
        tensor = torch.randn(problem.shapes[name], generator=generator, device="cuda")
        tensor[torch.from_numpy(problem.side_of(name).outside)] = torch.nan
        tensors[name] = tensor.to(TORCH[dtype])
    tensors["dlse"] = torch.randn(problem.shapes["lse"], generator=generator, device="cuda")
    lists = {n: None if x is None else torch.from_numpy(x).cuda() for n, x in packed.arrays.items()}
    return problem, lists, tensors


def answers(lists, tensors, **options) -> dict[str, Any]:
    q, k, v, do = (tensors[name] for name in ("q", "k", "v", "do"))
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.from_numpy(options["alibi_slopes"]).cuda()
    with poisoned():
        o, lse = flash_attention_varlen(q, k, v, **lists, return_lse=True, **options)
        grads = flash_attention_varlen_backward(
            do, q, k, v, o, lse, **lists, dlse=tensors["dlse"], **options
        )
    return {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}


def truth_of(problem, tensors, batch):
    """float64, one sequence; its number matters to dropout and slopes."""
    alone = problem.sequence(batch)
    parts = [problem.of_sequence(n, tensors[n], batch) for n in ("q", "k", "v", "do", "dlse")]
    parts = [x.unsqueeze(0).expand(alone.batch, *x.shape) for x in parts]
    found = attention(alone, *parts)
    names = {"o": "out", "lse": "lse", "dq": "dq", "dk": "dk", "dv": "dv"}
    return alone, parts, {name: getattr(found, own)[batch] for name, own in names.items()}


def hold(problem, found, tensors):
    """As `test_tensor_core_gpu` for each sequence; zeros, and lse -inf, in all other rows."""
    unit = UNIT[problem.dtype]
    for name, array in found.items():
        rows = torch.from_numpy(problem.side_of(name).outside).to(array.device)
        outside = array[:, rows] if name == "lse" else array[rows]
        assert (outside == (-torch.inf if name == "lse" else 0)).all(), name
    for batch in range(problem.batch):
        alone, (q, k, v, *_), exact = truth_of(problem, tensors, batch)
        if 0 in (alone.seqlen_q, alone.seqlen_k):
            for name in ("o", "dq", "dk", "dv"):
                assert not problem.of_sequence(name, found[name], batch).any(), name
            continue
        q, k, v = (x.double() for x in (q, k, v))
        size = abs(problem.softmax_scale) * problem.head_dim * q.abs().amax() * k.abs().amax()
        scores = 2 * UNIT["fp32"] * (size + 64)
        weights = unit / (1 - problem.dropout_p) * v.abs().amax()
        allowed = {"o": 4 * scores + weights + unit * exact["o"].abs().amax(), "lse": 4 * scores}
        for name, want in exact.items():
            got = problem.of_sequence(name, found[name], batch).double()
            assert torch.equal(got == -torch.inf, want == -torch.inf), (batch, name)
            seen = want > -torch.inf
            error = (got - want)[seen].abs().max() if seen.any() else 0.0
            limit = allowed.get(name)
            if limit is None:
                limit = gradient_tolerance(alone, want, q, k)
            assert error <= limit, (batch, name, float(error), float(limit))


@pytest.mark.parametrize("used", [False, True], ids=["all", "used"])
@pytest.mark.parametrize(("option", "shape"), COMBINED, ids=str)
def test_each_sequence_is_a_problem_of_its_own(option, shape: Any, used):
    problem, lists, tensors = make(LENGTHS, *shape, used=used, **OPTIONS[option])
    hold(problem, answers(lists, tensors, **OPTIONS[option]), tensors)


@pytest.mark.parametrize("case", list(packed_cases()), ids=lambda case: case[0])
def test_cases_on_which_other_kernels_failed(case):
    _, (problem, packed), arrays, exact = case
    tensors = {n: torch.from_numpy(x).cuda() for n, x in arrays.items()}
    tensors["dlse"] = torch.zeros(problem.shapes["lse"], device="cuda")
    lists = {n: None if x is None else torch.from_numpy(x).cuda() for n, x in packed.arrays.items()}
    options = {"causal": problem.causal}
    found = answers(lists, tensors, **options)
    hold(problem, found, tensors)
    for name, want in exact.items():
        assert torch.equal(found[name].double().cpu(), torch.from_numpy(np.float64(want))), name


def test_eighty_thousand_sequences():
    """K54 of the cases, whole."""
    _, lists, tensors = make([(16, 16)] * 80_000, 16, 16, "fp16", causal=True)
    found = answers(lists, tensors, causal=True)
    for rows in (slice(0, 64), slice(16 * 39_999, 16 * 40_003), slice(16 * 79_996, None)):
        q, k, v = (
            tensors[n][rows].double().unflatten(0, (4, 16)).transpose(1, 2) for n in ("q", "k", "v")
        )
        o = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        got = found["o"][rows].unflatten(0, (4, 16)).transpose(1, 2)
        assert (got.double() - o).abs().max() <= 4 * UNIT["fp16"] * v.abs().max()
    assert all(array.isfinite().all() for array in found.values())


def test_lengths_that_make_no_sense_touch_nothing_else():
    _, lists, tensors = make(LENGTHS, 64, 64, "fp16", True)
    wrong = [900, -5, 40, 2**31 - 1, -(2**31), 0, 584, 12]
    for name, numbers in (("cu_seqlens_q", wrong), ("seqused_k", wrong[:7])):
        given = lists | {name: torch.tensor(numbers, dtype=torch.int32, device="cuda")}
        answers(given, tensors, causal=True)
        torch.cuda.synchronize()


def test_gradients_repeat_bit_for_bit():
    _, lists, tensors = make([(700, 900), (33, 40), (1200, 1100)], 128, 128, "bf16", causal=True)
    first = answers(lists, tensors, causal=True)
    for _ in range(9):
        again = answers(lists, tensors, causal=True)
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_nothing_waits_for_the_gpu_and_a_graph_follows_new_lengths():
    _, lists, tensors = make([(130, 90), (70, 200)], 64, 64, "fp16", causal=True)
    leaves = [tensors[n].clone().requires_grad_() for n in ("q", "k", "v")]

    def step():
        o = flash_attention_varlen(*leaves, **lists, causal=True)
        return o, *torch.autograd.grad(o, leaves, tensors["do"])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        torch.cuda.synchronize()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the mode a prototype
                torch.cuda.set_sync_debug_mode("error")
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = step()
    lists["cu_seqlens_q"].copy_(torch.tensor([0, 11, 200]))
    lists["cu_seqlens_k"].copy_(torch.tensor([0, 190, 290]))
    graph.replay()
    torch.cuda.synchronize()
    other, *_ = make([(11, 190), (189, 100)], 64, 64, "fp16", causal=True)
    tensors["dlse"].zero_()
    for batch in range(2):
        *_, exact = truth_of(other, tensors, batch)
        for name, array in zip(("o", "dq", "dk", "dv"), outputs, strict=True):
            got = other.of_sequence(name, array, batch)
            assert (got.double() - exact[name]).abs().max() < 0.02 * exact[name].abs().max(), name


def test_compiled_without_a_graph_break():
    _, lists, tensors = make(LENGTHS, 64, 64, "fp16", causal=True)
    leaves = [tensors[n].clone().requires_grad_() for n in ("q", "k", "v")]

    def step(q, k, v, cu_q, cu_k):
        return flash_attention_varlen(q, k, v, cu_q, cu_k, 257, 300, causal=True) * 2

    given = lists["cu_seqlens_q"], lists["cu_seqlens_k"]
    q, k, v = leaves
    plain = torch.autograd.grad(step(q, k, v, *given), leaves, tensors["do"])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves, *given)
    assert all(map(torch.equal, plain, torch.autograd.grad(compiled, leaves, tensors["do"])))


def test_host_arrays_are_copied_in_and_out():
    _, lists, tensors = make(LENGTHS, 64, 64, "fp16", True, causal=True)
    given = {n: None if x is None else x.cpu().numpy() for n, x in lists.items()}
    host = {n: x.cpu().numpy() for n, x in tensors.items()}
    found = answers(given, host, causal=True)
    expected = answers(lists, tensors, causal=True)
    for name, array in found.items():
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, expected[name].cpu().numpy(), name)


def test_float32_is_refused_with_the_reason_of_each_rung():
    if isinstance(ladder.find_gpu(), ladder.NoGpu):
        pytest.skip("needs a GPU")
    q = torch.zeros(8, 1, 64, device="cuda")
    cu = torch.tensor([0, 8], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="flash2: has no packed sequences on a GPU"):
        flash_attention_varlen(q, q, q, cu, cu)
