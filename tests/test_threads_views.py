"""What a trace shows: report, warp view, JSON and the command."""

# pyright: reportOptionalSubscript=false

import json
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("numba", reason="kernels need numba")

import traced_kernels as kernels
from bug_zoo import empty, vector
from numba import cuda, float32, types
from rich.console import Console

from flash_numba.device.numba_cuda import NUMBA_CUDA
from simulator.threads import KernelError, advice, trace, warp
from simulator.trace_cli import EXAMPLES, load_case, trace_command


def text(view) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


@pytest.fixture(scope="module")
def naive():
    arrays = [np.ones((64, 64), np.float32) for _ in range(3)]
    return trace(kernels.make_naive())[2, 32](*arrays, empty(64, 64), np.float32(1))


def test_as_text_it_shows_nothing_in_a_notebook(naive, monkeypatch):
    """rich would display an empty output beside the text that is printed."""
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *parts: shown.append(parts))
    Console().print("what rich shows by itself")
    assert len(shown) == 1
    assert "shared" in str(naive)
    assert len(shown) == 1


def line_of(report, source: str) -> int:
    (line,) = {one.site.place.line for one in report.entries if one.site.place.text == source}
    return line


def test_report_shows_totals_and_the_dearest_lines_first(naive):
    shown = str(naive)
    assert "naive on grid (2, 1, 1), block (32, 1, 1): 2 blocks ran, 8 barriers" in shown
    assert "source-level: the compiler may merge, move or drop loads" in shown
    assert re.search(r"shared sQ load +8,192 +1,048,576 +- +- +262,144 +253,952", shown)
    first = shown.index("dot += sQ[row, c] * sK[r, c]")
    assert first < shown.index("acc[c] += p * sV[r, c]") < shown.index("O[first + row, c]")


def test_advice_names_conflicts_and_uncoalesced_stores(naive):
    conflict, store = advice(naive)
    assert conflict.startswith("bank conflict: line")
    assert "dot += sQ[row, c] * sK[r, c]" in conflict
    assert "32.0 passes over sQ an instruction" in conflict
    assert store.startswith("uncoalesced: line")
    assert "32.0 sectors of O an instruction where 4.0 would do" in store


def test_advice_names_local_arrays_that_cannot_be_registers():
    (line,) = advice(trace(kernels.local_memory)[1, 32](vector(), empty(32)))
    assert line.startswith("local memory: line")
    assert "(y[i] = r[i % 8])" in line


def make_large_static(size):
    @cuda.jit
    def large_static(x, y):
        s = cuda.shared.array(size, float32)
        s[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        y[cuda.threadIdx.x] = s[cuda.threadIdx.x]

    return large_static


def test_static_shared_memory_that_the_assembler_refuses():
    with pytest.raises(KernelError, match=r"49,156 bytes of static .* 49,152 at most"):
        trace(make_large_static(12_289))[1, 32](vector(), empty(32))
    report = trace(make_large_static(12_288))[1, 32](vector(), empty(32))
    assert report.static_shared_bytes == 49_152


@pytest.mark.skipif(not NUMBA_CUDA, reason="compiles with numba-cuda")
def test_the_assembler_agrees_on_static_shared_memory():
    from flash_numba.kernels.offline import assemble, compile_ptx, find_ptxas

    if find_ptxas() is None:
        pytest.skip("needs ptxas")
    vectors = (types.Array(types.float32, 1, "C"),) * 2
    for size, allowed in ((12_288, True), (12_289, False)):
        for cc in ((8, 0), (9, 0), (9, 0, "a")):
            ptx = compile_ptx(make_large_static(size), vectors, cc)
            if allowed or "a" in cc:
                assemble(ptx, cc)
            else:
                with pytest.raises(RuntimeError, match="too much shared data"):
                    assemble(ptx, cc)


def test_sound_copy_gets_no_advice():
    assert advice(trace(kernels.copy)[1, 32](vector(), empty(64))) == []


def test_warp_view_shows_bank_and_sector_of_each_lane(naive):
    conflict = text(warp(naive, line_of(naive, "dot += sQ[row, c] * sK[r, c]"), "sQ"))
    assert "32 passes, 31 of them lost to bank conflicts" in conflict
    cells = re.findall(r"\b(\d+):(\d+)\b", conflict)
    assert len(cells) == 32
    assert len({bank for bank, _ in cells}) == 1
    assert [int(row) for _, row in cells] == list(range(0, 64, 2))
    store = text(warp(naive, line_of(naive, "O[first + row, c] = acc[c] / row_sum")))
    assert "32 sectors" in store


def test_warp_view_of_a_line_without_accesses_says_which_have_some(naive):
    with pytest.raises(ValueError, match="line must be one with accesses"):
        warp(naive, 1)
    line = line_of(naive, "O[first + row, c] = acc[c] / row_sum")
    with pytest.raises(ValueError, match=rf"array must be one of line {line}, \['O'\], got 'Q'"):
        warp(naive, line, "Q")


def test_json_holds_every_count(naive):
    found = json.loads(json.dumps(naive.as_dict()))
    assert found["kernel"] == "naive"
    entries = [e for e in found["entries"] if e["array"] == "sQ" and e["operation"] == "load"]
    assert sum(e["conflicts"] for e in entries) == 253_952
    assert found["hardware"]["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4096
    # O is stored by rows, a sector for each element of 4 bytes; Q is loaded side by side.
    coalescing = {(one["array"], one["operation"]): one["coalescing"] for one in found["entries"]}
    assert (coalescing["O", "store"], coalescing["Q", "load"]) == (4 / 32, 1)
    assert found["flops"]["div"] == 4096
    by_line = {one["text"]: one for one in found["lines"]}
    assert {text: one["barriers"] for text, one in by_line.items() if one["barriers"]} == {
        "cuda.syncthreads()": 4  # two lines: the last one's
    }
    assert [one["barriers"] for one in found["lines"] if one["barriers"]] == [4, 4]
    assert by_line["O[first + row, c] = acc[c] / row_sum"]["flops"] == {"div": 4096}
    for kind, total in found["flops"].items():
        assert sum(one["flops"].get(kind, 0) for one in found["lines"]) == total


CASES = """
import numpy as np
from numba import cuda
from flash_numba.device.hopper.clusters import cluster_rank

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    y[i] = x[i] + x[i]

def double_case():
    return double, 2, 32, (np.ones(64, np.float32), np.zeros(64, np.float32))

def short():
    return double, 2, 32, (np.ones(60, np.float32), np.zeros(64, np.float32))

def rank(y):
    y[cuda.blockIdx.x] = cluster_rank()

def rank_case():
    return rank, 4, 32, (np.zeros(4, np.float32),)

def nonsense():
    return 3
"""


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.py"
    path.write_text(CASES)
    return str(path)


def command(*arguments: str):
    app = typer.Typer()
    app.command()(trace_command)
    return CliRunner().invoke(app, arguments)


def test_command_shows_a_report_or_one_warp(cases):
    result = command(f"{cases}:double")
    assert result.exit_code == 0
    assert "double on grid (2, 1, 1)" in result.output
    result = command(f"{cases}:double", "--line", "9", "--array", "x")
    assert "32 lanes, 4 sectors" in result.output
    refused = command(f"{cases}:double", "--array", "x")
    assert "give --line, too" in str(refused.exception)
    result = command(f"{cases}:double", "--json")
    assert json.loads(result.output)["blocks"] == 2
    result = command(f"{cases}:double", "--representative")
    assert "block (0, 0, 0) counted 2 times" in result.output
    assert command(f"{cases}:rank", "--cluster", "2").exit_code == 0
    refused = command(f"{cases}:rank", "--cluster", "3")
    assert refused.exit_code == 1
    assert "multiple of the cluster's 3" in refused.output


COUNTDOWN = """
import numpy as np
from numba import cuda

@cuda.jit
def countdown(n, y):
    left = n
    while left > 0:
        left -= 1
    y[0] = left

def countdown_case():
    return countdown, 1, 1, (20_000, np.zeros(1, np.int64))
"""


def test_command_is_told_how_long_loops_turn(tmp_path):
    file = tmp_path / "countdowns.py"
    file.write_text(COUNTDOWN)
    assert command(f"{file}:countdown").exit_code == 0
    refused = command(f"{file}:countdown", "--turns", "9000")
    assert refused.exit_code == 1
    assert "allow more turns than 9,000: turns= or --turns" in refused.output
    assert command(f"{file}:countdown", "--turns", "0").exit_code == 2


@pytest.mark.parametrize("step", ["naive", "conflict_free"])
def test_examples_of_the_package(step, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = command(f"simulator.threads.cases:{step}")
    assert result.exit_code == 0
    dearest = re.search(r"^ +(\d+) .*sQ\[row, c\] \* sK\[r, c\]", result.output, re.MULTILINE)
    assert dearest is not None, "a narrow terminal keeps the numbers of a line"
    assert ("bank conflict" in result.output) == (step == "naive")
    result = command(f"simulator.threads.cases:{step}", "--line", dearest[1])
    assert "32 lanes" in result.output
    assert f"simulator.threads.cases:naive --line {dearest[1]}\n" in EXAMPLES


def test_command_fails_on_an_error_of_the_kernel(cases):
    result = command(f"{cases}:short")
    assert result.exit_code == 1
    assert "out of bounds" in result.output
    assert "y[i] = x[i] + x[i]" in result.output
    assert command(f"{cases}:short", "--collect").exit_code == 1


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("double", "must be module:name"),
        ("nowhere.py:double", "no such file"),
        ("no_such_module:double", "cannot import no_such_module"),
        ("{}:triple", "must have triple or triple_case"),
        ("{}:nonsense", "must give"),
        ("numba_cases.py:anything", "pip install"),
    ],
)
def test_bad_target_says_what_is_wrong(cases, target, says, monkeypatch, tmp_path):
    if target.startswith("numba_cases"):
        (tmp_path / "numba_cases.py").write_text("import numba.no_such_part\n")
        monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        load_case(target.format(cases))


def test_kernel_without_case_says_how_to_write_one(tmp_path):
    path = tmp_path / "only_kernel.py"
    path.write_text(CASES.split("def double_case")[0])
    with pytest.raises(ValueError, match=r"write a function double_case\(\)"):
        load_case(f"{path}:double")
