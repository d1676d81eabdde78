"""``flash-numba bench`` from options to table and JSON, on a GPU whose times are known."""

import json
import re
import sys

import fake_gpu
import numpy as np
import pytest
from fake_gpu import GPU, Functions, WithForwardWorkspace, memory
from test_cli import invoke

from flash_numba import ladder, reference
from flash_numba.problem import Problem
from simulator import theory
from simulator.bench import cells, gpu, results, table
from simulator.bench.cells import Cell, Options

SMALL = ("--tokens", "80", "--hidden", "32", "--head-dim", "16", "--seqlen", "40")
MS = {"fake": 0.5, "fake fast": 0.2, "torch_flash": 0.25, "torch_math": 2.0}
MACHINE = {
    "gpu": "NVIDIA Test",
    "driver": "1.2",
    "versions": {"torch": "9.9", "numba-cuda": "0.30"},
    "date": "2026-11-30",
}


class KnownTimes:
    """A GPU on which a call takes the time that `MS` says, however long it takes."""

    device, peers, gpu, stream = "cpu", ("torch_flash", "torch_math"), GPU, 5

    def __init__(self):
        self.order = []

    def milliseconds(self, contender, count):
        contender.run()
        self.order.append((contender.name, count))
        return MS[contender.name]

    def empty(self):
        pass

    def machine(self):
        return MACHINE


class Counted(Functions):
    """Kernels that say whose tiles they walk."""

    def workspace(self, problem, numbers=()):
        return 16, 21

    def counted_as(self, problem):
        return "flash2", 16, 8


class Wrong(Counted):
    """A kernel with one element that is off by a thousandth."""

    def run_forward(self, problem, q, k, v, o, lse, *rest, **stream):
        super().run_forward(problem, q, k, v, o, lse, *rest, **stream)
        memory(o)[-1, -1, -1, 0] += 1e-3


class WrongBackward(Counted):
    def run_backward(self, problem, q, k, v, do, dq, dk, dv, *rest, **stream):
        super().run_backward(problem, q, k, v, do, dq, dk, dv, *rest, **stream)
        memory(dv)[0, 3, 0] *= 1.1


class Unwritten(Counted):
    """A kernel that leaves a row of a head that is not looked at."""

    def run_forward(self, problem, q, k, v, o, lse, *rest, **stream):
        super().run_forward(problem, q, k, v, o, lse, *rest, **stream)
        memory(o)[0, 7, 1] = np.nan


class OutOfMemory(Counted):
    def workspace(self, problem, numbers=()):
        raise RuntimeError("CUDA out of memory. Tried to allocate 3 GiB")


@pytest.fixture
def device(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    found = KnownTimes()
    monkeypatch.setattr(gpu, "find", lambda: found)
    return found


def bench(monkeypatch, tmp_path, functions, *arguments, **needs):
    """The command on the fake GPU: its result, and what it wrote."""
    fake_gpu.install(monkeypatch, functions=functions, **needs)
    path = tmp_path / "out.json"
    run = invoke("bench", *SMALL, *arguments, "--output", path)
    return run, json.loads(path.read_text())


@pytest.mark.parametrize("functions", [Counted(), WithForwardWorkspace()], ids=["plain", "space"])
def test_rows_tell_the_known_times(monkeypatch, tmp_path, device, functions):
    run, found = bench(monkeypatch, tmp_path, functions, "--budget", "0.2")
    assert run.exit_code == 0, run.output
    assert set(found) >= {"machine", "method", "options", "rows"}
    assert results.load(tmp_path / "out.json") == found
    seen = [(r["direction"], r["dtype"], r["causal"]) for r in found["rows"]]
    ways, dtypes = ("forward", "backward"), ("fp32", "fp16", "bf16")
    assert seen == [(w, d, c) for w in ways for d in dtypes for c in (False, True)]
    for row in found["rows"]:
        assert (row["rung"], row["batch"], row["heads"], row["head_dim"]) == ("fake", 2, 2, 16)
        assert row["ms"] == 0.5
        assert row["peers"] == {"torch_flash": 0.25, "torch_math": 2.0}
        assert row["ratios"] == {"torch_flash": 0.5, "torch_math": 4.0}
        flops = 4 * 2 * 2 * 40 * 40 * 16
        flops *= (0.5 if row["causal"] else 1) * (2.5 if row["direction"] == "backward" else 1)
        assert row["tflops"] == pytest.approx(flops / 0.5e-3 / 1e12)
    assert found["machine"] == MACHINE


def test_bytes_are_those_of_the_closed_form(monkeypatch, tmp_path, device):
    _, found = bench(monkeypatch, tmp_path, Counted(), "--dtype", "fp16", "--mask", "causal")
    for row in found["rows"]:
        problem = Problem(40, 40, 16, batch=2, num_heads=2, dtype="fp16", causal=True)
        options = {"direction": row["direction"], "all_heads": True}
        moved = theory.counts("flash2", problem, 16, 8, **options).hbm_bytes
        assert row["gb_per_s"] == pytest.approx(moved / 0.5e-3 / 1e9)


def test_both_forms_of_a_backward_pass_are_timed(monkeypatch, tmp_path, device):
    """A row for the one with the same bits each time and one for the fast one."""
    arguments = "--dtype", "fp32", "--mask", "full"
    run, found = bench(monkeypatch, tmp_path, Counted(), *arguments, fast_backward="fake")
    rows = [(r["rung"], r["direction"], r["deterministic"], r["ms"]) for r in found["rows"]]
    assert rows == [
        ("fake", "forward", True, 0.5),
        ("fake", "backward", True, 0.5),
        ("fake", "backward", False, 0.2),
    ]
    assert [row["ratios"]["torch_math"] for row in found["rows"]] == pytest.approx([4, 4, 10])
    assert len(re.findall(r"^.*\bfake\b.*$", run.stdout, re.MULTILINE)) == 3
    assert len(re.findall(r"^.*\bfake fast\b.*$", run.stdout, re.MULTILINE)) == 1


def test_truth_is_computed_once_for_all_forms(monkeypatch, tmp_path, device):
    """Of two heads: in float64, in the cell's type, and the magnitudes."""
    from simulator.bench import truth

    whole, asked = truth.head, []
    monkeypatch.setattr(truth, "head", lambda *x, **how: asked.append(how) or whole(*x, **how))
    arguments = "--dtype", "fp32", "--mask", "full", "--direction", "backward"
    _, found = bench(monkeypatch, tmp_path, Counted(), *arguments, fast_backward="fake")
    assert len(found["rows"]) == 2
    assert len(asked) == 2 * 3


def test_contenders_take_turns(monkeypatch, tmp_path, device):
    bench(monkeypatch, tmp_path, Counted(), "--dtype", "fp32", "--direction", "forward")
    names, each = ["fake", "torch_flash", "torch_math"], {"fake": 20, "torch_flash": 40}
    assert device.order.pop(0) == ("fake", 1)
    once, *rounds = (device.order[at : at + 3] for at in range(0, len(device.order) // 2, 3))
    assert once == [(name, 1) for name in names]
    for number, found in enumerate(rounds):
        turn = [(name, each.get(name, 5)) for name in names]
        assert found == (turn if number % 2 == 0 else turn[::-1])


def test_peers_are_those_asked_for(monkeypatch, tmp_path, device):
    _, found = bench(monkeypatch, tmp_path, Counted(), "--dtype", "fp16", "--peer", "torch_math")
    assert all(list(row["peers"]) == ["torch_math"] for row in found["rows"])


@pytest.mark.parametrize(
    ("functions", "says", "rows"),
    [
        (Wrong(), r"o of sequence 1, head 1 is off by 1.00e-03, allowed \d", 0),
        (WrongBackward(), r"dv of sequence 0, head 0 is off by", 2),
        (Unwritten(), r"o is not finite everywhere", 0),
    ],
    ids=["o", "dv", "unwritten"],
)
def test_a_wrong_kernel_gets_no_figure(monkeypatch, tmp_path, device, functions, says, rows):
    run, found = bench(monkeypatch, tmp_path, functions, "--dtype", "fp32")
    assert run.exit_code == 1
    assert len(found["rows"]) == rows
    assert re.search(says, found["wrong"][0]["why"])
    assert re.search(says, " ".join(run.stdout.split()))


def test_what_a_rung_does_not_take_is_left_out_and_said(monkeypatch, tmp_path, device):
    run, found = bench(monkeypatch, tmp_path, Counted(), dtypes=("fp32",))
    assert run.exit_code == 0
    assert {row["dtype"] for row in found["rows"]} == {"fp32"}
    whys = {entry["why"] for entry in found["left_out"]}
    assert whys == {"takes fp32, got fp16", "takes fp32, got bf16"}
    assert "not timed: fake: takes fp32, got bf16 (4 cells)" in run.stdout


def test_memory_that_is_not_there_is_no_error(monkeypatch, tmp_path, device):
    run, found = bench(monkeypatch, tmp_path, OutOfMemory(), "--dtype", "fp32")
    assert run.exit_code == 0
    assert {row["direction"] for row in found["rows"]} == {"forward"}
    assert {entry["why"] for entry in found["left_out"]} == {"out of memory"}


def test_a_call_longer_than_the_budget_is_left_out(monkeypatch, tmp_path, device):
    run, found = bench(monkeypatch, tmp_path, Counted(), "--dtype", "fp32", "--budget", "0.0004")
    assert run.exit_code == 0
    assert not found["rows"]
    assert "not timed: fake: a call takes longer than 0.0004 s (4 cells)" in run.stdout


@pytest.mark.parametrize("chunk", [1 << 25, 7 * 40], ids=["whole", "chunks"])
@pytest.mark.parametrize("causal", [False, True])
def test_truth_is_the_reference(monkeypatch, causal, chunk):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from simulator.bench import truth
    from simulator.bench.contenders import Inputs

    monkeypatch.setattr(truth, "CHUNK", chunk)
    cell = Cell("backward", "fp32", 16, 40, causal, 1, 1)
    inputs = Inputs.draw(cell, "cpu")
    q, k, v, do = (x.numpy() for x in inputs)
    o, lse = reference.forward(cell.problem, q, k, v)
    grads = reference.backward(cell.problem, q, k, v, do)
    expected = {"o": o[0, :, 0], "lse": lse[0, 0]}
    expected |= {name: getattr(grads, name)[0, :, 0] for name in ("dq", "dk", "dv")}
    found = truth.head(cell, *(x[0, :, 0] for x in inputs), exact=True)
    assert set(found) == set(expected)
    for name, array in found.items():
        assert array.dtype == torch.float64
        np.testing.assert_allclose(array.numpy(), expected[name], rtol=1e-11, atol=1e-13)
    sums = truth.head(cell, *(x[0, :, 0] for x in inputs), exact=True, absolute=True)
    assert all((sums[name] >= found[name].abs() - 1e-12).all() for name in found if name != "lse")
    weights = np.exp(q[0, :, 0] @ k[0, :, 0].T / 4 - lse[0, 0][:, None])
    weights = np.tril(weights) if causal else weights
    expected_sum = weights @ abs(v[0, :, 0])
    np.testing.assert_allclose(sums["o"].numpy(), expected_sum, rtol=1e-5)


def A100():
    return 8, 0


ROW = {
    "rung": "tensor_core",
    "direction": "backward",
    "dtype": "bf16",
    "head_dim": 128,
    "seqlen": 16384,
    "causal": True,
    "batch": 1,
    "heads": 16,
    "ms": 1234.5678,
    "tflops": 1234.56,
    "gb_per_s": 12345.6,
    "rounds": 3,
    "peers": {"torch_flash": 12.0, "torch_cudnn": 1.0, "torch_efficient": 1.5, "torch_math": 99.0},
    "ratios": {"torch_flash": 12.0, "torch_cudnn": 1.0, "torch_efficient": 1.5, "torch_math": 99.0},
}
FILE = {"machine": MACHINE, "rows": [ROW, ROW | {"rung": "standard", "gb_per_s": None}]}


def test_the_widest_table_has_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "old.json").write_text(json.dumps(FILE))
    run = invoke("bench", "--show", tmp_path / "old.json")
    assert run.exit_code == 0, run.output
    lines = run.stdout.splitlines()
    assert lines[0] == "NVIDIA Test, 2026-11-30, driver 1.2, torch 9.9, numba-cuda 0.30"
    assert max(map(len, lines)) <= 80
    assert "backward · bf16 · head_dim 128" in lines
    numbers = ["16384", "causal", "tensor_core", "1235", "1234.6", "12346"]
    numbers += ["12.00", "1.00", "1.50", "99.00"]
    (row,) = (line.split() for line in lines if "tensor_core" in line)
    assert row == numbers
    (row,) = (line.split() for line in lines if "standard" in line)
    assert row == ["standard", *numbers[3:5], "-", *numbers[6:]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.pop("machine"), "must hold machine as bench writes it, got nothing"),
        (lambda f: f.update(rows={}), "must hold rows as bench writes it, got dict"),
        (lambda f: f["machine"].update(date=3), "machine of .* must hold date .* got int"),
        (lambda f: f["rows"][1].update(ms="fast"), "row 1 of .* must hold ms .* got str"),
        (lambda f: f["rows"][0]["ratios"].update(torch_flash=None), "hold torch_flash .*NoneType"),
        (
            lambda f: f["rows"][0]["peers"].update(other=1.0),
            "peers of row 0 of .* must name torch_flash, .*; got 'other'",
        ),
    ],
)
def test_files_that_are_no_results(tmp_path, change, says):
    broken = json.loads(json.dumps(FILE))
    change(broken)
    (tmp_path / "odd.json").write_text(json.dumps(broken))
    run = invoke("bench", "--show", tmp_path / "odd.json")
    assert run.exit_code == 2
    assert re.search(says, run.stderr), run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_files_that_are_no_json(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    run = invoke("bench", "--show", tmp_path / "odd.json")
    assert run.exit_code == 2
    assert re.match(r"error: .*odd\.json must .*got ", run.stderr)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--rung flash9", "rung must be one of standard, flash1, flash2"),
        ("--dtype fp8", "dtype must be one of fp32, fp16, bf16; got 'fp8'"),
        ("--direction both", "direction must be one of forward, backward; got 'both'"),
        ("--peer torch", "peer must be one of torch_flash, torch_cudnn, "),
        ("--compile -2 --rung flash2", "compile must be a whole number >= 1, got -2"),
        ("--mask window", "mask must be one of full, causal; got 'window'"),
        ("--head-dim 257", "head_dim must be a whole number <= 256, got 257"),
        ("--seqlen 0", "seqlen must be a whole number >= 1, got 0"),
        ("--tokens 0", "tokens must be a whole number >= 1, got 0"),
        ("--hidden 99999", "hidden must be a whole number <= 65536, got 99999"),
        ("--budget 0", "budget must be in (0, 600] seconds, got 0.0"),
        ("--budget nan", "budget must be a finite number, got nan"),
        ("--seqlen many", "'--seqlen'"),
        ("--show none.json", "JSON that `bench --output` wrote, none.json does not exist"),
        ("--show .", "JSON that `bench --output` wrote, . is no file"),
    ],
)
def test_bad_options(arguments, says):
    run = invoke("bench", *arguments.split())
    assert run.exit_code == 2
    assert run.stderr.startswith("error: ")
    assert says in run.stderr
    assert run.stderr.count("\n") == 1


def test_without_a_gpu_it_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda: ladder.NoGpu("no CUDA GPU: none here"))
    run = invoke("bench", "--quick")
    assert run.exit_code == 2
    assert run.stderr == (
        "error: an NVIDIA GPU is needed, with the extra cu12 or cu13, and torch with CUDA; "
        "no CUDA GPU: none here. --show FILE prints what was measured before\n"
    )


def test_without_torch_it_says_so(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda: GPU)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is not installed" in invoke("bench").stderr


def test_quick_takes_two_lengths_unless_told():
    options = Options(rungs=cells.with_kernels())
    assert options.quick(False).seqlens == (1024, 4096)
    assert options.quick(True).seqlens == options.seqlens
    assert options.quick(True).budget_s == 0.2


def test_every_rung_with_kernels_is_timed():
    """Kernels that land on the ladder are timed without a change here."""
    assert set(cells.with_kernels()) == {rung.name for rung in ladder.RUNGS if rung.modules}


@pytest.mark.parametrize("direction", cells.DIRECTIONS)
@pytest.mark.parametrize(
    ("rung", "program"), [("standard", "tiled"), ("flash1", "flash1"), ("flash2", "flash2")]
)
def test_fp32_rungs_name_their_schedule(monkeypatch, rung, program, direction):
    pytest.importorskip("numba")
    functions = {one.name: one for one in ladder.RUNGS}[rung].functions(direction)
    monkeypatch.setattr(sys.modules[functions.counted_as.__module__], "compute_capability", A100)
    name, *tiles = functions.counted_as(Problem(256, 256, 64))
    assert name == program
    assert all(tile in (16, 32, 64, 128) for tile in tiles)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", cells.DTYPES)
def test_on_this_gpu(tmp_path, dtype):
    pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "out.json"
    small = ("--tokens", "512", "--hidden", "128", "--seqlen", "256", "--head-dim", "64")
    run = invoke("bench", *small, "--dtype", dtype, "--budget", "0.01", "--output", path)
    assert run.exit_code == 0, run.output
    found = results.load(path)
    takes = {rung.name for rung in ladder.RUNGS if rung.modules and dtype in rung.dtypes}
    assert {row["rung"] for row in found["rows"]} <= takes
    assert {row["rung"] for row in found["rows"]} >= {"standard", "flash1", "flash2"}
    assert all(row["ratios"] for row in found["rows"])
    table.render(found)
