"""The grader passes right answers and fails wrong ones, for the right reason and with the line."""

import linecache
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from answers import SOLUTIONS, Answer, backward, flash, formulas, kernels, steps

from flash_numba import reference
from simulator.grade import PUZZLES, grade, hint, statement
from simulator.grading import limit
from simulator.grading.cases import CAUSAL, SHAPES, SHARED
from simulator.grading.limit import time_limit
from simulator.machine import Machine

ANSWERS = [
    answers for group in (formulas, steps, flash, backward, kernels) for answers in group.ANSWERS
]
RIGHT = [answer for answers in ANSWERS for answer in answers.rights]
WRONG = [answer for answers in ANSWERS for answer in answers.wrongs]


def function_of(answer):
    """The function that an answer's text defines, its lines known to tracebacks."""
    file = f"<{answer}>"
    linecache.cache[file] = (len(answer.source), None, answer.source.splitlines(True), file)
    names: dict = {"__name__": f"answer_{answer.puzzle}"}
    exec(compile(answer.source, file, "exec"), names)
    return names[answer.puzzle]


def test_every_puzzle_has_answers():
    """Here, or in ``outside``, whose tests count them."""
    named = [answers.puzzle for answers in ANSWERS]
    assert named == list(PUZZLES)[: len(named)]
    assert len(PUZZLES) >= 20
    for answers in ANSWERS:
        assert len(answers.rights) >= 3, answers.puzzle
        assert len(answers.wrongs) >= 5, answers.puzzle


@pytest.mark.parametrize("answer", RIGHT, ids=str)
def test_right_answers_pass(answer):
    found = grade(answer.puzzle, function_of(answer))
    assert found, str(found)
    assert found.message.startswith("right on ")


@pytest.mark.parametrize("name", [*PUZZLES][len(ANSWERS) :])
def test_solutions_pass(name):
    source = (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    found = grade(name, function_of(Answer(name, "the solution in its file", source)))
    assert found, str(found)


@pytest.mark.parametrize("answer", WRONG, ids=str)
def test_wrong_answers_fail_and_say_why(answer):
    found = grade(answer.puzzle, function_of(answer))
    assert not found
    assert answer.why in found.message, str(found)
    assert "\n" not in found.message
    assert str(found).startswith(f"✗ {answer.puzzle}: line {found.line} (`")
    if "import forward" not in answer.source:  # a program of the simulator, at fault there
        lines = answer.source.splitlines()
        assert found.line is not None
        assert f"(`{lines[found.line - 1].strip()}`)" in found.message


@pytest.mark.parametrize("name", PUZZLES)
def test_statements_and_hints(name):
    puzzle = PUZZLES[name]
    assert statement(name).startswith(puzzle.signature)
    assert len(puzzle.hints) == 3
    assert [hint(name, step) for step in (1, 2, 3)] == list(puzzle.hints)
    with pytest.raises(ValueError, match=r"step must be .* got 4"):
        hint(name, 4)
    told = puzzle.statement + " ".join(puzzle.hints)
    called = set(re.findall(r"gpu\.(\w+)", told))
    assert called <= set(dir(Machine)) | {"scale", "all_rows"}


def test_what_is_no_answer_is_refused():
    with pytest.raises(ValueError, match="puzzle must be one of predict_standard"):
        grade("no such puzzle", print)
    with pytest.raises(TypeError, match="fn must be a Python function or a kernel"):
        grade("scores", 3)  # pyright: ignore[reportArgumentType]


def test_an_answer_without_a_source_file_is_graded():
    typed: dict = {}
    exec("def flash_forward(gpu):\n    pass", typed)
    assert grade("flash_forward", typed["flash_forward"]).message.startswith(
        "line 1 never writes O"
    )


@pytest.mark.parametrize("case", [*SHAPES, *CAUSAL, *SHARED], ids=str)
def test_formulas_are_the_reference(case):
    found, problem = case.tensors(np.float64), case.problem
    q, do = (found[name].swapaxes(0, 1)[None] for name in ("Q", "dO"))
    k, v = (found[name][None, :, None] for name in ("K", "V"))
    o, lse = reference.forward(problem, q, k, v)
    gradients = reference.backward(problem, q, k, v, do)
    for name, truth in {
        "O": o[0].swapaxes(0, 1),
        "LSE": lse[0],
        "dQ": gradients.dq[0].swapaxes(0, 1),
        "dK": gradients.dk[0, :, 0],
        "dV": gradients.dv[0, :, 0],
    }.items():
        np.testing.assert_allclose(found[name], truth, 1e-9, 1e-9, err_msg=name)


def test_a_right_answer_in_a_wrong_place_is_found_out():
    """What a block leaves in registers is not there for the next one."""
    kept = {}

    def scores(gpu):
        for head, _, rows in gpu.query_tile_grid():
            sQ = gpu.load("", gpu.tensor("Q")[head, rows])
            for n_block, cols in gpu.all_key_tiles():
                sK = gpu.load("", gpu.tensor("K")[cols])
                kept.setdefault(n_block, sK)
                rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
                gpu.product("", rS, sQ, kept[n_block].T, scale=gpu.scale)
                gpu.store("", gpu.tensor("S")[head, rows, cols], rS)
                gpu.free(sK)
            gpu.free(sQ)

    assert "belongs to another thread block" in grade("scores", scores).message


FIRST_STEPS = """
def scores(gpu):
    Q, K, S = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("S")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
            gpu.store("store S_ij", S[head, rows, cols], rS)
            gpu.free(sK)
        gpu.free(sQ)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("Q[head, rows]", "Q[rows]", r"Q has heads: index it as Q\[head, rows\], with slices"),
        ("K[cols]", "K[head, cols]", r"heads of a block share K: index it as K\[cols\]"),
        ("for _, cols", "for cols", r"index it as K\[cols\], with slices"),
        ("S[head, rows, cols]", "S[rows, cols]", r"index it as S\[head, rows, cols\]"),
        ("sK.T, scale", "sK, scale", r"the right operand is sK\.T"),
        ("cols], rS", "cols], sQ @ sK.T", r"tile Q \(16x8\) is multiplied by gpu\.product"),
        ("cols], rS", "cols], 2 * rS", r"tile S \(16x8\) is multiplied by gpu\.product"),
        (
            'gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)',
            'gpu.compute("S", rS, (sQ, sK), lambda q, k: gpu.scale * q @ k.T)',
            r"results and operands are tuples of tiles, as in \(rO,\)",
        ),
    ],
)
def test_what_one_does_first_is_explained(right, wrong, why):
    assert grade("scores", function_of(Answer("scores", "right", FIRST_STEPS)))
    assert right in FIRST_STEPS
    source = FIRST_STEPS.replace(right, wrong)
    assert re.search(why, grade("scores", function_of(Answer("scores", why, source))).message)


def test_a_formula_may_call_its_arguments_as_it_likes():
    assert grade("break_even", lambda columns: columns // 2 + 1)


ENDLESS = {
    "tallest_tile": """
def tallest_tile(d, sram_bytes):
    rows = 1
    while 2 * d * rows <= sram_bytes:
        try:
            rows += 0
        except Exception:
            break
    return rows
""",
    "double_q": """
def double_q(gpu):
    Q = gpu.tensor("Q")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        while True:
            gpu.compute("O = 2 Q", (sQ,), (sQ,), lambda Q: 2 * Q)
""",
    "scale_kernel": """
from numba import cuda


@cuda.jit
def scale_kernel(x, y, a):
    i = cuda.grid(1)
    while i >= 0:
        if i < x.shape[0]:
            y[i] = a * x[i]
""",
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["main thread", "another thread"])
@pytest.mark.parametrize("puzzle", ENDLESS)
def test_an_answer_that_never_ends_is_stopped(puzzle, elsewhere):
    function = function_of(Answer(puzzle, "endless", ENDLESS[puzzle]))
    found = []
    if elsewhere:
        thread = Thread(target=lambda: found.append(grade(puzzle, function, seconds=0.3)))
        thread.start()
        thread.join()
    else:
        found.append(grade(puzzle, function, seconds=0.3))
    assert not found[0]
    assert found[0].message.endswith("still runs after 0.3 s of computing: does its loop ever end?")
    lines = ENDLESS[puzzle].splitlines()
    assert found[0].line is not None
    assert found[0].line > min(number for number, line in enumerate(lines) if "while" in line)


ROOT = Path(__file__).parents[1]
PROFILED = """
import sys
from simulator.grading.limit import Endless, time_limit

def answer():
    while {endless}:
        pass

try:
    with time_limit({seconds}):
        answer()
    print("ended")
except Endless:
    print("stopped")
seen = []
sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
try:
    (lambda: None)()
finally:
    sys.setprofile(None)
print("<lambda>" in seen)
"""


@pytest.mark.parametrize(("endless", "word"), [(False, "ended"), (True, "stopped")])
def test_functions_can_be_profiled_after_an_answer(endless, word):
    """No exception is left under way: CPython 3.11 would spin where a profiled function begins."""
    source = PROFILED.format(endless=endless, seconds=0.2 if endless else 20)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == [word, "True"], done.stderr


ENDING = {
    "tallest_tile": "def tallest_tile(d, sram_bytes):\n    raise SystemExit(3)\n",
    "double_q": "def double_q(gpu):\n    import sys\n    sys.exit()\n",
    "scale_kernel": """
import sys

from numba import cuda


@cuda.jit
def scale_kernel(x, y, a):
    sys.exit(0)
""",
}


@pytest.mark.parametrize("puzzle", ENDING)
def test_an_answer_that_ends_python_fails(puzzle):
    source = ENDING[puzzle]
    found = grade(puzzle, function_of(Answer(puzzle, "ending", source)))
    assert not found
    assert "SystemExit: an answer returns" in found.message
    lines = source.splitlines()
    assert found.line is not None
    assert re.search(r"sys\.exit\(|raise", lines[found.line - 1])


def work(seconds):
    """So many seconds of processor time."""
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


def test_a_limit_that_is_not_reached_changes_nothing():
    with time_limit(0.2):
        pass
    work(0.6)


def test_a_limit_that_is_reached_at_the_very_end_ends_with_it(monkeypatch):
    """Just when the answer is done and waits to say so."""
    own = threading.get_ident()

    class Lock:
        waits = True

        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            if threading.get_ident() == own and Lock.waits:
                Lock.waits = False
                work(60)
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    names = ("get_ident", "Event", "Thread")
    others = {name: getattr(threading, name) for name in names}
    monkeypatch.setattr(limit, "threading", SimpleNamespace(Lock=Lock, **others))
    start = time.process_time()
    with time_limit(0.2):
        pass
    assert not Lock.waits
    work(0.6)
    assert time.process_time() - start < 30
