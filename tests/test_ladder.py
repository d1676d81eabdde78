"""Which rung answers, and the way to a GPU with a rung that stands in for the kernels."""

import inspect

import numpy as np
import pytest
from fake_gpu import GPU, CudaArray, WithForwardWorkspace, install
from harness import normal

import flash_numba
from flash_numba import flash_attention, flash_attention_backward, ladder, masks, reference
from flash_numba.arrays import DeviceArray
from flash_numba.ladder import RUNGS, Gpu, NoGpu, Rung, choose, features_of, look
from flash_numba.problem import DTYPES, Problem
from simulator.programs import PROGRAMS

NO_GPU = NoGpu("no CUDA GPU: none in tests")
RNG = np.random.default_rng(11)
PLAIN = Problem(8, 8, 16)
PLAIN_HALF = Problem(8, 8, 16, dtype="fp16")


def rung(name="one", modules=("somewhere", "somewhere"), **needs):
    return Rung(name, "a rung", modules, ("flash2", "flash2"), **needs)


def arrays(dtype="fp32", head_dim=8):
    q = normal(RNG, (2, 9, 4, head_dim), dtype)
    k, v = (normal(RNG, (2, 13, 2, head_dim), dtype) for _ in "kv")
    return q, k, v


# The ladder as it stands


def test_every_rung_names_programs_that_exist():
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)
    for rung in RUNGS:
        assert set(rung.programs) <= set(PROGRAMS)
        assert not any(PROGRAMS[name].idealised for name in rung.programs)


def test_every_rung_with_kernels_has_their_functions():
    pytest.importorskip("numba.cuda", reason="the kernels need numba")
    for rung in RUNGS:
        if rung.modules is not None:
            assert callable(rung.functions("forward").forward)
            assert callable(rung.functions("backward").backward)
            assert callable(rung.functions("backward").workspace)
            forward = rung.functions("forward")
            takes_memory = "memory" in inspect.signature(forward.forward).parameters
            assert takes_memory == hasattr(forward, "forward_workspace")


def test_without_a_gpu_any_problem_finds_a_rung():
    options: dict = {"causal": True, "dropout_p": 0.1, "key_lengths": [3, 5]}
    for dtype in ("fp32", "fp16", "bf16"):
        wide = Problem(3, 5, 300, 7, 2, 6, 2, dtype, **options)
        takes_it = [rung for rung in RUNGS if dtype in rung.dtypes]
        assert choose(wide, NO_GPU) is takes_it[0]
        for each in takes_it:
            assert choose(wide, NO_GPU, each.name) is each


def test_explain_says_where_another_rung_does_the_backward():
    hopper = next(rung for rung in RUNGS if rung.borrows_backward)
    assert hopper.borrows_backward in {rung.name for rung in RUNGS}
    gpu, said = Gpu("H200", (9, 0)), f"its backward pass is {hopper.borrows_backward}'s"
    for head_dim in (64, 128, 256):
        problem = Problem(8, 8, head_dim, dtype="fp16")
        assert look(problem, gpu).rung is hopper
        for needs, borrows in ((("q", "k", "v"), False), (("q", "bias"), True)):
            assert (said in str(look(problem, gpu, needs=needs))) == borrows
        assert not look(problem, NO_GPU, needs=("bias",)).backward
    assert "no gradient of bias" in look(PLAIN_HALF, gpu, needs=("q", "bias")).backward
    biased = masks.bias(np.zeros((1, 1, 8, 8), np.float32))
    changed = look(Problem(8, 8, 64, dtype="fp16", score_mods=(biased,)), gpu)
    assert "gradients of what a score change reads are tensor_core's" in changed.backward


def test_explain_takes_the_gradients_that_will_be_asked_for(monkeypatch):
    monkeypatch.setattr("flash_numba.attention.gpu_of", lambda posed: Gpu("H200", (9, 0)))
    bias = np.zeros((1, 1, 9, 13), np.float32)
    given = arrays("fp16")
    choice = flash_numba.explain(*given, bias=bias, needs=("q", "bias"))
    assert "its own has no gradient of bias" in str(choice)
    with pytest.raises(ValueError, match=r"needs must hold names of .*; got 'w'"):
        flash_numba.explain(*given, needs=("w",))


def test_what_is_not_deterministic_is_run_only_where_it_is_asked_for():
    hopper = next(rung for rung in RUNGS if rung.fast_backward)
    gpu = Gpu("H200", (9, 0))
    for wish in (None, True):
        choice = look(PLAIN_HALF, gpu, hopper.name, wish)
        assert choice.rung is hopper
        assert "the same bits each time; deterministic=False may be faster" in str(choice)
    choice = look(PLAIN_HALF, gpu, hopper.name, False)
    assert choice.rung is not None
    assert (choice.rung.name, choice.rung.deterministic) == (hopper.name, False)
    assert choice.rung.modules == (hopper.modules[0], hopper.fast_backward)  # pyright: ignore
    assert "may give other bits each time" in str(choice)
    assert choice.rung.wished(False, PLAIN_HALF) is choice.rung
    assert hopper.forms("forward") == (hopper,)
    assert hopper.forms("backward") == (hopper, choice.rung)


# Choosing


@pytest.mark.parametrize(
    ("needs", "problem", "gpu", "says"),
    [
        (
            {"compute_capability": (9, 0)},
            PLAIN,
            GPU,
            "needs compute capability 9.0 or newer, got Fake GPU",
        ),
        ({}, PLAIN, Gpu("V100", (7, 0)), "needs compute capability 7.5 or newer, got V100"),
        (
            {"dtype_capability": (("fp32", (9, 0)),)},
            PLAIN,
            GPU,
            "needs compute capability 9.0 or newer for fp32, got Fake GPU",
        ),
        ({"dtypes": ("fp16",)}, PLAIN, GPU, "takes fp16, got fp32"),
        ({}, Problem(8, 8, 16, 300), GPU, "up to 256, got 16 and 300"),
        ({"modules": None}, PLAIN, GPU, "has no kernel for a GPU"),
        (
            {"lacks": frozenset({"dropout", "window"})},
            Problem(8, 8, 16, dropout_p=0.1),
            GPU,
            "has no dropout",
        ),
    ],
    ids=["cc", "cc-of-all", "cc-of-dtype", "dtype", "head-dim", "no-kernel", "feature"],
)
def test_why_a_rung_does_not_run(needs, problem, gpu, says, monkeypatch):
    monkeypatch.setattr(ladder, "RUNGS", (rung("picky", **needs), rung("broad")))
    choice = look(problem, gpu)
    assert says in choice.reasons["picky"]
    monkeypatch.setattr(ladder, "RUNGS", (rung("picky", **needs),))
    with pytest.raises(ValueError, match="no rung runs on the") as error:
        choose(problem, gpu)
    assert f"picky: {choice.reasons['picky']}" in str(error.value)


def test_the_first_rung_that_can_is_chosen_and_the_others_know_why(monkeypatch):
    rungs = rung("fast", compute_capability=(9, 0)), rung("middle"), rung("slow")
    monkeypatch.setattr(ladder, "RUNGS", rungs)
    choice = look(PLAIN, GPU)
    assert choice.rung is rungs[1]
    assert choice.reasons == {
        "fast": "needs compute capability 9.0 or newer, got Fake GPU (compute capability 8.0)",
        "slow": "middle comes first: it is faster",
    }
    named = look(PLAIN, GPU, "slow")
    assert named.rung is rungs[2]
    assert named.reasons["middle"] == "not asked for: kernel='slow'"
    assert str(named).splitlines()[0] == "slow runs on the Fake GPU (compute capability 8.0)"


@pytest.mark.parametrize(("wish", "name"), [(None, "loose"), (False, "loose"), (True, "strict")])
def test_deterministic_leaves_out_rungs_that_are_not(wish, name, monkeypatch):
    monkeypatch.setattr(ladder, "RUNGS", (rung("loose", deterministic=False), rung("strict")))
    assert choose(PLAIN, GPU, deterministic=wish).name == name


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"causal": True}, "causal"),
        ({"window": (1, None)}, "window"),
        ({"key_lengths": [8]}, "key lengths"),
        ({"mask": masks.causal(0)}, "mask"),
        ({"score_mods": [masks.softcap(1.0)]}, "score changes"),
        ({"dropout_p": 0.5}, "dropout"),
        ({"num_heads": 2, "num_kv_heads": 1}, "grouped heads"),
        ({"head_dim_v": 3}, "another head_dim_v"),
    ],
)
def test_features(fields, name):
    assert features_of(PLAIN) == frozenset()
    assert features_of(PLAIN, ("q", "bias")) == {"gradient of bias"}
    assert features_of(Problem(8, 8, 16, **fields)) == {name}


# explain


def test_explain_without_a_gpu(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NO_GPU)
    choice = flash_numba.explain(*arrays(), causal=True, return_lse=True)
    lines = str(choice).splitlines()
    assert lines[0] == "flash2 runs on the tile simulator (no CUDA GPU: none in tests)"
    assert "  standard: flash2 comes first: it is faster" in lines
    assert len(lines) == len(RUNGS)


def test_explain_says_so_where_nothing_can_run(monkeypatch):
    install(monkeypatch, gpu=Gpu("Old GPU", (6, 1)))
    given = arrays()
    choice = flash_numba.explain(*given)
    assert choice.rung is None
    assert str(choice).startswith(
        "no rung runs on the Old GPU (compute capability 6.1)\n  fake: needs"
    )
    with pytest.raises(ValueError, match=r"fake: needs compute capability 7\.5"):
        flash_attention(*given)


def test_find_gpu_answers_on_this_machine():
    found = ladder.find_gpu()
    assert isinstance(found, Gpu) or found.reason.startswith("no CUDA GPU: ")
    assert ladder.find_gpu() is found


# The way to a GPU and back


def test_rows_that_the_copy_engine_cannot_read_are_another_rungs():
    h200 = Gpu("H200", (9, 0))
    assert choose(PLAIN_HALF, h200).name == "hopper"
    assert choose(PLAIN_HALF, h200, aligned=False).name == "tensor_core"
    choice = look(PLAIN_HALF, h200, aligned=False)
    assert choice.reasons["hopper"].endswith("whose rows start on 16 bytes")


def test_both_words_of_the_seed_arrive(monkeypatch):
    functions, seed = install(monkeypatch), 2**40 + 3
    q, k, v = map(CudaArray, arrays())
    flash_attention(q, k, v, dropout_p=0.5, seed=seed)
    assert functions.calls[0].problem.seed == seed


def test_device_arrays_are_handed_over_as_they_are(monkeypatch):
    functions = install(monkeypatch)
    q, k, v = arrays()
    base = np.asfortranarray(q)
    o, lse = flash_attention(CudaArray(base), CudaArray(k), CudaArray(v), return_lse=True)
    assert type(o) is type(lse) is CudaArray
    truth, truth_lse = reference.forward(Problem.of(q, k, v), q, k, v)
    np.testing.assert_allclose(o.array, truth, atol=1e-6)
    np.testing.assert_allclose(lse.array, truth_lse, atol=1e-6)
    (call,) = functions.calls
    assert call.q == DeviceArray(base.ctypes.data, base.shape, base.strides, "fp32")
    assert call.o.pointer == o.array.ctypes.data
    assert call.stream == 7


def test_a_forward_pass_gets_the_memory_it_needs(monkeypatch):
    functions = install(monkeypatch, functions=WithForwardWorkspace())
    q, k, v = arrays()
    o = flash_attention(*map(CudaArray, (q, k, v)))
    np.testing.assert_allclose(
        o.array, reference.forward(Problem.of(q, k, v), q, k, v)[0], atol=1e-6
    )
    assert len(functions.calls) == 1


@pytest.mark.parametrize("needs", [("v",), ("q", "k"), ("bias",), ("q", "k", "v", "bias")])
def test_only_the_gradients_asked_for_are_computed(needs, monkeypatch):
    functions = install(monkeypatch)
    q, k, v = arrays()
    bias, do, dlse = (normal(RNG, shape) for shape in ((4, 1, 13), (2, 9, 4, 8), (2, 4, 9)))
    options = {"bias": CudaArray(bias), "softcap": 3.0, "causal": True}
    given = CudaArray(q), CudaArray(k), CudaArray(v)
    o, lse = flash_attention(*given, return_lse=True, **options)
    found = flash_attention_backward(
        CudaArray(do), *given, o, lse, dlse=CudaArray(dlse), needs=needs, **options
    )
    call = functions.calls[-1]
    wide = masks.bias(np.broadcast_to(bias, (2, 4, 9, 13)))
    problem = Problem.of(q, k, v, causal=True, score_mods=[masks.softcap(3.0), wide])
    truth = reference.backward(problem, q, k, v, do, dlse)
    for name in ("q", "k", "v"):
        assert (getattr(call, f"d{name}") is not None) == (name in needs)
        gradient = getattr(found, f"d{name}")
        if name in needs:
            np.testing.assert_allclose(gradient.array, getattr(truth, f"d{name}"), atol=1e-5)
        else:
            assert gradient is None
    assert call.stream == 7
    if "bias" in needs:
        assert call.d_aux[0] is None
        assert call.d_aux[1].shape == (1, 4, 1, 13)
        np.testing.assert_allclose(found.dbias.array, truth.aux[0][0], atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_host_arrays_are_copied_in_and_out(dtype, monkeypatch):
    pytest.importorskip("numba.cuda", reason="copies to a GPU need numba")
    functions = install(monkeypatch)
    q, k, v = arrays(dtype)
    mask = RNG.random((9, 13)) < 0.7
    o, lse = flash_attention(q[:, ::-1], k, v, mask=mask, return_lse=True)
    (call,) = functions.calls
    assert call.q.dtype == dtype
    assert call.q.pointer != q.ctypes.data
    assert (o.dtype, lse.dtype) == (DTYPES[dtype], np.float32)
    problem = Problem.of(q, k, v, mask=masks.boolean(np.broadcast_to(mask, (2, 4, 9, 13))))
    truth, _ = reference.forward(problem, q[:, ::-1], k, v)
    np.testing.assert_array_equal(o, truth.astype(DTYPES[dtype]))
    gradients = flash_attention_backward(o, q[:, ::-1], k, v, o, lse, mask=mask)
    expected = reference.backward(problem, q[:, ::-1], k, v, o)
    np.testing.assert_array_equal(gradients.dk, expected.dk.astype(DTYPES[dtype]))


def test_broadcast_tensors_reach_a_rung_with_stride_0(monkeypatch):
    functions = install(monkeypatch)
    q, k, v = (CudaArray(x) for x in arrays())
    mask, slopes = RNG.random((2, 1, 1, 13)) < 0.7, RNG.random(4).astype(np.float32)
    o = flash_attention(q, k, v, mask=CudaArray(mask), alibi_slopes=CudaArray(slopes))
    (call,) = functions.calls
    (seen,) = call.problem.mask.aux
    assert (seen.shape, seen.strides) == ((2, 4, 9, 13), (13, 0, 0, 1))
    (mod,) = call.problem.score_mods
    assert (mod.aux[0].shape, mod.aux[0].strides) == ((2, 4), (0, 4))
    host = [x.array for x in (q, k, v)]
    changed = masks.alibi(np.broadcast_to(slopes, (2, 4)), 4)
    visible = masks.boolean(np.broadcast_to(mask, (2, 4, 9, 13)))
    problem = Problem.of(*host, mask=visible, score_mods=[changed])
    np.testing.assert_allclose(o.array, reference.forward(problem, *host)[0], atol=1e-6)


def test_repeated_calls_find_their_problem_made(monkeypatch):
    functions = install(monkeypatch)
    given = [CudaArray(x) for x in arrays()]
    for _ in range(2):
        flash_attention(*given, causal=True, window=(3, 0))
    assert len(functions.planned) == 1
    assert len(functions.calls) == 2


def test_device_arrays_are_refused_where_no_kernel_can_run(monkeypatch):
    install(monkeypatch, gpu=NO_GPU)
    q, k, v = (CudaArray(x) for x in arrays())
    with pytest.raises(ValueError, match=r"on the host.*got them on cuda:0; no CUDA GPU: none in"):
        flash_attention(q, k, v)


def test_device_arrays_do_not_mix_with_host_arrays(monkeypatch):
    install(monkeypatch)
    q, k, v = arrays()
    with pytest.raises(TypeError, match="q as a CUDA array and k as a NumPy array"):
        flash_attention(CudaArray(q), k, v)


def test_a_view_of_an_interface_without_strides():
    array = np.zeros((2, 3, 4), np.float32)
    given = CudaArray(array)
    interface = given.__cuda_array_interface__ | {"strides": None}
    bare = type("Bare", (), {"__cuda_array_interface__": interface})()
    assert DeviceArray.of(bare) == DeviceArray.of(given)
