"""Fingerprints: equal in every process for what compiles alike, and for nothing else."""

import math
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from flash_numba import fn
from flash_numba.fingerprint import Unknown, fingerprint
from flash_numba.kernels.builds import listed_builds, prepare
from flash_numba.masks import both

ROOT = Path(__file__).parents[1]
WIDTH = 4


def test_kernels_have_a_fingerprint_each():
    kernels = {}
    for build in listed_builds():
        kernel, signature, _ = prepare(build)
        kernels[kernel, signature] = fingerprint((kernel, str(signature)))
    assert len(kernels) > 30
    assert len(set(kernels.values())) == len(kernels)


def test_they_are_the_same_in_every_process():
    code = (
        "import hashlib\n"
        "from flash_numba.fingerprint import fingerprint\n"
        "from flash_numba.kernels.builds import listed_builds, prepare\n"
        "for build in list(listed_builds())[::7]:\n"
        "    print(hashlib.sha256(fingerprint(prepare(build)[0]).encode()).hexdigest())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().split()) > 5


def made(text: str, **names):
    """The function `f` of a piece of source, as a user's module would have it."""
    space = {"__name__": "users", "fn": fn, "math": math, "np": np, **names}
    exec(text, space)
    return space["f"]


SAME = "def f(batch, head, q_idx, k_idx, aux):\n    return k_idx <= q_idx + 3\n"
DIFFERENT = {
    "constant": (SAME, SAME.replace("3", "4"), {}),
    "operator": (SAME, SAME.replace("<=", "<"), {}),
    "name": (
        "f = lambda a: fn.exp(a)",
        "f = lambda a: fn.sin(a)",
        {},
    ),
    "type": ("f = lambda a: a + 1", "f = lambda a: a + 1.0", {}),
    "sign": ("f = lambda a: a + 0.0", "f = lambda a: a + -0.0", {}),
    "default": ("def f(a, b=1): return a + b", "def f(a, b=2): return a + b", {}),
    "inner": (
        "def f(a):\n    return (lambda b: b + 1)(a)",
        "def f(a):\n    return (lambda b: b + 2)(a)",
        {},
    ),
    "enclosed": (
        "def make(n):\n    return lambda a: a + n\nf = make(1)",
        "def make(n):\n    return lambda a: a + n\nf = make(2)",
        {},
    ),
}


@pytest.mark.parametrize(("one", "other", "names"), DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_differ(one, other, names):
    assert fingerprint(made(one, **names)) == fingerprint(made(one, **names))
    assert fingerprint(made(one, **names)) != fingerprint(made(other, **names))


def test_where_a_function_stands_does_not_matter():
    assert fingerprint(made(SAME)) == fingerprint(made("\n\n# moved\n" + SAME))


@pytest.mark.parametrize(
    ("one", "other"),
    [(4, 5), (4, 4.0), (1.0, True), (np.arange(3), np.arange(1, 4)), ((1, 2), (12,))],
    ids=str,
)
def test_globals_are_part_of_it(one, other):
    source = "def f(a): return a * WIDTH"
    assert fingerprint(made(source, WIDTH=one)) != fingerprint(made(source, WIDTH=other))


def test_pieces_of_a_combined_mask_are_part_of_it():
    one, other = made(SAME), made(SAME.replace("3", "4"))
    assert fingerprint(both(one, one)) != fingerprint(both(one, other))


def helper(x):
    return x + 1


@pytest.mark.parametrize(
    "value",
    [helper, object(), types.ModuleType("users"), np.array([object()]), type("Users", (), {})],
    ids=["function", "object", "module", "objects", "class"],
)
def test_what_may_change_unseen_has_none(value):
    with pytest.raises(Unknown):
        fingerprint(made("def f(a): return WIDTH", WIDTH=value))


def test_a_name_without_a_value_has_none():
    source = "def make():\n    f = lambda: later\n    return f\n    later = 1\nf = make()"
    with pytest.raises(Unknown, match="without a value"):
        fingerprint(made(source))
