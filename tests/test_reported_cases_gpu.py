"""Where each reported case runs on a GPU, and those that no other file runs there.

`ON_GPU` has every number of the list that `cases` and this project's tests were made from.
"""

import ast
from pathlib import Path

import pytest
from cases import CASES, REFUSALS

from flash_numba import flash_attention, flash_attention_backward
from flash_numba.ladder import RUNGS

TESTS = Path(__file__).parent
EVERY_RUNG = "test_attention_gpu.py::test_cases"
WHOLE = "test_large_gpu.py::test_reported_case_in_its_whole_size"
PACKED = "test_varlen_gpu.py::test_cases_on_which_other_kernels_failed"
HERE = Path(__file__).name

ON_GPU = dict.fromkeys((spec.id.partition("-")[0] for spec in CASES), (EVERY_RUNG,))
ON_GPU |= dict.fromkeys(("K03", "K49", "K55"), (EVERY_RUNG, WHOLE))
ON_GPU |= dict.fromkeys(("K02", "K29", "K34"), (PACKED,))
ON_GPU |= {
    "K45": (f"{HERE}::test_wrong_shapes_are_refused_on_a_gpu",),
    "K47": (f"{HERE}::test_only_the_gradient_of_v",),
    "K48": (EVERY_RUNG, f"{HERE}::test_another_layout_is_named"),
    "K54": (EVERY_RUNG, WHOLE, PACKED, "test_varlen_gpu.py::test_eighty_thousand_sequences"),
    "K57": (
        f"{HERE}::test_a_head_dim_that_no_tile_has_room_for",
        f"{HERE}::test_more_shared_memory_than_there_is",
    ),
}
ELSEWHERE = {"K35": "appending to a cache of keys is decoding, which no rung does"}
"""Why a case has no test on a GPU."""

NUMBERS = {1, 2, 3, 4, 6, 8, 9, 11, 12, 14, 15, 18, 19, 20, 22, 23, 25, 26, 27, 29, 30, 34, 35}
NUMBERS |= {38, 39, 41, 43, 45, 47, 48, 49, 50, 53, 54, 55, 57}


def test_every_case_has_its_place():
    assert set(ON_GPU).isdisjoint(ELSEWHERE)
    assert set(ON_GPU) | set(ELSEWHERE) == {f"K{number:02}" for number in NUMBERS}


@pytest.mark.parametrize("place", sorted({place for places in ON_GPU.values() for place in places}))
def test_places_are_tests_that_a_gpu_runs(place):
    file, name = place.split("::")
    tree = ast.parse((TESTS / file).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    marks = [ast.unparse(mark) for mark in functions[name].decorator_list]
    marks += [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    assert any(mark in ("pytest.mark.gpu", "pytestmark = pytest.mark.gpu") for mark in marks)


each_rung = pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung.modules])


def on_gpu(torch, rung, *shapes):
    element = {"fp32": torch.float32, "fp16": torch.float16}[rung.dtypes[0]]
    return [torch.randn(shape, device="cuda").to(element) for shape in shapes]


@pytest.mark.gpu
@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.id for refusal in REFUSALS])
@each_rung
def test_wrong_shapes_are_refused_on_a_gpu(rung, refusal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = on_gpu(torch, rung, *refusal.shapes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the parts are checked below
        flash_attention(*tensors, kernel=rung.name)
    for part in refusal.says:
        assert part in str(error.value)


@pytest.mark.gpu
@each_rung
def test_another_layout_is_named(rung):
    """K48 in its whole size."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = on_gpu(torch, rung, *3 * [(1, 3, 71280, 128)])
    with pytest.raises(ValueError, match=r"looks like \(batch, heads, seqlen, head_dim\), swap"):
        flash_attention(*tensors, kernel=rung.name)


@pytest.mark.gpu
@each_rung
def test_only_the_gradient_of_v(rung, monkeypatch):
    """dQ and dK are neither made nor written."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from flash_numba.interop import torch_eager, torch_repeated

    monkeypatch.setattr(torch_eager, "_calls", {})
    monkeypatch.setattr(torch_repeated, "_known", [])
    q, k, v = on_gpu(torch, rung, *3 * [(2, 70, 2, 64)])
    v.requires_grad_()
    o, lse = flash_attention(q, k, v, return_lse=True, kernel=rung.name)
    do = torch.randn_like(o)
    (dv,) = torch.autograd.grad(o, v, do)
    (call,) = torch_eager._calls.values()
    (planned,) = call._backward.values()  # pyright: ignore[reportOptionalMemberAccess]
    assert [output.name for output in planned.planned.outputs] == ["dv"]
    given = do, q, k, v.detach(), o.detach(), lse.detach()
    found = flash_attention_backward(*given, needs="v", kernel=rung.name)
    whole = flash_attention_backward(*given, kernel=rung.name)
    assert found.dq is found.dk is None
    assert torch.equal(dv, found.dv)
    if rung.name == "tensor_core":
        # All gradients come from one kernel, dV alone from another: each rounds P and dV.
        unit = torch.finfo(dv.dtype).eps / 2
        terms = flash_attention_backward(do.abs(), *given[1:], needs="v", kernel=rung.name).dv
        mine, theirs = dv.float(), whole.dv.float()
        assert ((mine - theirs).abs() <= 2 * unit * (terms.float() + mine.abs())).all()
    else:
        assert torch.equal(dv, whole.dv)


@pytest.mark.gpu
@each_rung
def test_a_head_dim_that_no_tile_has_room_for(rung):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ValueError, match=f"up to {rung.max_head_dim}, got 264 and 264"):
        flash_attention(*on_gpu(torch, rung, *3 * [(1, 8, 1, 264)]), kernel=rung.name)


@pytest.mark.gpu
def test_more_shared_memory_than_there_is():
    """Before a launch, with both numbers."""
    from flash_numba import launch
    from flash_numba.kernels.aux_gradient import sum_shares

    limit = launch.shared_limit(launch.compute_capability())
    with pytest.raises(ValueError, match=f"must fit {limit} bytes .* got {limit + 16}"):
        launch.launch(sum_shares, 1, 128, limit + 16, ())
