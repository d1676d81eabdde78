"""Wrong types, odd files, streams that fail: one line that names argument, allowed and received."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import fake_gpu
import numpy as np
import pytest

import flash_numba
from flash_numba import arrays, checks, gpu_call, ladder, masks, reference
from flash_numba.ladder import RUNGS
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask, Schedule
from simulator import theory
from simulator.compare import comparison
from simulator.events import COLUMNS, EventLog
from simulator.inputs import load_input, random_input
from simulator.run import simulate
from simulator.viewer.checked import checked_kinds
from simulator.viewer.session import Session

ROOT = Path(__file__).parents[1]
PROBLEM = Problem(8, 8, 4)
Q = np.random.default_rng(0).standard_normal((1, 8, 1, 4)).astype(np.float32)
KEEP = masks.boolean(np.ones((1, 1, 8, 8), bool))
ODD = {
    "none": None,
    "fraction": 1.5,
    "huge": 2**70,
    "text": "x",
    "list": [[1, 2], [3]],
    "dict": {},
    "array": np.zeros((2, 2)),
    "objects": np.array([{}], object),
    "matrix": np.ones((3, 3)),
    "complex": 1j,
    "class": np.float32,
}
COUNT = {"direction": "forward", "tile_m": 4, "tile_n": 4}
CALLS = {
    "Problem": (Problem, {"seqlen_q": 8, "seqlen_k": 8, "head_dim": 4, "dtype": "fp32"}),
    "Mask": (masks.Mask, {"keep": min, "key_range": min, "exact": True, "name": "m"}),
    "window": (masks.window, {"left": 1, "right": 1, "shift": 0}),
    "bias": (masks.bias, {"tensor": np.ones((1, 1, 8, 8))}),
    "relative": (masks.relative_positions, {"weights": np.ones(3), "theta": np.ones(3)}),
    "from_mask": (
        BlockMask.from_mask,
        {"mask": KEEP, "problem": PROBLEM, "tile_m": 4, "tile_n": 4, "batches": 1, "heads": 1},
    ),
    "Schedule": (Schedule, {"problem": PROBLEM, "tile_m": 4, "tile_n": 4, "batch": 0, "head": 0}),
    "reference": (reference.forward, {"problem": PROBLEM, "q": Q, "k": Q, "v": Q}),
    "simulate": (simulate, {"program": "flash2", "problem": PROBLEM, "batch": 0, **COUNT}),
    "theory": (theory.counts, {"program": "flash2", "problem": PROBLEM, "head": 0, **COUNT}),
    "compare": (comparison, {"problem": PROBLEM, **COUNT}),
    "random_input": (random_input, {"problem": PROBLEM, "seed": 0}),
    "load_input": (load_input, {"path": "none.npz"}),
    "flash_attention": (
        flash_numba.flash_attention,
        {"q": Q, "k": Q, "v": Q, "causal": True, "kernel": "flash2", "return_lse": True},
    ),
    "flash_attention_varlen": (
        flash_numba.flash_attention_varlen,
        {"q": Q[0], "k": Q[0], "v": Q[0], "cu_seqlens_q": [0, 8], "cu_seqlens_k": [0, 8]}
        | {"max_seqlen_k": 8, "seqused_q": [8]},
    ),
}
ALLOWED = {
    ("Mask", "key_range", "none"),
    ("Mask", "key_range", "class"),
    ("Mask", "keep", "class"),
    ("window", "left", "none"),
    ("window", "left", "huge"),
    ("window", "right", "none"),
    ("window", "right", "huge"),
    ("bias", "tensor", ""),
    ("simulate", "head", "none"),
    ("Problem", "head_dim", "huge"),
    ("random_input", "seed", "huge"),
    ("flash_attention_varlen", "seqused_q", "none"),
    ("flash_attention_varlen", "max_seqlen_k", "none"),
    ("flash_attention_varlen", "max_seqlen_k", "huge"),
}
UNCHECKED = {("Mask", "name"), ("window", "shift")}
SWEEP = [
    (call, argument, odd)
    for call, (_, good) in CALLS.items()
    for argument in good
    for odd in ODD
    if (call, argument) not in UNCHECKED and (call, argument, odd) not in ALLOWED
]


@pytest.mark.parametrize(("call", "argument", "odd"), SWEEP)
def test_a_wrong_type_is_one_line_that_says_what_was_received(call, argument, odd):
    function, good = CALLS[call]
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**(good | {argument: ODD[odd]}))
    assert re.search(r"\bgot\b.", str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def test_arrays_are_shown_by_type_and_shape_and_long_texts_are_cut():
    assert checks.shown(np.zeros((2, 3), np.int8)) == "int8 array of shape (2, 3)"
    assert checks.shown("a\n b") == r"'a\n b'"
    assert len(checks.shown(list(range(10_000)))) < 300


def test_lengths_stop_where_products_of_two_still_fit_int64():
    longest = 2**31 - 1
    problem, tile = Problem(longest, longest, 3, causal=True), 1 << 24
    options = {"tile_m": tile, "tile_n": tile, "direction": "forward"}
    found = simulate("flash2", problem, sram_bytes=None, **options).counts
    assert found == theory.counts("flash2", problem, **options)
    blocks = range(128)
    cols = [min((i + 1) * tile, longest) for i in blocks]
    rows = [min(tile, longest - i * tile) for i in blocks]
    assert found.exp_count > sum(r * c for r, c in zip(rows, cols, strict=True))
    assert found.matmul_flops == 12 * sum(r * c for r, c in zip(rows, cols, strict=True))
    with pytest.raises(ValueError, match="seqlen_q must be a whole number <= 2147483647, got"):
        Problem(longest + 1, 1, 1)


def test_too_many_tiles_are_refused_before_they_are_walked():
    with pytest.raises(ValueError, match=r"tile_m must be at least 512 for 1,073,741,824 rows.*1"):
        comparison(Problem(1 << 30, 8, 4), 1, 8)
    arrays = np.zeros((3, 1, 1 << 16, 1, 1), np.float16)
    problem = Problem(1 << 16, 1 << 16, 1, window=(0, 0))
    session = Session(problem, *arrays, tile_m=1, tile_n=64)
    with pytest.raises(ValueError, match=r"grid of at most 4,000,000 tiles, got 65,536 x 1,024"):
        session.run("flash2", "forward", 0)


def test_many_heads_and_sequences_that_are_alike_are_walked_once():
    problem = Problem(8, 8, 4, batch=10**9, num_heads=10**8)
    options = {"tile_m": 4, "tile_n": 4, "direction": "forward"}
    found = simulate("flash2", problem, head=None, **options).counts
    assert found == theory.counts("flash2", problem, all_heads=True, **options)


def test_no_sequence_to_choose_from_is_said():
    with pytest.raises(ValueError, match="batch must name one of 0, got 0"):
        simulate("flash2", Problem(8, 8, 4, batch=0), tile_m=4, tile_n=4)


@pytest.mark.filterwarnings("ignore:no CUDA GPU")
@pytest.mark.parametrize("side", [10**30, 2**63])
def test_a_window_wider_than_any_integer_type_is_unlimited_for_torch_too(side):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(Q)
    found = flash_numba.flash_attention(q, q, q, window=(side, 0))
    assert torch.equal(found, flash_numba.flash_attention(q, q, q, causal=True))


def test_numbers_that_overflow_spread_without_a_word():
    big = np.full((1, 8, 1, 4), 3e38, np.float32)
    out = simulate("flash2", PROBLEM, big, big, big, tile_m=4, tile_n=4).arrays["O"]
    assert np.isnan(out).all()
    fp16 = Problem(8, 8, 4, dtype="fp16")
    simulate("flash2", fp16, big, big, big, big, direction="backward", tile_m=4, tile_n=4)


# Attention at every door, on a GPU whose kernels must not run


HALF, LONGER, WIDE = Q.astype(np.float16), np.repeat(Q, 2, axis=1), np.zeros((1, 8, 1, 300))
ON_GPU = {name: fake_gpu.CudaArray(Q) for name in "qkv"}
LISTED: dict[str, tuple[dict, str]] = {
    "rank": ({"k": Q[0]}, r"k must have 4 axes \(batch, .*got shape \(8, 1, 4\)"),
    "dtype": ({"v": Q.astype(np.int32)}, "v must have dtype float32, float16 or .*got int32"),
    "dtypes": ({"v": HALF}, "q, k and v must have one dtype; .*v has fp16"),
    "kinds": ({"k": ON_GPU["k"]}, "one kind, got q as a NumPy array and k as a CUDA array"),
    "lengths": ({"v": LONGER}, "k and v must agree in seqlen_k .*k has 8, v has 16"),
    "heads": (
        {"q": np.repeat(Q, 3, 2), "k": np.repeat(Q, 2, 2), "v": np.repeat(Q, 2, 2)},
        "multiple of the heads of k and v, got 3 and 2",
    ),
    "layout": (
        dict.fromkeys("qkv", np.zeros((1, 8, 2048, 4), np.float32)),
        "looks like .batch, heads, seqlen, head_dim., swap axes 1 and 2",
    ),
    "head_dim": (
        dict.fromkeys("qkv", WIDE.astype(np.float32)),
        "takes a head_dim and head_dim_v up to 256, got 300 and 300",
    ),
    "scale": ({"scale": np.nan}, "scale must be a finite number, got nan"),
    "infinite scale": ({"scale": -np.inf}, "scale must be a finite number, got -inf"),
    "scale of an array": (
        {"scale": np.ones(2)},
        "scale must be a finite .*got float64 array",
    ),
    "scale beyond float32": ({"scale": 1e39}, r"scale must be finite in float32 .*got 1e\+39"),
    "softcap that float32 has not": ({"softcap": 1e-46}, "softcap must be >= 0 .*got 1e-46"),
    "score_mod of one": (
        {"score_mod": lambda score: score},
        r"called as score_mod\(score, batch, head, q_idx, k_idx, aux\), got \(score\)",
    ),
    "mask_mod of four": (
        {"mask_mod": lambda batch, head, q_idx, k_idx: True},
        r"mask_mod\(batch, head, q_idx, k_idx, aux\), got \(batch, head, q_idx, k_idx\)",
    ),
    "dropout of all": ({"dropout_p": 1.0, "seed": 0}, r"dropout_p must be in \[0, 1\), got 1.0"),
    "dropout below 0": ({"dropout_p": -0.5, "seed": 0}, r"must be in \[0, 1\), got -0.5"),
    "dropout NaN": ({"dropout_p": np.nan, "seed": 0}, "dropout_p must be a finite .*got nan"),
    "window": ({"window": (4,)}, "window must be a pair .*got .4,"),
    "key_lengths": ({"key_lengths": [9]}, r"key_lengths must lie in 0\.\.8 .*got \[9\]"),
    "deterministic": ({"deterministic": 1}, "deterministic must be True, False or None, got 1"),
}


def forward(arguments):
    flash_numba.flash_attention(**arguments)


def standard(arguments):
    flash_numba.standard_attention(**arguments)


def backward(arguments):
    q = arguments["q"]
    flash_numba.flash_attention_backward(do=q, o=q, lse=q, **arguments)


def explain(arguments):
    raise ValueError(str(flash_numba.explain(**arguments)))


DOORS = (forward, standard, backward, explain)


@pytest.fixture
def nothing_runs(monkeypatch):
    """The real rungs on a GPU that is not there: whoever gets as far as a launch fails."""
    pytest.importorskip("numba")
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(ladder, "RUNGS", RUNGS)
    for function in ("forward", "backward"):
        monkeypatch.setattr(gpu_call, function, lambda *a, **kw: pytest.fail("it ran"))
    return monkeypatch


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize(("changed", "says"), LISTED.values(), ids=LISTED)
def test_bad_attention_is_refused_before_a_launch(nothing_runs, changed, says, door):
    with pytest.raises((ValueError, TypeError), match=says):
        door({"q": Q, "k": Q, "v": Q} | changed)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_gpu_that_is_too_old_is_refused(nothing_runs, door):
    volta = ladder.Gpu("Tesla V100", (7, 0))
    nothing_runs.setattr(ladder, "find_gpu", lambda index=0: volta)
    says = "standard: needs compute capability 7.5 or newer, got Tesla V100 .*7.0"
    with pytest.raises(ValueError, match=says):
        door({"q": Q, "k": Q, "v": Q})


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_arrays_on_two_gpus_are_refused(nothing_runs, door):
    kind = type(arrays.kind_of("q", ON_GPU["q"]))
    nothing_runs.setattr(kind, "device", lambda self, x: "cuda:1" if x is ON_GPU["v"] else "cuda:0")
    with pytest.raises(TypeError, match=r"on one device, got q on cuda:0.* v on cuda:1"):
        door(ON_GPU)


@pytest.mark.parametrize("answer", [None, "x", (1, 2)], ids=repr)
@pytest.mark.parametrize("kind", ["score_mod", "mask_mod"])
@pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
def test_what_a_function_may_return(kind, answer):
    with pytest.raises(TypeError, match="must return one number or bool a score, got "):
        forward({"q": Q, "k": Q, "v": Q, kind: lambda *arguments: answer})


class Compiling(fake_gpu.Functions):
    """A rung whose kernel calls the problem's score change."""

    def forward(self, problem, *rest, **packed):
        from flash_numba.device.functions import device_function
        from flash_numba.device.numba_cuda import kernel, types
        from flash_numba.kernels.offline import compile_ptx

        change = device_function(problem.score_mods[0].apply)

        @kernel(32)
        def change_score(gX):
            gX[0] = change(gX[0], 0, 0, 0, 0, ())

        compile_ptx(change_score, (types.Array(types.float32, 1, "C"),), (8, 0))


BODIES = {
    "no number": lambda score, batch, head, q_idx, k_idx, aux: None,
    "NumPy": lambda score, batch, head, q_idx, k_idx, aux: np.percentile(score, 3),
    "a method": lambda score, batch, head, q_idx, k_idx, aux: score.clamp(0),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_function_that_no_kernel_can_call_is_named(monkeypatch, body):
    pytest.importorskip("numba_cuda")
    fake_gpu.install(monkeypatch, functions=Compiling())
    says = "^score_mod '<lambda>' must be such that Numba compiles .*; got [A-Za-z]*Error: .*[a-z]"
    with pytest.raises(TypeError, match=says) as caught:
        flash_numba.flash_attention(Q, Q, Q, score_mod=body)
    assert "\n" not in str(caught.value)


def test_tiles_beyond_the_shared_memory_are_refused_before_they_compile(monkeypatch):
    pytest.importorskip("numba_cuda")
    from flash_numba import launch

    class Kernel:
        def py_func(self):
            pass

    device = SimpleNamespace(id=0, compute_capability=(8, 6))
    Kernel.py_func.__name__ = "flash9"
    monkeypatch.setattr(launch.cuda, "get_current_device", lambda: device)
    says = "tiles of flash9 must fit 101376 bytes of shared memory on this GPU, got 101377"
    with pytest.raises(ValueError, match=says):
        launch.launch(Kernel(), 1, 128, 99 * 1024 + 1, ())


# Files


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.npz"
    np.savez(path, q=Q, k=Q, v=Q)
    return path


def refused(path, says):
    with pytest.raises(ValueError, match=says) as caught:
        load_input(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("byte", [8, 10], ids=["encrypted", "unknown method"])
def test_an_archive_that_cannot_be_unpacked(good, byte):
    damaged = bytearray(good.read_bytes())
    at = damaged.find(b"PK\x01\x02")
    while at >= 0:
        damaged[at + byte] = 1 if byte == 8 else 99
        at = damaged.find(b"PK\x01\x02", at + 1)
    good.write_bytes(damaged)
    refused(good, "good.npz, which cannot be read: .")


def test_members_that_are_no_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        for name in "qkv":
            archive.writestr(name, b"text")
    refused(tmp_path / "in.npz", "lacks q, k, v and holds nothing")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "in.npz")
    refused(tmp_path / "in.npz", "which is no regular file")
    with pytest.raises(ValueError, match="must be a regular file"):
        EventLog.load(tmp_path / "in.npz")


# Event logs


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.npz"
    problem = Problem(8, 8, 4)
    Session(problem, Q, Q, Q, tile_m=4, tile_n=4).record("flash2", "forward", 0).save(path)
    return dict(np.load(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda column: column.astype(float),
        lambda column: column.astype(np.uint64),
        lambda column: column.astype(complex),
        lambda column: column[None],
        lambda column: np.array(3),
        lambda column: np.full_like(column, -2),
        lambda column: np.full_like(column, 2**62),
    ],
    ids=["float", "uint64", "complex", "two axes", "scalar", "negative", "huge"],
)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_another_kind_or_range_is_refused(saved, tmp_path, column, change):
    np.savez(tmp_path / "log.npz", **(saved | {column: change(saved[column])}))
    with pytest.raises(ValueError, match="event log must be a file written by EventLog"):
        EventLog.load(tmp_path / "log.npz")


@pytest.mark.parametrize(
    ("part", "value"), [("events", 10**6), ("rows", -1), ("rows", 2**60), ("columns", 5)]
)
def test_watched_values_that_do_not_fit_are_refused(saved, tmp_path, part, value):
    key = f"watched:row_max:{part}"
    np.savez(tmp_path / "log.npz", **(saved | {key: np.full_like(saved[key], value)}))
    with pytest.raises(ValueError, match=f"{key} must lie in"):
        EventLog.load(tmp_path / "log.npz")


def test_what_is_missing_is_named(saved, tmp_path):
    np.savez(tmp_path / "log.npz", **{key: saved[key] for key in saved if key != "op"})
    with pytest.raises(ValueError, match="it lacks op"):
        EventLog.load(tmp_path / "log.npz")


@pytest.mark.parametrize("fact", ["lines", "kernels", "score_mods", "tokens", "program"])
@pytest.mark.parametrize("bad", [None, 3, "\x1b[31m", "two\nlines"])
def test_facts_are_lists_of_texts_that_print_on_one_line(saved, tmp_path, fact, bad):
    np.savez(tmp_path / "log.npz", **saved)
    log = EventLog.load(tmp_path / "log.npz")
    log.meta[fact] = bad if fact == "program" else [bad] * (len(log.meta.get(fact, [])) or 1)
    with pytest.raises(ValueError, match=f"{fact} of an event log must be"):
        checked_kinds(log)


# The command


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "simulator.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {}),
        timeout=300,
        check=False,
        **options,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("compare", "--json"), ("step", "--demo"), ("doctor",)])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        run = command(*arguments, stdout=full)
    assert (run.returncode, run.stderr) == (2, b"error: [Errno 28] No space left on device\n")


def test_a_reader_that_leaves_early_gets_no_traceback():
    read, write = os.pipe()
    os.close(read)
    try:
        run = command("compare", "--json", stdout=write)
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments", [("compare", "--direction", "both", "--program", "all"), ("step", "--demo")]
)
def test_tables_in_an_ascii_pipe_are_ascii(arguments):
    run = command(*arguments, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.isascii()
    assert b"?" not in run.stdout
